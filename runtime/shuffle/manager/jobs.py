"""The jobs of the service: whose they are, until when they are kept, what they may keep. Decisions only.

A job belongs to the cluster that first asked for it. Its lease is renewed by that cluster's JobManager for as long as
the job lives; when nobody does, nobody will release it either, and its data goes.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sluice.runtime.shuffle.control_plane import ForeignJob, JobUnknown, ShuffleQuotaExceeded

MAX_JOBS_OF_CLUSTER = 1000
MAX_SHUFFLES_OF_JOB = 100_000
MAX_RELEASED = 10_000
"""Released jobs that are remembered, so that what was said before their end and arrives after it changes nothing."""


@dataclass(slots=True)
class Shuffle:
    """A live shuffle: its number of partitions, who keeps it, and who has taken over what another worker had.

    After a change of managers only what is durable is known: one of which nothing was handed over is not, until a
    worker says that it keeps some of it (``partitions`` is 0 then).
    """

    partitions: int
    workers: tuple[str, ...]
    successors: dict[str, str] = field(default_factory=dict)

    def keeper(self, worker: str) -> str:
        """Who has now what was written to ``worker``."""
        seen: set[str] = set()
        while worker in self.successors and worker not in seen:
            seen.add(worker)
            worker = self.successors[worker]
        return worker


@dataclass(slots=True)
class Job:
    """A live job; ``owner`` is the digest of its cluster's secret, ``lease_until`` by the table's clock.

    ``recovered``: it began under another manager, and may have shuffles that are not in ``shuffles``, or on more
    workers than are known.
    """

    job_id: str
    owner: str
    integrity_key: bytes
    lease_until: float = 0.0
    recovered: bool = False
    shuffles: dict[int, Shuffle] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Quotas:
    """Bytes that one job, and all jobs of one cluster, may keep; 0: any amount."""

    job_bytes: int = 0
    cluster_bytes: int = 0


class JobTable:
    """The live jobs with their owners, leases and quotas.

    Args:
        lease: seconds that a job is kept without renewal.
        quotas: what may be kept.
        clock: monotonic seconds.
    """

    def __init__(self, *, lease: float, quotas: Quotas, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease = lease
        self._quotas = quotas
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._released: deque[str] = deque(maxlen=MAX_RELEASED)
        self._assigned: Counter[str] = Counter()

    @property
    def all(self) -> tuple[Job, ...]:
        """Every live job."""
        return tuple(self._jobs.values())

    def get(self, job_id: str) -> Job | None:
        """A live job, whoever's it is."""
        return self._jobs.get(job_id)

    def own(self, job_id: str, owner: str) -> Job | None:
        """A live job of ``owner``, None when there is none; raises :class:`ForeignJob` when it is somebody else's."""
        job = self._jobs.get(job_id)
        if job is not None and job.owner != owner:
            raise ForeignJob(f"job {job_id} belongs to another cluster", "a cluster has power over its own jobs alone")
        return job

    def check_open(self, job_id: str, owner: str) -> None:
        """Raise unless ``owner`` may begin to keep ``job_id``: not after its end, and not too many."""
        if job_id in self._released:
            raise JobUnknown(f"job {job_id} was released", "it has ended")
        if sum(job.owner == owner for job in self._jobs.values()) >= MAX_JOBS_OF_CLUSTER:
            raise ShuffleQuotaExceeded(f"{MAX_JOBS_OF_CLUSTER} jobs of this cluster are kept already")

    def add(self, job: Job) -> Job:
        """A job is live from now on, with a whole lease."""
        job.lease_until = self._clock() + self._lease
        return self._jobs.setdefault(job.job_id, job)

    def renew(self, job_ids: Iterable[str], owner: str) -> list[str]:
        """A whole lease for those of ``owner``; returns those that are not there. Other clusters' are not, for it."""
        until, unknown = self._clock() + self._lease, []
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is None or job.owner != owner:
                unknown.append(job_id)
            else:
                job.lease_until = until
        return unknown

    def remove(self, job_id: str) -> Job | None:
        """The job is over, and does not begin again."""
        if job_id not in self._released:
            self._released.append(job_id)
        return self._pop(job_id)

    def expired(self) -> list[Job]:
        """Jobs whose lease is over, removed by this call. Their cluster may begin to keep them again."""
        now = self._clock()
        over = [job for job in self._jobs.values() if job.lease_until <= now]
        for job in over:
            self._pop(job.job_id)
        return over

    def _pop(self, job_id: str) -> Job | None:
        job = self._jobs.pop(job_id, None)
        if job is not None:
            for shuffle_number in tuple(job.shuffles):
                self.displace(job, shuffle_number)
        return job

    def lease_left(self, job: Job) -> float:
        """Seconds."""
        return max(0.0, job.lease_until - self._clock())

    @property
    def assigned(self) -> Mapping[str, int]:
        """Partitions of live shuffles by worker."""
        return self._assigned

    def place(self, job: Job, shuffle_number: int, shuffle: Shuffle) -> None:
        """A shuffle of a live job is kept there, and no longer where it was kept before."""
        self.displace(job, shuffle_number)
        job.shuffles[shuffle_number] = shuffle
        self._assigned.update(dict.fromkeys(shuffle.workers, shuffle.partitions))

    def found(self, job: Job, shuffle_number: int, worker: str) -> None:
        """A worker says that it keeps some of a shuffle of a recovered job."""
        shuffle = job.shuffles.setdefault(shuffle_number, Shuffle(0, ()))
        if worker not in shuffle.workers and worker not in shuffle.successors.values():
            shuffle.workers = (*shuffle.workers, worker)
            self._assigned[worker] += shuffle.partitions

    def displace(self, job: Job, shuffle_number: int) -> None:
        """A shuffle is over; one that is not known is no error."""
        shuffle = job.shuffles.pop(shuffle_number, None)
        if shuffle is not None:
            self._assigned -= Counter(dict.fromkeys(shuffle.workers, shuffle.partitions))

    def check_quota(self, job: Job, kept: Mapping[str, int]) -> None:
        """Raise :class:`ShuffleQuotaExceeded` unless ``job`` may get a shuffle; ``kept`` has the bytes of each job."""
        if len(job.shuffles) >= MAX_SHUFFLES_OF_JOB:
            raise ShuffleQuotaExceeded(f"job {job.job_id} has {MAX_SHUFFLES_OF_JOB} live shuffles")
        limit = self._quotas.job_bytes
        if limit and kept.get(job.job_id, 0) >= limit:
            raise ShuffleQuotaExceeded(
                f"job {job.job_id} keeps {kept[job.job_id]} bytes of shuffles, {limit} are allowed",
                "raise shuffle.job_quota_mb, or let the job keep less",
            )
        limit = self._quotas.cluster_bytes
        whole = sum(kept.get(each.job_id, 0) for each in self._jobs.values() if each.owner == job.owner)
        if limit and whole >= limit:
            raise ShuffleQuotaExceeded(
                f"the jobs of this cluster keep {whole} bytes of shuffles, {limit} are allowed",
                "raise shuffle.cluster_quota_mb, or wait until jobs have ended",
            )
