"""The RPC endpoint of the ShuffleManager: workers register here, and JobManagers allocate workers for shuffles here.

It carries out the decisions of :class:`~sluice.runtime.shuffle.manager.workers.WorkerTable`, ``JobTable`` and
``choose``. A worker is told of a job before the job is told of the worker. When a job ends, all workers are told at
once; a worker that still holds data of it is told again at its next heartbeat or registration.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sluice.core import PeerRefused, SluiceError
from sluice.runtime.ha import HaError
from sluice.runtime.messages import OutputLocation, ShuffleAllocation
from sluice.runtime.rpc import FencedRpcEndpoint, RemotePeer, stall_limit
from sluice.runtime.shuffle.config import ShuffleConfig
from sluice.runtime.shuffle.control_plane import (
    INTEGRITY_KEY_BYTES,
    SHUFFLE_MANAGER,
    SHUFFLE_WORKER,
    LiveJob,
    NoShuffleService,
    NotConnected,
    ShuffleManagerGateway,
    ShuffleOverview,
    ShuffleRequest,
    ShuffleSession,
    ShuffleWorkerGateway,
    WorkerAccepted,
    WorkerRegistration,
    WorkerReport,
    WorkerState,
    WorkerUnknown,
)
from sluice.runtime.shuffle.manager.hand_overs import HandOvers, WorkerLink
from sluice.runtime.shuffle.manager.job_store import ShuffleJobStore
from sluice.runtime.shuffle.manager.jobs import Job, JobTable, Quotas, Shuffle
from sluice.runtime.shuffle.manager.placement import choose
from sluice.runtime.shuffle.manager.successor_choice import shuffles_on
from sluice.runtime.shuffle.manager.views import bytes_of_jobs, explain_shortage, job_view, worker_view
from sluice.runtime.shuffle.manager.workers import Worker, WorkerTable

_LOG = logging.getLogger(__name__)

TOKEN_BYTES = 16
MIB = 1 << 20
MIN_SECRET_BYTES = 16
MAX_PARTITIONS = 1 << 24
MAX_LOCATED = 10_000
"""Maximum workers in one call of :meth:`ShuffleManager.locate`; the rest are ignored."""
MAX_WORKER_JOBS = 20_000
"""Maximum jobs that a worker may report."""


@dataclass(frozen=True, slots=True)
class _Opening:
    """A new job that is being stored."""

    owner: str
    task: asyncio.Task[Job]


class ShuffleManager(FencedRpcEndpoint):
    """The endpoint of the leading ShuffleManager. It exists for as long as its process leads.

    Args:
        config: the settings of the service.
        store: stores the live jobs, under this leadership.
        clock: returns epoch seconds, for display.
        monotonic: returns monotonic seconds, for timeouts and leases.
    """

    def __init__(
        self,
        config: ShuffleConfig,
        store: ShuffleJobStore,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(SHUFFLE_MANAGER, ShuffleManagerGateway)
        self.fencing_token = secrets.token_bytes(TOKEN_BYTES)
        self._config = config
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._watch_period = min(config.heartbeat_interval, config.job_lease / 8)
        self._workers = WorkerTable(
            heartbeat_timeout=config.heartbeat_timeout,
            disk_reserve=config.disk_reserve_mb * MIB,
            stalled_after=stall_limit(self._watch_period, config.heartbeat_timeout),
            clock=monotonic,
        )
        quotas = Quotas(config.job_quota_mb * MIB, config.cluster_quota_mb * MIB)
        self._jobs = JobTable(lease=config.job_lease, quotas=quotas, clock=monotonic)
        self._links: dict[str, WorkerLink] = {}
        self._clusters: dict[RemotePeer, str] = {}
        self._opening: dict[str, _Opening] = {}
        self._hand_overs = HandOvers(self._jobs, self._workers, self._links, store, self._allow)

    async def on_start(self) -> None:
        """Take over the live jobs and recorded hand-overs of an earlier leader, and start to watch workers and leases.

        Each job gets a full lease.
        """
        for job in await self._store.recover():
            job.recovered = True
            handed_over, job.shuffles = job.shuffles, {}
            self._jobs.add(job)
            for number, shuffle in handed_over.items():
                self._jobs.place(job, number, shuffle)
        if self._jobs.all:
            _LOG.info("took over %d live jobs", len(self._jobs.all))
        self._watch()

    # --- workers ----------------------------------------------------------------------------------------

    async def register_worker(self, registration: WorkerRegistration) -> WorkerAccepted:
        """Register a worker under the name in its certificate; raises ``PeerRefused`` for any other name."""
        peer, identity, name = self.caller.peer, self.caller.identity, registration.name
        if peer is None or identity.name != name:
            raise PeerRefused(f"{identity} cannot register as {name[:80]!r}", "the name must be the certificate's")
        if not (registration.host and 0 < registration.port < 1 << 16) or len(registration.jobs) > MAX_WORKER_JOBS:
            raise PeerRefused(f"{identity} registers with an unusable address or too many jobs")
        if not self._workers.has_room(name):
            raise PeerRefused("too many ShuffleWorkers are registered already")
        earlier = self._links.get(name)
        if earlier is not None and earlier.peer is not peer:
            self.hand_off(earlier.peer.close("registered again"))
        worker = self._workers.register(registration)
        self._links[name] = WorkerLink(peer, peer.gateway(ShuffleWorkerGateway, SHUFFLE_WORKER))
        self.watch(peer, self._closed, name, peer)
        live = [job for job_id in registration.jobs if (job := self._jobs.get(job_id)) is not None]
        worker.allowed.update(job.job_id for job in live)
        _LOG.info("registered %s at %s:%d, %d live jobs", identity, registration.host, registration.port, len(live))
        if worker.drained:
            self._send_drain(name, wanted=True)
        return WorkerAccepted(
            fencing_token=self.fencing_token or b"",
            heartbeat_interval=self._config.heartbeat_interval,
            heartbeat_timeout=self._config.heartbeat_timeout,
            live_jobs=tuple(LiveJob(job_id=job.job_id, integrity_key=job.integrity_key) for job in live),
        )

    async def heartbeat(self, report: WorkerReport) -> None:
        """Record what a worker reports; raises ``WorkerUnknown`` unless it registered over this connection."""
        name = self.caller.identity.name
        link = self._links.get(name)
        if link is None or link.peer is not self.caller.peer:
            raise WorkerUnknown(f"ShuffleWorker {name} is not registered over this connection", "register again")
        self._workers.heard(name, report)
        for kept in report.jobs[:MAX_WORKER_JOBS]:
            if self._jobs.get(kept.job_id) is None and kept.job_id not in self._opening:
                self._begin_release(link, kept.job_id)

    def _closed(self, name: str, peer: RemotePeer) -> None:
        link = self._links.get(name)
        if link is not None and link.peer is peer:
            self._lose(name, "its connection closed")

    def _lose(self, name: str, reason: str) -> None:
        _LOG.warning("lost ShuffleWorker %s: %s", name, reason)
        self._links.pop(name, None)
        self._workers.lose(name, reason)

    def _watch(self) -> None:
        # Schedule the next run first, so that an exception below does not end the watching.
        self.call_later(self._watch_period, self._watch)
        for look in (self._watch_workers, self._watch_hand_overs, self._watch_leases):
            with self.reporting_failures():
                look()

    def _watch_workers(self) -> None:
        for worker in self._workers.expired():
            link = self._links.get(worker.name)
            if link is not None:
                self.hand_off(link.peer.close("no heartbeat"))
            self._lose(worker.name, f"no heartbeat for {self._config.heartbeat_timeout:g} s")

    def _watch_hand_overs(self) -> None:
        for worker in self._workers.all:
            if self._hand_overs.due(worker):
                advanced = self._hand_overs.advance(worker)
                self.hand_off(advanced, failed=self._failure_logger(f"handing over the data of {worker.name}"))

    def _watch_leases(self) -> None:
        for job in self._jobs.expired():
            _LOG.warning("the lease of job %s expired: its data is removed", job.job_id)
            self.hand_off(self._forget(job.job_id), failed=self._failure_logger("forgetting a job"))

    # --- JobManagers --------------------------------------------------------------------------------------

    async def connect_cluster(self, secret: bytes) -> ShuffleSession:
        """Record which cluster calls over this connection; raises ``PeerRefused`` if it may not use the service."""
        peer = self.caller.peer
        if peer is None or len(secret) < MIN_SECRET_BYTES:
            raise PeerRefused(f"{self.caller.identity} presents no secret of a cluster")
        # A role does not identify the cluster of a JobManager, and an admitted JobManager may drain any worker.
        if self._config.jobmanagers and self.caller.identity.name not in self._config.jobmanagers:
            raise PeerRefused(f"{self.caller.identity} may not use this service", "name it in shuffle.jobmanagers")
        if peer not in self._clusters:
            self.watch(peer, self._clusters.pop, peer, None)
        self._clusters[peer] = hashlib.sha256(secret).hexdigest()
        return ShuffleSession(fencing_token=self.fencing_token or b"", job_lease=self._config.job_lease)

    def _cluster(self) -> str:
        """The owner digest of the calling JobManager's cluster; raises ``NotConnected``."""
        peer = self.caller.peer
        owner = self._clusters.get(peer) if peer is not None else None
        if owner is None:
            raise NotConnected(f"{self.caller.identity} has not called connect_cluster over this connection")
        return owner

    async def allocate(self, request: ShuffleRequest) -> ShuffleAllocation:
        """Choose workers for a shuffle; answers when all of them know the job."""
        owner = self._cluster()
        if not 0 < request.partitions <= MAX_PARTITIONS or request.replicas < 1 or request.shuffle_number < 0:
            raise PeerRefused(
                f"shuffle {request.shuffle_number} with {request.partitions} partitions and {request.replicas} replicas"
                " is not a valid request"
            )
        self._jobs.own(request.job_id, owner)
        return self.deferred(self._allocate(request, owner))

    async def _allocate(self, request: ShuffleRequest, owner: str) -> ShuffleAllocation:
        job = await self._job(request.job_id, owner)
        known = job.shuffles.get(request.shuffle_number)
        if known is None:
            self._jobs.check_quota(job, bytes_of_jobs(self._workers.all))
        names = await self._allowed_workers(job, request)
        if len(names) < request.replicas:
            raise NoShuffleService(explain_shortage(self._states(), request.replicas), "see `sluice shuffle status`")
        known = job.shuffles.get(request.shuffle_number)
        if known is not None:
            # The next JobMaster asks again. Outputs may be on the workers of before, or on their successors.
            registered = {each.name for each in self._workers.all}
            names = tuple(dict.fromkeys((*names, *(each for each in known.workers if each in registered))))
        successors = known.successors if known is not None else {}
        self._jobs.place(job, request.shuffle_number, Shuffle(request.partitions, names, successors))
        return ShuffleAllocation(
            shuffle_number=request.shuffle_number,
            workers=tuple(self._workers.address(name) for name in names),
            replicas=request.replicas,
            integrity_key=job.integrity_key,
        )

    async def _job(self, job_id: str, owner: str) -> Job:
        """Return the live job. A new job is durable before this returns."""
        job = self._jobs.own(job_id, owner)
        if job is not None:
            return job
        opening = self._opening.get(job_id)
        if opening is None:
            self._jobs.check_open(job_id, owner)
            new = Job(job_id, owner, secrets.token_bytes(INTEGRITY_KEY_BYTES))
            opening = _Opening(owner, self.hand_off(self._open(new), failed=lambda _: None))
            self._opening[job_id] = opening
            opening.task.add_done_callback(lambda _: self._opening.pop(job_id, None))
        opened = await asyncio.shield(opening.task)
        self._jobs.own(job_id, owner)
        self._check_live(opened)
        return opened

    async def _open(self, job: Job) -> Job:
        try:
            await self._store.add(job)
        except HaError as error:  # leadership is lost, or the storage is unavailable: the caller retries
            raise NoShuffleService(f"job {job.job_id} cannot be stored: {error}") from error
        return self._jobs.add(job)

    def _check_live(self, job: Job) -> None:
        if self._jobs.get(job.job_id) is not job:
            raise NoShuffleService(f"job {job.job_id} was released meanwhile")

    async def _allowed_workers(self, job: Job, request: ShuffleRequest) -> tuple[str, ...]:
        """Choose workers and tell them of the job; workers that do not answer are replaced by others."""
        failed: set[str] = set()
        while True:
            candidates = self._workers.candidates(job.job_id)
            names = choose(
                [each for each in candidates if each.name not in failed],
                self._jobs.assigned,
                partitions=request.partitions,
                replicas=request.replicas,
                limit=self._config.workers_per_shuffle,
            )
            unaware = [name for name in names if job.job_id not in self._workers.get(name).allowed]
            if not unaware:
                return names
            answers = await asyncio.gather(*(self._allow(name, job) for name in unaware))
            self._check_live(job)
            failed.update(name for name, aware in zip(unaware, answers, strict=True) if not aware)

    async def _allow(self, name: str, job: Job) -> bool:
        link = self._links.get(name)
        if link is None:
            return False
        try:
            await link.gateway.allow_job(LiveJob(job_id=job.job_id, integrity_key=job.integrity_key))
        except SluiceError as error:
            _LOG.warning("ShuffleWorker %s does not accept job %s: %s", name, job.job_id, error)
            self._workers.call_failed(name)
            return False
        if self._links.get(name) is not link:
            return False  # it registered again in the meantime, and no longer knows the job
        self._workers.get(name).allowed.add(job.job_id)
        return True

    async def locate(self, job_id: str, shuffle_number: int, workers: tuple[str, ...]) -> tuple[OutputLocation, ...]:
        """Return where the outputs that were pushed to these workers are now, the successor of each worker first."""
        job = self._jobs.own(job_id, self._cluster())
        if job is None:
            return ()
        shuffle = job.shuffles.get(shuffle_number)
        return tuple(
            OutputLocation(pushed_to=name, address=self._workers.address(holder))
            for name in workers[:MAX_LOCATED]
            # Outputs that were pushed after the hand-over are still on the worker itself.
            for holder in dict.fromkeys((shuffle.keeper(name) if shuffle is not None else name, name))
            if holder in self._links
        )

    def _states(self) -> list[tuple[Worker, tuple[WorkerState, str]]]:
        return [(worker, self._workers.state(worker)) for worker in self._workers.all]

    async def release_shuffle(self, job_id: str, shuffle_number: int) -> None:
        """Remove the data of one shuffle on all workers."""
        job = self._jobs.own(job_id, self._cluster())
        if job is not None:
            self._release_shuffle(job, shuffle_number)

    async def release_before(self, job_id: str, shuffle_number: int) -> None:
        """Remove the data of all shuffles of a job with lower numbers."""
        job = self._jobs.own(job_id, self._cluster())
        if job is None:
            return None
        for earlier in [each for each in job.shuffles if each < shuffle_number]:
            self._release_shuffle(job, earlier)
        return self.deferred(self._release_found_before(job, shuffle_number)) if job.recovered else None

    async def _release_found_before(self, job: Job, shuffle_number: int) -> None:
        """Ask the workers for the shuffles to release: this manager has no list of those from before its leadership."""
        for earlier in await self._hand_overs.kept_before(job, shuffle_number):
            self._release_shuffle(job, earlier)

    def _release_shuffle(self, job: Job, shuffle_number: int) -> None:
        """Release a shuffle on all workers: after a change of leaders it is unknown which of them keep it."""
        self._jobs.forget_shuffle(job, shuffle_number)
        if self._store.has_noted(job.job_id, shuffle_number):
            recorded = self._hand_overs.record(job, shuffle_number)
            self.hand_off(recorded, failed=self._failure_logger("removing the record of a shuffle's hand-overs"))
        for link in self._links.values():
            released = link.gateway.release_shuffle(job.job_id, shuffle_number)
            self.hand_off(released, failed=self._failure_logger("releasing a shuffle"))

    async def release_job(self, job_id: str) -> None:
        """End a job: its data is removed and it cannot begin again."""
        owner = self._cluster()
        opening = self._opening.get(job_id)
        if self._jobs.own(job_id, owner) is None and (opening is None or opening.owner != owner):
            return None
        self._jobs.remove(job_id)
        return self.deferred(self._forget(job_id))

    async def _forget(self, job_id: str) -> None:
        """Remove everything of a job that has ended. Workers that do not answer now are told again later."""
        if (opening := self._opening.get(job_id)) is not None:
            await asyncio.wait({opening.task})
            self._jobs.remove(job_id)
        self._workers.forget_job(job_id)
        try:
            await self._hand_overs.forget(job_id)
        finally:
            told = (self._send_release(link, job_id) for link in tuple(self._links.values()))
            await asyncio.gather(*told)

    async def _send_release(self, link: WorkerLink, job_id: str) -> None:
        try:
            await link.gateway.release_job(job_id)
        except SluiceError as error:
            _LOG.info("%s was not told that job %s has ended: %s", link.peer.identity, job_id, error)

    def _begin_release(self, link: WorkerLink, job_id: str) -> None:
        self.hand_off(self._send_release(link, job_id))

    async def renew_job_leases(self, job_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Renew the leases of jobs; returns those that are unknown or belong to another cluster."""
        return tuple(self._jobs.renew(job_ids, self._cluster()))

    async def workers_lost(self, job_id: str, workers: tuple[str, ...]) -> None:
        """Record that a job cannot reach these workers."""
        if self._jobs.own(job_id, self._cluster()) is not None:
            _LOG.info("job %s cannot reach %s", job_id, ", ".join(workers)[:500])
            self._workers.hint(job_id, workers)

    async def drain(self, worker: str, wanted: bool) -> None:
        """Give a worker no new shuffles and move its data to others, or let it take new shuffles again."""
        self._cluster()
        name = self._workers.drain(worker, wanted=wanted).name
        _LOG.info("%s %s ShuffleWorker %s", self.caller.identity, "drains" if wanted else "resumes", name)
        self._send_drain(name, wanted=wanted)
        if not wanted:  # the worker still has the data that it handed over
            for kept in shuffles_on(name, self._jobs.all):
                if kept.shuffle.successors.pop(name, ""):
                    recorded = self._hand_overs.record(kept.job, kept.number)
                    self.hand_off(recorded, failed=self._failure_logger("recording that a shuffle was not handed over"))

    def _send_drain(self, name: str, *, wanted: bool) -> None:
        link = self._links.get(name)
        if link is not None:
            self.hand_off(link.gateway.drain(wanted), failed=self._failure_logger(f"telling {name} to drain"))

    # --- what is shown --------------------------------------------------------------------------------------

    async def overview(self) -> ShuffleOverview:
        """Return all workers, and the jobs of the calling cluster."""
        owner = self._cluster()
        own = [job for job in self._jobs.all if job.owner == owner]
        visible = {job.job_id for job in own}
        return ShuffleOverview(
            manager=str(self.service.spiffe_id),
            workers=tuple(
                worker_view(worker, state, reason, visible, self._clock() - (self._monotonic() - worker.heard_at))
                for worker, (state, reason) in self._states()
            ),
            jobs=tuple(job_view(job, self._workers.all, self._jobs.lease_left(job)) for job in own),
        )

    def _failure_logger(self, what: str) -> Callable[[BaseException], None]:
        return partial(self._log_failure, what)

    def _log_failure(self, what: str, error: BaseException) -> None:
        if isinstance(error, SluiceError):
            _LOG.info("%s failed: %s", what, error)
        else:
            self.on_failure(error)
