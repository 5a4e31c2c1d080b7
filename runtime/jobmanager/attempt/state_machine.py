"""The life of one attempt of a job as a pure state machine: events in, actions out, no I/O.

Each public method is an event: a call of the driver, a TaskManager or the Dispatcher, the outcome of an action, or a
timer. What is to be done about it waits in :meth:`AttemptStateMachine.take_actions`, in order. The JobMaster
(:mod:`sluice.runtime.jobmanager.attempt.job_master`) translates between this and the world.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from sluice.core import PeerRefused
from sluice.runtime.checkpoint import Checkpoint, Savepoint
from sluice.runtime.ha import NotReconciled
from sluice.runtime.jobmanager.attempt.actions import (
    Action,
    AdoptDriver,
    AskForRestart,
    CollectConnections,
    EndDriver,
    EndJob,
    HandOver,
    LookForDriver,
    Outbox,
    RecordCheckpoint,
    RestoreCheckpoint,
    SettleCheckpoints,
    StartDriver,
    StartTimer,
    StopDriver,
    StopStreaming,
    TakeSavepoint,
    Timer,
)
from sluice.runtime.jobmanager.attempt.driver_placement import DriverPlacement
from sluice.runtime.jobmanager.attempt.executor_control import ExecutorControl
from sluice.runtime.jobmanager.attempt.executor_pool import ExecutorPool, FailureBudget
from sluice.runtime.jobmanager.attempt.history_log import LOST, HistoryLog
from sluice.runtime.jobmanager.attempt.job_status import JobStatus
from sluice.runtime.jobmanager.errors import DriverUnknown, JobAlreadyTerminal
from sluice.runtime.jobmanager.job_state import ENDING, Verdict, judge_attempt
from sluice.runtime.jobmanager.views import Failure, JobDetail, JobRecord
from sluice.runtime.messages import (
    DriverExit,
    Evidence,
    JobProgress,
    JobState,
    RunningDriver,
    SlotOffer,
    SlotProfile,
    StageTable,
    StreamingState,
    TaskFailure,
)

_LOG = logging.getLogger(__name__)

CANCEL_MARGIN_SECONDS = 5.0
"""A driver that was told to end gets its grace period and this, then it is killed."""
KILL_GRACE_SECONDS = 2.0
"""What a driver whose time is over gets between SIGTERM and SIGKILL."""
DRIVER_EXIT_GRACE_SECONDS = 20.0
"""How long a driver agent may live on after it has reported the end of its work."""
LEASE_MARGIN_SECONDS = 5.0
"""What a driver whose lease is over may need to end its processes (see sluice.runtime.spark.driver.agent)."""
DRIVER_LOOK_SECONDS = 0.5
"""How often it is asked whether the TaskManager of a driver that is waited for still has it."""
UNRECORDED_EXECUTORS = 100
"""So many numbers of executors an earlier leader may have used without having written them down."""
MAX_TASKMANAGERS_LOST = 3
"""So often a job begins again because its driver's TaskManager is lost; after that its restart strategy decides."""
STOP_STREAMING_SECONDS = 30.0
"""How long a pipeline may go on after its streaming queries were stopped for a savepoint."""


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    """What every attempt of this cluster goes by; times are seconds."""

    driver_start_timeout: float
    cancel_grace: float
    failure_budget: int = 0
    """Executors of a job that may end by themselves; 0: reckoned from their number."""
    slot_idle_timeout: float = float("inf")
    """How long slots are held before there is a SparkContext."""
    drain_timeout: float = 300.0
    """How long executors may take to end in order when their TaskManager is drained."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings of all jobs; a job's own go before them."""
    lease: float = 0.0
    """How long a driver goes on without an answer of its JobMaster."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The attempt has begun under an earlier leader, and its driver may run (ADR 103).

    Attributes:
        taskmanager: where it was about to be launched.
        seconds: after which it is surely gone, unless it has registered.
    """

    taskmanager: str
    seconds: float


class _Phase(enum.Enum):
    """Where the attempt's driver and its records are."""

    RECONCILING = enum.auto()
    """A driver that runs since an earlier leader is waited for."""
    RESTORING = enum.auto()
    """The checkpoint that it goes on from is looked for."""
    PLACING = enum.auto()
    """A slot for the driver is waited for."""
    STARTING = enum.auto()
    """The driver is being started in its slot."""
    RUNNING = enum.auto()
    """The driver's process runs."""
    SETTLING = enum.auto()
    """The process has ended; completed checkpoints are being written."""
    SAVING = enum.auto()
    """The savepoint with which the job ends is being taken."""
    COLLECTING = enum.auto()
    """Evidence of its connections is being collected."""
    DECIDING = enum.auto()
    """The attempt failed, and the Dispatcher decides about the next one."""
    OVER = enum.auto()


_BEFORE_DRIVER = frozenset({_Phase.RESTORING, _Phase.PLACING, _Phase.STARTING})
_WITH_DRIVER = frozenset({_Phase.RECONCILING, _Phase.STARTING, _Phase.RUNNING})
_CONCLUDING = frozenset({_Phase.SETTLING, _Phase.SAVING, _Phase.COLLECTING})


class AttemptStateMachine:
    """One attempt of a job, from its beginning to the job's end or to the decision to try again.

    Args:
        before: the job, and what its earlier attempts have left.
        settings: of the cluster.
        number: of this attempt.
        executor_size: the slot that an executor of the job needs.
        clock: epoch seconds.
        resumption: it goes on under a new leader; None: it begins.
    """

    def __init__(
        self,
        before: JobRecord,
        settings: AttemptSettings,
        *,
        number: int,
        executor_size: SlotProfile,
        clock: Callable[[], float],
        resumption: Resumption | None = None,
    ) -> None:
        self.number, self.submission = number, before.submission
        self._settings = settings
        self._outbox = Outbox(self._shown)
        submission = before.submission
        spark_conf = {**settings.spark_conf, **submission.spark_conf}
        pool = ExecutorPool(
            initial=submission.executors,
            slot_profile=executor_size,
            failure_budget=FailureBudget.of(settings.failure_budget, submission.executors, spark_conf),
            next_id=HistoryLog.of(before).next_executor + (UNRECORDED_EXECUTORS if resumption is not None else 0),
            idle_timeout=settings.slot_idle_timeout,
        )
        self._pool = pool
        self._status = JobStatus(before, number, pool, self._outbox, clock)
        self.placement = DriverPlacement(self._status, self._outbox)
        self.executors = ExecutorControl(
            self._status, pool, self._outbox, clock, drain_timeout=settings.drain_timeout, fail=self.fail
        )
        self._phase = _Phase.RESTORING if resumption is None else _Phase.RECONCILING
        self._resumption = resumption
        self._restored = False
        self._told_to_wait = False
        self._registered = False
        self._result: DriverExit | None = None
        self._process_end = ""
        self._lost = False
        """The TaskManager of the driver was lost, and that alone ended the attempt."""
        self._restart_useless = False
        self._pipeline_stopped = False

    # --- what the JobMaster reads ---------------------------------------------------------------------------

    def take_actions(self) -> tuple[Action, ...]:
        """What is to be done since the last call, in order."""
        return self._outbox.take()

    def record(self) -> JobRecord:
        """All that is known of the job now; connections are those of earlier attempts until this one has ended."""
        return self._status.record()

    def _shown(self) -> JobDetail | None:
        return None if self._status.state.terminal else self._status.detail()

    def check_current(self, number: int) -> None:
        """Raise :class:`PeerRefused` unless ``number`` is this attempt, and its driver may go on."""
        if number != self.number or self._status.state.terminal or self.placement.given_up:
            raise PeerRefused(f"attempt {number} of job {self._status.job_id} is not the current one", "it must end")

    def check_driver(self, number: int, taskmanager: str) -> None:
        """Raise :class:`DriverUnknown` unless ``taskmanager`` was told to launch driver ``number``, and it goes on."""
        self.placement.check_on(taskmanager)
        if number != self.number or self._phase not in _WITH_DRIVER:
            raise DriverUnknown(f"driver {number} of job {self._status.job_id} is not the current one, or has ended")

    # --- the driver -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin: a checkpoint to go on from, a slot for the driver, its process; then it asks for executors.

        An attempt that is resumed waits for its driver instead.
        """
        if self._resumption is not None:
            self._resume(self._resumption)
            return
        self._status.enter(JobState.CREATED)
        self._status.history.begin(self.number, self._status.now_ms)
        self._status.keep_history()
        self._outbox.add(RestoreCheckpoint(self.submission.savepoint))

    def _resume(self, resumption: Resumption) -> None:
        self._status.pending_reason = (
            f"its JobManager was lost; its driver on {resumption.taskmanager} is waited for, "
            f"at most {max(1, round(resumption.seconds))} s"
        )
        self._status.await_executors()
        self._outbox.add(
            RestoreCheckpoint(self.submission.savepoint),
            StartTimer(Timer.DRIVER_RETURN, resumption.seconds),
            StartTimer(Timer.DRIVER_LOOK, DRIVER_LOOK_SECONDS),
        )
        self.executors.resume()
        self._outbox.publish()

    def checkpoint_restored(self, checkpoint: Checkpoint | None) -> None:
        """The attempt goes on from ``checkpoint``; None: from the beginning."""
        if self._phase is _Phase.RECONCILING:
            self._status.checkpoints.restored, self._restored = checkpoint, True
        if self._phase is not _Phase.RESTORING:
            return
        self._status.checkpoints.restored = checkpoint
        if self._status.state in ENDING:
            self.driver_ended("it was never started")
        else:
            self._phase = _Phase.PLACING
            self.placement.require()

    def driver_slot_offered(self, offer: SlotOffer) -> bool:
        """A TaskManager offers a slot for the driver; False when it is not wanted (any more)."""
        if self._resumption is not None:
            return self._driver_slot_held(self._resumption, offer)
        if self._phase is not _Phase.PLACING:
            return self._phase in {_Phase.STARTING, _Phase.RUNNING} and self.placement.holds(offer.allocation_id)
        self._phase = _Phase.STARTING
        self.placement.take(offer)
        self.executors.begin()  # so that they have slots when Spark is there to use them
        return True

    def _driver_slot_held(self, resumption: Resumption, offer: SlotOffer) -> bool:
        if self._phase is not _Phase.RECONCILING:
            return self._phase is _Phase.RUNNING and self.placement.holds(offer.allocation_id)
        if not offer.held or offer.driver != self.number:
            if offer.taskmanager == resumption.taskmanager:
                self.driver_absent(offer.taskmanager)
            return False
        self.placement.take_held(offer)
        return True

    def driver_absent(self, taskmanager: str) -> None:
        """This TaskManager, on which the driver was, does not have it."""
        if self.placement.slot is None:
            self.driver_gone(f"TaskManager {taskmanager} does not run its driver any more")

    def driver_gone(self, why: str) -> None:
        """A driver that was waited for does not run: the next attempt begins, unless somebody wants the job's end."""
        if self._phase is not _Phase.RECONCILING:
            return
        self.placement.given_up = self.placement.given_up or why  # from here on no word of it counts
        if self._status.state in ENDING:
            self.driver_ended(why)
            return
        self._phase = _Phase.OVER
        self._status.history.lost(self.number, self._status.now_ms, f"its JobManager was lost, and {why}")
        self._status.executors_missing()
        self.executors.end()
        self._pool.close()
        self._status.enter(JobState.RESTARTING)
        self._status.pending_reason = f"its JobManager was lost, and {why}: it starts again"
        self._outbox.add(HandOver(self._status.record(), 0.0))

    def _driver_placed(self) -> None:
        if self._phase is not _Phase.STARTING or self.placement.slot is None:
            return
        if self._status.state in ENDING:
            self.driver_ended("it was never started")
        else:
            self._outbox.add(StartDriver(self.placement.slot))

    def driver_started(self) -> None:
        """The driver's process runs."""
        if self._phase is not _Phase.STARTING:
            return
        self._phase = _Phase.RUNNING
        self._outbox.add(StartTimer(Timer.DRIVER_REGISTRATION, self._settings.driver_start_timeout))
        if self.placement.given_up:
            self._await_lost_driver()
        elif self._status.state in ENDING:
            self._outbox.add(StopDriver(self._settings.cancel_grace))

    def driver_not_started(self, error: str, *, permanent: bool) -> None:
        """The driver's process cannot be started; ``permanent``: nor could that of a further attempt.

        It may run all the same, where the answer was lost: then it may not register, and ends with its slot.
        """
        if self._phase is _Phase.RECONCILING:  # its checkpoint is lost
            self._restart_useless = permanent
            self.fail(f"the driver cannot go on: {error}")
            return
        if self._phase not in _BEFORE_DRIVER:
            return
        self._restart_useless = permanent
        self.placement.given_up = self.placement.given_up or "it was given up while it was started"
        self.fail(f"the driver cannot be started: {error}")
        if self._registered:  # it does run
            self._phase = _Phase.RUNNING
            self._await_lost_driver()
        else:
            self.driver_ended("it was never started")

    def slots_lost(self, allocation_ids: Collection[str], taskmanager: str) -> None:
        """Slots are gone, and what ran in them; a driver may go on unseen until its lease is over."""
        if self.placement.is_among(allocation_ids) and not self.placement.given_up:
            self._driver_lost(f"TaskManager {taskmanager}, on which the driver ran, is lost")
        self.executors.slots_lost(allocation_ids, taskmanager)

    def _driver_lost(self, why: str) -> None:
        if self._phase is _Phase.RECONCILING:
            self.placement.slot = None  # its TaskManager may come back with it
        if self._phase not in {_Phase.STARTING, _Phase.RUNNING}:
            return  # it has ended
        self.placement.given_up = why
        self._lost = self._status.state not in ENDING
        if self._result is not None:  # it had nothing left to do but to end
            self.driver_ended(why)
            return
        self.fail(why)
        if self._phase is _Phase.RUNNING:
            self._await_lost_driver()

    def _await_lost_driver(self) -> None:
        """One that never registered has no work, and gets none."""
        seconds = self._settings.lease + LEASE_MARGIN_SECONDS if self._registered else 0.0
        self._outbox.add(StartTimer(Timer.DRIVER_GONE, seconds))

    def check_registration(self, number: int, running: RunningDriver | None) -> None:
        """Raise unless the driver of attempt ``number``, which says what it is ``running``, may register now.

        Raises:
            PeerRefused: it must end.
            NotReconciled: it is to ask again.
        """
        self.check_current(number)
        if self._phase is not _Phase.RECONCILING:
            return
        if running is not None and running.bound:
            raise PeerRefused(f"only its own JobMaster can go on with this driver: {running.bound}", "it must end")
        lacking = ""
        if self.placement.slot is None:
            lacking = "the TaskManager of this driver has not registered yet"
        elif not self._restored and self._status.state not in ENDING:
            lacking = "the checkpoints of this job are still being read"
        if lacking:
            self._told_to_wait = True
            raise NotReconciled(lacking, "ask again")

    def driver_registered(self, number: int, running: RunningDriver | None = None) -> None:
        """The driver of attempt ``number`` wants its work, or goes on with it; raises as ``check_registration``."""
        self.check_registration(number, running)
        self._registered = True
        if self._phase is _Phase.RECONCILING and self.placement.slot is not None:
            self._adopt(self.placement.slot, running)
        elif self._status.state is JobState.CREATED:
            self._status.enter(JobState.RUNNING)
        self._outbox.publish()

    def _adopt(self, slot: SlotOffer, running: RunningDriver | None) -> None:
        self._phase = _Phase.RUNNING
        self._status.pending_reason = ""
        self._outbox.add(AdoptDriver(slot, running))
        if self._status.state in ENDING:
            self._end_driver()
        else:
            self._status.enter(JobState.RUNNING)
        self.executors.returned(spark=running is not None and running.app_id != "")

    def driver_finished(self, result: DriverExit) -> None:
        """The driver reports the end of its work; its process is to follow. Raises :class:`NotReconciled`."""
        if self._phase is _Phase.RECONCILING:
            raise NotReconciled("this driver has not registered yet", "register first")
        if self._result is None:
            self._result = result
            self._outbox.add(StartTimer(Timer.DRIVER_EXIT, DRIVER_EXIT_GRACE_SECONDS))

    def driver_ended(self, process_end: str) -> None:
        """The driver's process has ended, or was never started."""
        if self._phase not in _BEFORE_DRIVER | _WITH_DRIVER:
            return
        self._phase, self._process_end = _Phase.SETTLING, process_end
        self._pool.close()
        self._outbox.add(SettleCheckpoints())

    def cancel(self) -> None:
        """Cancel the job; raises :class:`JobAlreadyTerminal`."""
        if self._status.state.terminal:
            raise JobAlreadyTerminal(f"job {self._status.job_id} is {self._status.state}")
        if self._status.state in {JobState.CANCELLING, JobState.RESTARTING}:
            return  # the Dispatcher has noted it, and starts no further attempt
        self._status.enter(JobState.CANCELLING)
        self._end_driver()

    def fail(self, error: str, traceback: str = "") -> None:
        """The attempt must end because of ``error``; nothing when it ends already."""
        if not self._status.life.may(JobState.FAILING) or self._status.state is JobState.RESTARTING:
            return
        _LOG.warning("job %s fails: %s", self._status.job_id, error)
        self._status.failure = Failure(error=error, traceback=traceback)
        self._status.enter(JobState.FAILING)
        self._end_driver()

    def suspend(self) -> None:
        """The JobManager stops or does not lead any more; the next leader goes on with the job."""
        self._phase = _Phase.OVER
        if self._status.life.may(JobState.SUSPENDED):
            self._status.enter(JobState.SUSPENDED)

    # --- progress, checkpoints, savepoints ----------------------------------------------------------------------

    def progress_reported(self, progress: JobProgress) -> None:
        """Counters of Spark, for display."""
        self._status.progress = progress
        self._outbox.publish()

    def stages_reported(self, stages: StageTable) -> None:
        """Spark's stages, for display."""
        self._status.stages = stages

    def task_failed(self, failure: TaskFailure) -> None:
        """A task failed; Spark tries it again or fails the job."""
        task = f"task {failure.partition} of stage {failure.stage}, try {failure.attempt}"
        self._status.note(failure.error, failure.traceback, task=task, executor=failure.executor_id)

    def streaming_reported(self, state: StreamingState) -> None:
        """A batch was committed, or a streaming query began or ended."""
        completed = self._status.checkpoints.update(state, self._status.now_ms)
        if completed is not None:
            self._outbox.add(RecordCheckpoint(completed))
        for query_id in self._status.checkpoints.unnamed():
            self._status.note(
                f"the streaming query {query_id} has no name: a later attempt begins it anew; name it with queryName()"
            )
        if self._status.checkpoints.problem:
            self._restart_useless = True
            self.fail(self._status.checkpoints.problem)
        self._outbox.publish()

    def savepoint_requested(self, savepoint_id: str, *, stop: bool) -> None:
        """Take a savepoint, and with ``stop`` end the job with it.

        Raises:
            SavepointFailed: the job does not run, has no checkpoint yet, or another one is being taken.
            NotStreaming: no streaming query with a name runs.
        """
        view = self._status.checkpoints.view
        self._status.savepoints.add(savepoint_id, self._status.state, view, self._status.now_ms, stop=stop)
        if stop:
            grace = self._settings.cancel_grace
            self._outbox.add(StopStreaming(grace), StartTimer(Timer.STREAMING_STOPPED, grace + STOP_STREAMING_SECONDS))
        else:
            self._take_savepoint()

    def streaming_not_stopped(self, error: str) -> None:
        """The driver could not be told to stop its streaming queries."""
        self._status.savepoints.fail(f"the driver could not be told to stop: {error}")

    def savepoint_taken(self, savepoint: Savepoint) -> None:
        """A savepoint is complete."""
        self._status.savepoints.complete(savepoint)
        self._savepoint_over()

    def savepoint_failed(self, error: str) -> None:
        """A savepoint could not be taken."""
        self._status.savepoints.fail(error)
        self._savepoint_over()

    # --- the end ------------------------------------------------------------------------------------------------

    def checkpoints_settled(self) -> None:
        """Completed checkpoints are written, or given up."""
        if self._phase is not _Phase.SETTLING:
            return
        if self._status.savepoints.stopping and self._status.state is JobState.RUNNING and self._result is not None:
            if self._pipeline_stopped:  # it was ended by us, and that is no failure
                self._result = DriverExit(succeeded=True, exit_code=0)
            if self._result.succeeded and self._take_savepoint():
                self._phase = _Phase.SAVING
                return
        self._collect()

    def connections_collected(self, evidence: Evidence) -> None:
        """The evidence of the attempt's connections, as far as somebody answered: the attempt is concluded."""
        if self._phase is not _Phase.COLLECTING:
            return
        self._status.evidence = evidence
        self._conclude()

    def records_lost(self) -> None:
        """The last records of the attempt could not be gathered; it is concluded all the same."""
        if self._phase in _CONCLUDING:
            self._conclude()

    def restart_decided(self, delay: float | None) -> None:
        """After how many seconds there is to be another attempt; None: not at all."""
        if self._phase is not _Phase.DECIDING:
            return
        if self._status.state is JobState.CANCELLING:  # somebody cancelled the job meanwhile
            self._end((JobState.CANCELED,))
        elif delay is None:
            self._end((JobState.FAILED,))
        else:
            self._phase = _Phase.OVER
            self._status.enter(JobState.RESTARTING)
            error = self._status.failure.error if self._status.failure is not None else "it failed"
            self._status.pending_reason = (
                f"attempt {self.number} failed, the next one starts after {round(delay, 1):g} s: {error}"
            )
            self._outbox.add(HandOver(self._status.record(), delay))

    def timer_fired(self, timer: Timer, executor_ids: Iterable[int] = ()) -> None:
        """The time of a :class:`StartTimer` is over."""
        match timer:
            case Timer.STREAMING_STOPPED:
                if self._status.savepoints.stopping and self._status.state is JobState.RUNNING:
                    self._pipeline_stopped = True  # its queries have ended, and it has nothing to go on with
                    self._end_driver()
            case Timer.DRAINED:
                self.executors.drained(executor_ids)
            case Timer.RECONCILE:
                self.executors.reconcile()
            case Timer.REQUIREMENT:
                self.executors.repeat_requirement()
            case Timer.HISTORY:
                self._status.keep_history()
            case _:
                self._driver_timer_fired(timer)

    def _driver_timer_fired(self, timer: Timer) -> None:
        match timer:
            case Timer.DRIVER_REQUIREMENT if self._phase is _Phase.PLACING:
                self.placement.require()
            case Timer.DRIVER_PLACED:
                self._driver_placed()
            case Timer.DRIVER_REGISTRATION if not self._registered:
                self.fail(f"the driver did not register within {self._settings.driver_start_timeout:g} s")
            case Timer.DRIVER_EXIT if self._phase is _Phase.RUNNING:
                self._outbox.add(StopDriver(KILL_GRACE_SECONDS))
            case Timer.DRIVER_GONE:
                self.driver_ended(self.placement.given_up)
            case Timer.DRIVER_RETURN if self._resumption is not None and self._phase is _Phase.RECONCILING:
                self._driver_due(self._resumption)
            case Timer.DRIVER_LOOK if self._phase is _Phase.RECONCILING and self._resumption is not None:
                self._outbox.add(StartTimer(Timer.DRIVER_LOOK, DRIVER_LOOK_SECONDS))
                if self.placement.slot is None:
                    self._outbox.add(LookForDriver(self._resumption.taskmanager))
            case Timer.EXECUTORS_RETURN:
                self.executors.settle()

    def _driver_due(self, resumption: Resumption) -> None:
        """A driver that was told to wait may run for another lease; its TaskManager must come meanwhile."""
        if self._told_to_wait:
            self._told_to_wait = False
            self._outbox.add(StartTimer(Timer.DRIVER_RETURN, self._settings.lease + LEASE_MARGIN_SECONDS))
        else:
            self.driver_gone(f"its driver on {resumption.taskmanager} did not come back")

    # --- inside -------------------------------------------------------------------------------------------------

    def _end_driver(self) -> None:
        """Ask the driver to end, and see to it that it does."""
        if self._phase is _Phase.PLACING:
            self.driver_ended("it was never started")
        elif self._phase is _Phase.RUNNING:  # one that is being started is ended as soon as it runs
            grace = self._settings.cancel_grace
            self._outbox.add(EndDriver(grace), StartTimer(Timer.DRIVER_EXIT, grace + CANCEL_MARGIN_SECONDS))

    def _take_savepoint(self) -> bool:
        request, checkpoint = self._status.savepoints.current, self._status.checkpoints.view.latest
        if request is None or checkpoint is None:
            return False
        self._outbox.add(TakeSavepoint(request, checkpoint))
        return True

    def _savepoint_over(self) -> None:
        if self._phase is _Phase.SAVING:
            self._collect()

    def _collect(self) -> None:
        self._phase = _Phase.COLLECTING
        self._outbox.add(CollectConnections())

    def _conclude(self) -> None:
        """Judge the attempt: end the job, or ask whether it is restarted."""
        self._status.savepoints.fail(f"the attempt ended: {self._process_end}")
        verdict = self._judge()
        if verdict.error and self._status.failure is None:
            self._status.failure = Failure(error=verdict.error, traceback=verdict.traceback)
        self.executors.end()
        if not verdict.failed:
            self._end(verdict.path)
            return
        failure = self._status.failure or Failure(error=self._process_end)
        self._status.history.note(self._status.now_ms, failure.error, failure.traceback, ended_attempt=True)
        outcome = LOST if self._lost else JobState.FAILED.value
        self._status.history.end(outcome, self._status.now_ms, failure.error)
        self._status.keep_history()  # durable before it is decided what follows
        for state in verdict.path[:-1]:
            self._status.enter(state)
        self._phase = _Phase.DECIDING
        if self._restart_useless:
            self.restart_decided(None)
        elif self._lost and self._status.history.taskmanagers_lost <= MAX_TASKMANAGERS_LOST:
            self.restart_decided(0.0)  # no failure of the job's; its strategy does not count it
        else:
            self._outbox.add(AskForRestart())

    def _judge(self) -> Verdict:
        verdict = judge_attempt(self._status.state, self._result, self._process_end)
        if (
            verdict.path == (JobState.FINISHED,)
            and self._status.savepoints.asked_to_stop
            and not self._status.savepoints.stopped
        ):
            error = f"the savepoint failed: {self._status.savepoints.requests[-1].error}"
            return Verdict((JobState.FAILING, JobState.FAILED), error)
        return verdict

    def _end(self, path: Iterable[JobState]) -> None:
        for state in path:
            self._status.enter(state)
        self._phase = _Phase.OVER
        failure = self._status.failure if self._status.state is JobState.FAILED else None
        self._status.history.end(self._status.state.value, self._status.now_ms, failure.error if failure else "")
        self._outbox.add(EndJob(self._status.record()))
