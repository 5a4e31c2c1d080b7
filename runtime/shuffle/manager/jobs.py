"""The jobs of the service with their owners, leases and quotas. Decisions only, no I/O.

A job belongs to the cluster that first allocated a shuffle for it. That cluster's JobManager renews the lease while the
job runs. When the lease expires, nobody is left to release the job, and its data is removed.
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
"""How many released jobs are remembered, so that a delayed request for one of them does not create it again."""


@dataclass(slots=True)
class Shuffle:
    """A live shuffle: its number of partitions, its workers, and ``successors``, which maps a worker to its successor.

    After a change of leaders only shuffles with recorded hand-overs are known. Another shuffle becomes known when a
    worker reports that it keeps data of it; its ``partitions`` is 0 then.
    """

    partitions: int
    workers: tuple[str, ...]
    successors: dict[str, str] = field(default_factory=dict)

    def keeper(self, worker: str) -> str:
        """Return the worker that now has the data that was written to ``worker``."""
        seen: set[str] = set()
        while worker in self.successors and worker not in seen:
            seen.add(worker)
            worker = self.successors[worker]
        return worker


@dataclass(slots=True)
class Job:
    """A live job. ``owner`` is the digest of its cluster's secret; ``lease_until`` is in seconds of the table's clock.

    ``recovered`` is set if the job began under an earlier leader. It may then have shuffles that are not in
    ``shuffles``, or shuffles on more workers than are known.
    """

    job_id: str
    owner: str
    integrity_key: bytes
    lease_until: float = 0.0
    recovered: bool = False
    shuffles: dict[int, Shuffle] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Quotas:
    """Maximum bytes that one job, and all jobs of one cluster, may keep; 0 means no limit."""

    job_bytes: int = 0
    cluster_bytes: int = 0


class JobTable:
    """The live jobs with their owners, leases and quotas.

    Args:
        lease: how long a job is kept without renewal, in seconds.
        quotas: the limits of jobs and clusters.
        clock: returns monotonic seconds.
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
        """Return a live job of any cluster, or None."""
        return self._jobs.get(job_id)

    def own(self, job_id: str, owner: str) -> Job | None:
        """Return a live job of ``owner``, or None; raises :class:`ForeignJob` if it belongs to another cluster."""
        job = self._jobs.get(job_id)
        if job is not None and job.owner != owner:
            raise ForeignJob(f"job {job_id} belongs to another cluster", "a cluster can access its own jobs only")
        return job

    def check_open(self, job_id: str, owner: str) -> None:
        """Check that ``owner`` may add the job ``job_id``.

        Raises:
            JobUnknown: the job was released.
            ShuffleQuotaExceeded: the cluster has too many live jobs.
        """
        if job_id in self._released:
            raise JobUnknown(f"job {job_id} was released", "it has ended")
        if sum(job.owner == owner for job in self._jobs.values()) >= MAX_JOBS_OF_CLUSTER:
            raise ShuffleQuotaExceeded(f"this cluster has {MAX_JOBS_OF_CLUSTER} live jobs in the service already")

    def add(self, job: Job) -> Job:
        """Make a job live, with a full lease."""
        job.lease_until = self._clock() + self._lease
        return self._jobs.setdefault(job.job_id, job)

    def renew(self, job_ids: Iterable[str], owner: str) -> list[str]:
        """Renew the leases of the jobs of ``owner``; returns those that are unknown or belong to another cluster."""
        until, unknown = self._clock() + self._lease, []
        for job_id in job_ids:
            job = self._jobs.get(job_id)
            if job is None or job.owner != owner:
                unknown.append(job_id)
            else:
                job.lease_until = until
        return unknown

    def remove(self, job_id: str) -> Job | None:
        """Remove a job that was released; it cannot be added again."""
        if job_id not in self._released:
            self._released.append(job_id)
        return self._pop(job_id)

    def expired(self) -> list[Job]:
        """Remove and return the jobs whose lease expired. Their cluster may add them again."""
        now = self._clock()
        over = [job for job in self._jobs.values() if job.lease_until <= now]
        for job in over:
            self._pop(job.job_id)
        return over

    def _pop(self, job_id: str) -> Job | None:
        job = self._jobs.pop(job_id, None)
        if job is not None:
            for shuffle_number in tuple(job.shuffles):
                self.forget_shuffle(job, shuffle_number)
        return job

    def lease_left(self, job: Job) -> float:
        """The remaining time of a job's lease, in seconds."""
        return max(0.0, job.lease_until - self._clock())

    @property
    def assigned(self) -> Mapping[str, int]:
        """The number of partitions of live shuffles that each worker was assigned."""
        return self._assigned

    def place(self, job: Job, shuffle_number: int, shuffle: Shuffle) -> None:
        """Record the workers of a live job's shuffle; this replaces an earlier record."""
        self.forget_shuffle(job, shuffle_number)
        job.shuffles[shuffle_number] = shuffle
        self._assigned.update(dict.fromkeys(shuffle.workers, shuffle.partitions))

    def add_reported(self, job: Job, shuffle_number: int, worker: str) -> None:
        """Record that a worker reports data of a shuffle of a recovered job."""
        shuffle = job.shuffles.setdefault(shuffle_number, Shuffle(0, ()))
        if worker not in shuffle.workers and worker not in shuffle.successors.values():
            shuffle.workers = (*shuffle.workers, worker)
            self._assigned[worker] += shuffle.partitions

    def forget_shuffle(self, job: Job, shuffle_number: int) -> None:
        """Forget a shuffle that has ended. An unknown shuffle is no error."""
        shuffle = job.shuffles.pop(shuffle_number, None)
        if shuffle is not None:
            self._assigned -= Counter(dict.fromkeys(shuffle.workers, shuffle.partitions))

    def check_quota(self, job: Job, kept: Mapping[str, int]) -> None:
        """Raise :class:`ShuffleQuotaExceeded` if ``job`` may not get a shuffle; ``kept`` maps each job to its bytes."""
        if len(job.shuffles) >= MAX_SHUFFLES_OF_JOB:
            raise ShuffleQuotaExceeded(f"job {job.job_id} has {MAX_SHUFFLES_OF_JOB} live shuffles")
        limit = self._quotas.job_bytes
        if limit and kept.get(job.job_id, 0) >= limit:
            raise ShuffleQuotaExceeded(
                f"job {job.job_id} keeps {kept[job.job_id]} bytes of shuffles, {limit} are allowed",
                "raise shuffle.job_quota_mb, or reduce the shuffle data of the job",
            )
        limit = self._quotas.cluster_bytes
        whole = sum(kept.get(each.job_id, 0) for each in self._jobs.values() if each.owner == job.owner)
        if limit and whole >= limit:
            raise ShuffleQuotaExceeded(
                f"the jobs of this cluster keep {whole} bytes of shuffles, {limit} are allowed",
                "raise shuffle.cluster_quota_mb, or wait until jobs have ended",
            )
