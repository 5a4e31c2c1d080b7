"""The state of a job while one of its attempts runs, and its views. No I/O."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import cache

import msgspec

from sluice.runtime.checkpoint import CheckpointLedger
from sluice.runtime.jobmanager.attempt.decisions.actions import KeepHistory, Outbox, StartTimer, Timer
from sluice.runtime.jobmanager.attempt.decisions.executor_pool import ExecutorPool, ExecutorState
from sluice.runtime.jobmanager.attempt.decisions.history_log import MAX_EXECUTORS_KEPT, HistoryLog
from sluice.runtime.jobmanager.attempt.decisions.savepoint_requests import SavepointRequests
from sluice.runtime.jobmanager.job_state import ENDING, JobLifecycle
from sluice.runtime.jobmanager.store import JobHistory
from sluice.runtime.jobmanager.views import ExecutorView, Failure, JobDetail, JobRecord
from sluice.runtime.messages import Evidence, ExecutorExit, JobProgress, JobState, StageTable
from sluice.runtime.node import merge

HISTORY_DELAY_SECONDS = 1.0
"""How long a changed history waits for further changes before it is written."""


class JobStatus:
    """The state of a job, which the components of an attempt share and change, and from which its views are made.

    Args:
        before: the record of the job, with the history of its earlier attempts.
        outbox: receives the actions that follow from a change.
        clock: epoch seconds.
    """

    def __init__(
        self, before: JobRecord, number: int, pool: ExecutorPool, outbox: Outbox, clock: Callable[[], float]
    ) -> None:
        self.job_id, self.number, self.submission = before.detail.id, number, before.submission
        self.lifecycle = JobLifecycle.resume(before.detail.state, before.detail.timestamps)
        self.history = HistoryLog.of(before)
        self.savepoints = SavepointRequests(before.savepoints)
        self.checkpoints = CheckpointLedger(number)
        self.failure: Failure | None = None
        self.pending_reason = ""
        self.progress = JobProgress()
        self.stages = StageTable()
        self.evidence = Evidence()
        self.seen = Evidence()
        """The part of the evidence that this process recorded itself."""
        self.awaited: dict[int, ExecutorView] = {}
        """Executors from an earlier leader that no TaskManager has offered yet, by number."""
        self._started_at = before.detail.start_time
        self._earlier_evidence, self._earlier_seen = before.evidence, before.seen
        self._pool = pool
        self._outbox = outbox
        self._clock = clock
        self._history_due = False

    @property
    def state(self) -> JobState:
        """The state of the job."""
        return self.lifecycle.state

    @property
    def over(self) -> bool:
        """Whether this attempt no longer wants slots or executors."""
        return self.state in ENDING or self.state.terminal or self.state in {JobState.RESTARTING, JobState.SUSPENDED}

    @property
    def now_ms(self) -> int:
        """The current time in epoch milliseconds."""
        return int(self._clock() * 1000)

    def enter(self, state: JobState) -> None:
        """Enter the next state of the job; raises :class:`IllegalTransition`."""
        self.lifecycle.transition_to(state, self.now_ms)
        self._outbox.publish()

    def note(self, error: str, traceback: str = "", *, task: str = "", executor: int | None = None) -> None:
        """Add an exception that did not end the attempt; it is written soon, together with other changes."""
        found = self._pool.get(executor) if executor is not None else None
        taskmanager = found.slot.taskmanager if found is not None else ""
        self.history.note(self.now_ms, error, traceback, task=task, executor=executor, taskmanager=taskmanager)
        self.history_changed()

    def history_changed(self) -> None:
        """Write the history soon."""
        if not self._history_due:
            self._history_due = True
            self._outbox.add(StartTimer(Timer.HISTORY, HISTORY_DELAY_SECONDS))

    def keep_history(self) -> None:
        """Write the history now, for the next leader. The history of an ended job is part of its result instead."""
        self._history_due = False
        if not self.state.terminal:
            history = JobHistory(
                attempts=self.history.attempts,
                exceptions=self.history.exceptions,
                executors=self._executors()[-MAX_EXECUTORS_KEPT:],
                processes=self.history.processes,
                processes_dropped=self.history.processes_dropped,
            )
            self._outbox.add(KeepHistory(history))

    def await_executors(self) -> None:
        """Await the executors from an earlier leader, which may still run."""
        live = [each for each in self.history.executors if each.state != ExecutorState.EXITED]
        self.awaited = {each.id: each for each in live}
        self.history.executors = tuple(each for each in self.history.executors if each.id not in self.awaited)

    def executor_back(self, executor_id: int) -> None:
        """Note that an awaited executor runs; the pool now keeps it."""
        self.awaited.pop(executor_id, None)
        self.history_changed()

    def executor_gone(self, exit_report: ExecutorExit, taskmanager: str) -> bool:
        """Note that an awaited executor has ended; False when none with this number ran on ``taskmanager``."""
        view = self.awaited.get(exit_report.executor_id)
        if view is None or view.taskmanager != taskmanager:
            return False
        self._missing(view, exit_report.reason)
        return True

    def executors_missing(self) -> None:
        """Note that the executors that are still awaited are gone."""
        for view in tuple(self.awaited.values()):
            self._missing(view, "it did not come back when the leader changed")

    def _missing(self, view: ExecutorView, reason: str) -> None:
        del self.awaited[view.id]
        gone = msgspec.structs.replace(view, state=ExecutorState.EXITED, exit_reason=reason)
        self.history.executors = (*self.history.executors, gone)[-MAX_EXECUTORS_KEPT:]
        self.history_changed()

    def record(self) -> JobRecord:
        """The current record of the job."""
        connections = merge(self._earlier_evidence, self.evidence)
        seen = merge(self._earlier_seen, self.seen)
        return JobRecord(
            submission=self.submission,
            detail=self.detail(),
            connections=connections.connections,
            connections_dropped=connections.dropped,
            exceptions=self.history.exceptions,
            checkpoints=self.checkpoints.view,
            savepoints=self.savepoints.requests,
            stages=self.stages,
            seen_connections=seen.connections,
            seen_dropped=seen.dropped,
            processes=self.history.processes,
            processes_dropped=self.history.processes_dropped,
            sluice_version=_version("sluice"),
            spark_version=_version("pyspark"),
        )

    def detail(self) -> JobDetail:
        """The current view of the job."""
        state, now = self.state, self.now_ms
        end = self.lifecycle.timestamps[state] if state.terminal else None
        return JobDetail(
            id=self.job_id,
            name=self.submission.name,
            owner=self.submission.owner,
            kind=self.submission.kind,
            state=state,
            start_time=self._started_at,
            end_time=end,
            duration_ms=(end if end is not None else now) - self._started_at,
            attempt=self.number,
            progress=self.progress,
            executors=self._executors(),
            timestamps={str(each): at for each, at in self.lifecycle.timestamps.items()},
            failure=self.failure,
            pending_reason="" if state.terminal else self.pending_reason,
            attempts=self.history.attempts,
            checkpoints=self.checkpoints.view.completed,
            owner_roles=self.submission.owner_roles,
            owner_groups=self.submission.owner_groups,
        )

    def _executors(self) -> tuple[ExecutorView, ...]:
        """The executors of earlier attempts and of this one, awaited ones included."""
        mine = (
            ExecutorView(
                id=each.id,
                taskmanager=each.slot.taskmanager,
                slot=each.slot.slot,
                state=each.state,
                exit_reason=each.exit_reason,
                started_at=each.started_at,
            )
            for each in self._pool.executors
        )
        return (*self.history.executors, *self.awaited.values(), *mine)


@cache
def _version(package: str) -> str:
    return importlib.metadata.version(package)
