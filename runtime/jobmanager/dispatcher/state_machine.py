"""The lives of all jobs under one leader as a pure state machine: events in, actions out, no I/O.

Each public method that changes something is an event: a call of REST or of a JobMaster, or the outcome of an action.
The actions that it causes wait for :meth:`DispatcherStateMachine.take_actions`, in order. The Dispatcher
(:mod:`sluice.runtime.jobmanager.dispatcher.endpoint`) carries it out.

A job is accepted once it is durable, waits for its turn in the queue, and has one attempt after the other until its
result is durable. Then everything but its result is removed; the result stays until newer ones replace it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.runtime.jobmanager.dispatcher.actions import (
    Accept,
    Action,
    BeginAttempt,
    CancelMaster,
    CleanUp,
    Conclude,
    EndAttempt,
    Forget,
    Recover,
    RemoveMaster,
    StartDelay,
    StartMaster,
)
from sluice.runtime.jobmanager.dispatcher.job_queue import JobLimits, JobQueue
from sluice.runtime.jobmanager.errors import JobAlreadyTerminal, JobNotFound, QuotaExceeded, SubmissionRejected
from sluice.runtime.jobmanager.restart_strategies import NoRestart, RestartBackoff
from sluice.runtime.messages import JobState


class Phase(enum.Enum):
    """The phase of a job."""

    ACCEPTING = enum.auto()
    """The job is being made durable."""
    RECOVERING = enum.auto()
    """An earlier leader accepted it, and its files are being fetched."""
    QUEUED = enum.auto()
    """It waits for its turn."""
    BEGINNING = enum.auto()
    """Its next attempt is being recorded."""
    STARTING = enum.auto()
    """Its JobMaster is being started."""
    RUNNING = enum.auto()
    """It has a JobMaster."""
    RESTARTING = enum.auto()
    """The rest of its last attempt is being ended."""
    DELAYED = enum.auto()
    """Its next attempt begins after a while."""
    CONCLUDING = enum.auto()
    """It has no JobMaster, and its result is being stored."""
    ENDED = enum.auto()
    """Its result is durable, and the rest is being removed."""
    CLEAN = enum.auto()
    """Nothing is left of it but its result."""


_UNDER_A_MASTER = frozenset({Phase.STARTING, Phase.RUNNING})
_TERMINAL = frozenset({Phase.ENDED, Phase.CLEAN})


@dataclass(slots=True)
class Job:
    """The state of one job.

    Attributes:
        files: sizes by digest.
        cancelled: its cancellation is durable.
        delay: seconds before its next attempt.
    """

    id: str
    owner: str
    phase: Phase
    files: Mapping[str, int] = field(default_factory=dict)
    restarts: RestartBackoff = field(default_factory=NoRestart)
    cancelled: bool = False
    delay: float = 0.0


class DispatcherStateMachine:
    """All jobs, in the order in which they came.

    Args:
        limits: how many jobs run and wait.
        kept: how many results are kept.
        blob_quota: bytes that the files of one owner's unfinished jobs may have together; 0: any number.
    """

    def __init__(self, limits: JobLimits, *, kept: int, blob_quota: int = 0) -> None:
        self.jobs: dict[str, Job] = {}
        self._queue = JobQueue(limits)
        self._kept = kept
        self._blob_quota = blob_quota
        self._actions: list[Action] = []

    def take_actions(self) -> list[Action]:
        """The actions that events have caused since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def pending_reason(self, job_id: str) -> str:
        """Why a job waits for its turn; empty when it does not."""
        return self._queue.reason(job_id)

    # --- new jobs -------------------------------------------------------------------------------------------

    def submitted(self, job_id: str, owner: str, files: Mapping[str, int], restarts: RestartBackoff) -> None:
        """Add a new job.

        Raises:
            SubmissionRejected: there is a job of that id.
            QuotaExceeded: together the files of its owner's unfinished jobs would be too large.
            TooManyJobs: not even the queue has room.
        """
        self.check_unknown(job_id)
        self._check_quota(owner, files)
        self._queue.enter(job_id, owner)
        self.jobs[job_id] = Job(job_id, owner, Phase.ACCEPTING, files, restarts)
        self._do(Accept(job_id))

    def check_unknown(self, job_id: str) -> None:
        """Raise :class:`SubmissionRejected` when there is a job of that id."""
        if job_id in self.jobs:
            raise SubmissionRejected(f"there is a job {job_id} already")

    def _check_quota(self, owner: str, files: Mapping[str, int]) -> None:
        together = dict(files)
        for job in self.jobs.values():
            if job.owner == owner and job.phase not in _TERMINAL:
                together |= job.files
        size = sum(together.values())
        if 0 < self._blob_quota < size:
            raise QuotaExceeded(
                f"the files of the unfinished jobs of {owner} would have {size} bytes together",
                f"at most {self._blob_quota} (limits.max_blob_bytes_per_user): wait until one has ended",
            )

    def accepted(self, job_id: str) -> None:
        """Note that a new job is durable."""
        self._await_turn(self.jobs[job_id])

    def dropped(self, job_id: str) -> None:
        """Note that a new job was not accepted."""
        del self.jobs[job_id]
        self._leave_queue(job_id)

    def recovered(
        self,
        job_id: str,
        owner: str,
        files: Mapping[str, int],
        restarts: RestartBackoff,
        *,
        cancelled: bool,
        resumed: int = 0,
    ) -> None:
        """Add a job that an earlier leader accepted and did not finish.

        ``resumed`` is its latest attempt if that one's driver may still run; else 0.
        """
        self.jobs[job_id] = Job(job_id, owner, Phase.RECOVERING, files, restarts, cancelled)
        if resumed:
            self.jobs[job_id].phase = Phase.STARTING
            self._queue.enter_running(job_id, owner)
            self._do(StartMaster(job_id, resumed, resumed=True))
            return
        if not cancelled:
            self._queue.enter_again(job_id, owner)
        self._do(Recover(job_id))

    def recovered_result(self, job_id: str, owner: str, *, clean: bool) -> None:
        """Add a job that ended under an earlier leader; unless it is ``clean``, the rest of it has to be removed."""
        self.jobs[job_id] = Job(job_id, owner, Phase.CLEAN if clean else Phase.ENDED)
        if not clean:
            self._do(CleanUp(job_id))

    def ready(self, job_id: str) -> None:
        """Note that the job's files were fetched."""
        self._await_turn(self.jobs[job_id])

    # --- attempts -------------------------------------------------------------------------------------------

    def attempt_begun(self, job_id: str, attempt: int) -> None:
        """Note that the start of this attempt is durable."""
        job = self.jobs[job_id]
        if job.cancelled:
            self._conclude(job, JobState.CANCELED)
        else:
            job.phase = Phase.STARTING
            self._do(StartMaster(job_id, attempt))

    def master_started(self, job_id: str) -> None:
        """Note that the JobMaster runs; its own events may have come before this one."""
        job = self.jobs[job_id]
        if job.phase is Phase.STARTING:
            job.phase = Phase.RUNNING
            if job.cancelled:
                self._do(CancelMaster(job_id))

    def failed_to_start(self, job_id: str, error: str) -> None:
        """Note that a job cannot be recovered, or that its next attempt cannot start."""
        self._conclude(self.jobs[job_id], JobState.FAILED, error)

    def attempt_failed(self, job_id: str, now: float) -> float | None:
        """Decide about the next attempt: the seconds before it, or None when there is none.

        ``now`` is in epoch seconds.
        """
        job = self._job(job_id)
        return None if job.cancelled else job.restarts.failed(now)

    def restarting(self, job_id: str, delay: float) -> None:
        """Note that an attempt has given everything back; the next one begins after ``delay`` seconds."""
        job = self._job(job_id)
        if job.phase in _UNDER_A_MASTER:
            job.phase, job.delay = Phase.RESTARTING, delay
            self._do(EndAttempt(job_id))

    def attempt_over(self, job_id: str) -> None:
        """Note that nothing of the last attempt is left."""
        job = self.jobs[job_id]
        if job.cancelled:
            self._conclude(job, JobState.CANCELED)
        else:
            job.phase = Phase.DELAYED
            self._do(StartDelay(job_id, job.delay))

    def delay_over(self, job_id: str) -> None:
        """Let the next attempt begin."""
        job = self.jobs.get(job_id)
        if job is not None and job.phase is Phase.DELAYED:  # else it was cancelled meanwhile
            self._await_turn(job)

    # --- the end --------------------------------------------------------------------------------------------

    def check_cancellable(self, job_id: str, state: JobState) -> None:
        """Raise ``JobNotFound`` or ``JobAlreadyTerminal`` unless the job, now in ``state``, can be cancelled."""
        if self._job(job_id).phase in _TERMINAL:
            raise JobAlreadyTerminal(f"job {job_id} is {state}")

    def cancelled(self, job_id: str) -> bool:
        """Note that the cancellation is durable; returns whether the JobMaster must be told now."""
        job = self._job(job_id)
        job.cancelled = True
        if job.phase not in _UNDER_A_MASTER:
            self._leave_queue(job_id)  # it no longer needs its place in the queue
        if job.phase in {Phase.QUEUED, Phase.DELAYED}:
            self._conclude(job, JobState.CANCELED)
        return job.phase is Phase.RUNNING

    def ended(self, job_id: str) -> None:
        """Note that the result is durable, or refused for good."""
        job = self._job(job_id)
        if job.phase in _TERMINAL:
            return  # its JobMaster repeats this when no answer comes in time
        concluded, job.phase = job.phase is Phase.CONCLUDING, Phase.ENDED
        self._leave_queue(job_id)
        if concluded:
            self._do(CleanUp(job_id))

    def released(self, job_id: str) -> None:
        """Note that the JobMaster of an ended job has given everything back."""
        if self._job(job_id).phase is Phase.ENDED:
            self._do(RemoveMaster(job_id))

    def cleaned(self, job_id: str) -> None:
        """Note that only the result of a job is left."""
        job = self.jobs.get(job_id)
        if job is not None:
            job.phase = Phase.CLEAN
        self.trim()

    def trim(self) -> None:
        """Forget the oldest results beyond the number that is kept."""
        clean = [job.id for job in self.jobs.values() if job.phase is Phase.CLEAN]
        for job_id in clean[: max(0, len(clean) - self._kept)]:
            del self.jobs[job_id]
            self._do(Forget(job_id))

    def make_room(self) -> str | None:
        """Forget the oldest result to make room for a new one; returns its job, None when there is none."""
        oldest = next((job.id for job in self.jobs.values() if job.phase is Phase.CLEAN), None)
        if oldest is not None:
            del self.jobs[oldest]
        return oldest

    # --- inside ---------------------------------------------------------------------------------------------

    def _job(self, job_id: str) -> Job:
        try:
            return self.jobs[job_id]
        except KeyError:
            raise JobNotFound(f"there is no job {job_id[:64]!r}", "see the list of jobs") from None

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _await_turn(self, job: Job) -> None:
        job.phase = Phase.QUEUED
        if job.cancelled:
            self._conclude(job, JobState.CANCELED)
        elif self._queue.may_run(job.id):
            job.phase = Phase.BEGINNING
            self._do(BeginAttempt(job.id))

    def _leave_queue(self, job_id: str) -> None:
        for admitted in self._queue.leave(job_id):
            job = self.jobs[admitted]
            if job.phase is Phase.QUEUED:  # else it is not ready yet
                self._await_turn(job)

    def _conclude(self, job: Job, state: JobState, error: str = "") -> None:
        job.phase = Phase.CONCLUDING
        self._do(Conclude(job.id, state, error))
