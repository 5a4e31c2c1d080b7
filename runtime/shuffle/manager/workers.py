"""The workers of the service: which are connected, and which get new shuffles. Decisions only; the clock is injected.

A worker whose connection closes is lost at once, and usable again as soon as it registers again, unless it does so too
often. A job's report that a worker is unreachable (a hint) affects only that job. The worker is excluded for all jobs
only if several jobs report it within a short time, so that no single job can take workers from others.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sluice.runtime.messages import WorkerAddress
from sluice.runtime.rpc import HeartbeatMonitor
from sluice.runtime.shuffle.control_plane import WorkerRegistration, WorkerReport, WorkerState, WorkerUnknown
from sluice.runtime.shuffle.manager.placement import Candidate

MAX_WORKERS = 1000
HINT_SECONDS = 60.0
"""How long a job's hint counts."""
HINTING_JOBS = 2
"""How many jobs must report a worker before it is excluded for all jobs."""
RETURNS = 4
RETURNS_SECONDS = 300.0
"""A worker that registers again :data:`RETURNS` times within this time is excluded for the rest of it."""
FORGET_LOST_SECONDS = 3600.0
"""How long a lost worker is shown."""


@dataclass(slots=True)
class Worker:
    """One worker.

    ``allowed`` are the jobs that it knows. ``hints`` maps a job to the time when it reported the worker as unreachable.
    ``handed_over`` is set when the worker is drained and other workers have all of its data.
    ``reported`` is set when this instance has sent a report: before, what it keeps is unknown.
    """

    registration: WorkerRegistration
    connected: bool = True
    drained: bool = False
    handed_over: bool = False
    reported: bool = False
    reason: str = ""
    heard_at: float = 0.0
    report: WorkerReport = field(default_factory=WorkerReport)
    allowed: set[str] = field(default_factory=set)
    hints: dict[str, float] = field(default_factory=dict)
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RETURNS))

    @property
    def name(self) -> str:
        """The name in its certificate."""
        return self.registration.name

    @property
    def bytes_kept(self) -> int:
        """The bytes that it keeps of all jobs."""
        return sum(each.bytes for each in self.report.jobs)


class WorkerTable:
    """The registered workers and their states.

    Args:
        heartbeat_timeout: time after which a silent worker is lost, in seconds.
        disk_reserve: free space that a disk needs to take new shuffles, in bytes.
        stalled_after: see :class:`HeartbeatMonitor`.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        *,
        heartbeat_timeout: float,
        disk_reserve: int,
        stalled_after: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reserve = disk_reserve
        self._clock = clock
        self._monitor: HeartbeatMonitor[str] = HeartbeatMonitor(
            heartbeat_timeout, stalled_after=stalled_after, clock=clock
        )
        self._workers: dict[str, Worker] = {}

    @property
    def all(self) -> tuple[Worker, ...]:
        """All known workers, including lost ones."""
        return tuple(self._workers.values())

    def get(self, name: str) -> Worker:
        """Return the worker with this name; raises :class:`WorkerUnknown`."""
        try:
            return self._workers[name]
        except KeyError:
            raise WorkerUnknown(f"there is no ShuffleWorker {name[:80]!r}", "see `sluice shuffle status`") from None

    def address(self, name: str) -> WorkerAddress:
        """Where a worker serves the data channel; raises :class:`WorkerUnknown`."""
        registration = self.get(name).registration
        return WorkerAddress(name=name, host=registration.host, port=registration.port)

    def has_room(self, name: str) -> bool:
        """Whether ``name`` may register: it is known, or there are fewer than :data:`MAX_WORKERS` workers."""
        return name in self._workers or len(self._workers) < MAX_WORKERS

    def register(self, registration: WorkerRegistration) -> Worker:
        """Record the registration of a worker, for the first time or again.

        If its process has been restarted, it has only its files: earlier reports and an order to drain no longer count.
        """
        now = self._clock()
        worker = self._workers.get(registration.name)
        if worker is None:
            worker = self._workers[registration.name] = Worker(registration, drained=registration.draining)
        else:
            if worker.registration.instance != registration.instance:
                worker.drained, worker.handed_over = registration.draining, False
                worker.report, worker.reported = WorkerReport(), False
            worker.registration, worker.connected, worker.reason = registration, True, ""
            worker.hints.clear()
            worker.returns.append(now)
        worker.allowed.clear()
        worker.heard_at = now
        self._monitor.beat(worker.name)
        return worker

    def heard(self, name: str, report: WorkerReport) -> Worker:
        """Record a heartbeat of a connected worker; raises :class:`WorkerUnknown`."""
        worker = self.get(name)
        if not worker.connected:
            raise WorkerUnknown(f"ShuffleWorker {name} is not registered", "register again")
        worker.report, worker.reported, worker.heard_at = report, True, self._clock()
        self._monitor.beat(name)
        return worker

    def lose(self, name: str, reason: str) -> None:
        """Record that a worker is lost until it registers again."""
        worker = self._workers.get(name)
        if worker is not None:
            worker.connected, worker.reason = False, reason
            worker.allowed.clear()
            self._monitor.forget(name)

    def expired(self) -> list[Worker]:
        """Return workers that have been silent for too long, each once; also forgets workers lost long ago."""
        now = self._clock()
        for worker in self.all:
            if not worker.connected and now - worker.heard_at > FORGET_LOST_SECONDS:
                del self._workers[worker.name]
        return [self._workers[name] for name in self._monitor.expired()]

    def call_failed(self, name: str) -> None:
        """Record that a call did not reach the worker; several in a row make it expire."""
        self._monitor.call_failed(name)

    def drain(self, name: str, *, wanted: bool = True) -> Worker:
        """Drain this instance of the worker, or end draining; raises :class:`WorkerUnknown`."""
        worker = self.get(name)
        worker.drained, worker.handed_over = wanted, False
        return worker

    def hint(self, job_id: str, names: Collection[str]) -> None:
        """Record that ``job_id`` cannot reach these workers; unknown names are ignored."""
        now = self._clock()
        for name in names:
            worker = self._workers.get(name)
            if worker is not None:
                worker.hints[job_id] = now

    def forget_job(self, job_id: str) -> None:
        """Record that a job has ended. Its hints count until they expire."""
        for worker in self._workers.values():
            worker.allowed.discard(job_id)

    def state(self, worker: Worker) -> tuple[WorkerState, str]:
        """Return the state of a worker, and the reason if it gets no new shuffles."""
        if not worker.connected:
            return WorkerState.LOST, worker.reason
        if worker.drained or worker.report.draining:
            if worker.bytes_kept and worker.handed_over:
                return WorkerState.DRAINED, "it was asked to drain; other workers have all that it keeps"
            report = worker.report  # it may be older than the order to drain, and not include what arrived in between
            holds = worker.bytes_kept or not (worker.handed_over or (report.draining and not report.followed))
            return (WorkerState.DRAINING if holds else WorkerState.DRAINED), "it was asked to drain"
        if reason := self._excluded(worker):
            return WorkerState.EXCLUDED, reason
        return WorkerState.ACTIVE, ""

    def candidates(self, job_id: str) -> list[Candidate]:
        """Return the active workers. Those that ``job_id`` reported recently as unreachable are marked as avoided."""
        now = self._clock()
        found = []
        for worker in self._workers.values():
            if self.state(worker)[0] is not WorkerState.ACTIVE:
                continue
            hinted = now - worker.hints.get(job_id, -HINT_SECONDS) < HINT_SECONDS
            report = worker.report
            usable = [disk for disk in report.disks if disk.usable]
            total = sum(disk.total for disk in usable)
            found.append(
                Candidate(
                    name=worker.name,
                    host=worker.registration.host,
                    disk_used=1 - sum(disk.free for disk in usable) / total if total else 0.0,
                    memory_used=report.memory_used / report.memory_limit if report.memory_limit else 0.0,
                    bytes_kept=worker.bytes_kept,
                    avoided=hinted,
                )
            )
        return found

    def _excluded(self, worker: Worker) -> str:
        now = self._clock()
        disks = worker.report.disks
        if disks and not any(disk.usable and disk.free > self._reserve for disk in disks):
            broken = next((disk.error for disk in disks if disk.error), "")
            return f"no disk has room{': ' + broken if broken else ''}"
        worker.hints = {job: at for job, at in worker.hints.items() if now - at < HINT_SECONDS}
        if len(worker.hints) >= HINTING_JOBS:
            return f"{len(worker.hints)} jobs cannot reach it"
        if len(worker.returns) == RETURNS and now - worker.returns[0] < RETURNS_SECONDS:
            return f"it came back {RETURNS} times within {RETURNS_SECONDS:.0f} s"
        return ""
