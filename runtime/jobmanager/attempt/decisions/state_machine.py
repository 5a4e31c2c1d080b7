"""One attempt of a job as a pure state machine: events in, actions out, no I/O.

Each public method is an event: a call by the driver, a TaskManager or the Dispatcher, the outcome of an action, or a
timer. :meth:`AttemptStateMachine.take_actions` returns the resulting actions in order. The JobMaster
(:mod:`sluice.runtime.jobmanager.attempt.job_master`) carries them out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from cryptography import x509

from sluice.core import PeerRefused
from sluice.pki.x509 import certified_identity
from sluice.runtime.checkpoint import Checkpoint
from sluice.runtime.ha import NotReconciled
from sluice.runtime.jobmanager.attempt.decisions.actions import (
    Action,
    EndDriver,
    Outbox,
    RestoreCheckpoint,
    SettleCheckpoints,
    StartDriver,
    StartTimer,
    StopDriver,
    Timer,
)
from sluice.runtime.jobmanager.attempt.decisions.conclusion import Conclusion
from sluice.runtime.jobmanager.attempt.decisions.driver_placement import DriverPlacement
from sluice.runtime.jobmanager.attempt.decisions.driver_status import BEFORE_DRIVER, WITH_DRIVER, DriverStatus, Phase
from sluice.runtime.jobmanager.attempt.decisions.executor_control import ExecutorControl
from sluice.runtime.jobmanager.attempt.decisions.executor_failures import ExecutorFailures, FailureBudget
from sluice.runtime.jobmanager.attempt.decisions.executor_pool import ExecutorPool
from sluice.runtime.jobmanager.attempt.decisions.history_log import HistoryLog
from sluice.runtime.jobmanager.attempt.decisions.job_status import JobStatus
from sluice.runtime.jobmanager.attempt.decisions.reconciliation import Reconciliation
from sluice.runtime.jobmanager.attempt.decisions.streaming_control import StreamingControl
from sluice.runtime.jobmanager.attempt.settings import LEASE_MARGIN_SECONDS, AttemptSettings, Resumption
from sluice.runtime.jobmanager.errors import DriverUnknown, JobAlreadyTerminal
from sluice.runtime.jobmanager.gateways import SandboxView
from sluice.runtime.jobmanager.job_state import ENDING
from sluice.runtime.jobmanager.views import Failure, JobDetail, JobRecord
from sluice.runtime.messages import (
    DriverExit,
    JobProgress,
    JobState,
    RunningDriver,
    SlotOffer,
    SlotProfile,
    StageTable,
    TaskFailure,
)

_LOG = logging.getLogger(__name__)

CANCEL_MARGIN_SECONDS = 5.0
"""A driver that was told to end is killed after its grace period and this margin."""
KILL_GRACE_SECONDS = 2.0
"""Time between SIGTERM and SIGKILL for a driver whose grace period is over."""
DRIVER_EXIT_GRACE_SECONDS = 20.0
"""How long a driver agent may run after it has reported the end of its work."""
UNRECORDED_EXECUTORS = 100
"""Numbers of executors to skip, because an earlier leader may have used them without recording them."""


class AttemptStateMachine:
    """One attempt of a job, from its start to the end of the job or to the decision to restart it.

    Args:
        before: the record of the job, with the history of its earlier attempts.
        executor_size: the size of the slot for an executor of the job.
        clock: epoch seconds.
        resumption: set when the attempt continues under a new leader; None when it begins.
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
            failures=ExecutorFailures(FailureBudget.of(settings.failure_budget, submission.executors, spark_conf)),
            next_id=HistoryLog.of(before).next_executor + (UNRECORDED_EXECUTORS if resumption is not None else 0),
            idle_timeout=settings.slot_idle_timeout,
        )
        self._pool = pool
        self._status = JobStatus(before, number, pool, self._outbox, clock)
        self.placement = DriverPlacement(self._status, self._outbox)
        self.executors = ExecutorControl(
            self._status, pool, self._outbox, clock, drain_timeout=settings.drain_timeout, fail=self.fail
        )
        self._driver = driver = DriverStatus(Phase.RESTORING if resumption is None else Phase.RECONCILING)
        self.streaming = StreamingControl(
            self._status,
            driver,
            self._outbox,
            cancel_grace=settings.cancel_grace,
            fail=self.fail,
            end_driver=self._end_driver,
            savepoint_over=self._savepoint_over,
        )
        self.conclusion = Conclusion(self._status, driver, self._outbox, pool, self.executors, self.streaming)
        self.reconciliation = (
            Reconciliation(
                resumption,
                self._status,
                driver,
                self._outbox,
                placement=self.placement,
                pool=pool,
                executors=self.executors,
                lease=settings.lease,
                driver_ended=self.driver_ended,
                end_driver=self._end_driver,
            )
            if resumption is not None
            else None
        )

    # --- what the JobMaster reads ---------------------------------------------------------------------------

    def take_actions(self) -> tuple[Action, ...]:
        """The actions since the last call, in order."""
        return self._outbox.take()

    def record(self) -> JobRecord:
        """The current record of the job. Until this attempt has ended, it has only connections of earlier attempts."""
        return self._status.record()

    def _shown(self) -> JobDetail | None:
        return None if self._status.state.terminal else self._status.detail()

    def check_current(self, number: int) -> None:
        """Raise :class:`PeerRefused` unless ``number`` is this attempt, and its driver may continue."""
        if number != self.number or self._status.state.terminal or self.placement.given_up:
            raise PeerRefused(f"attempt {number} of job {self._status.job_id} is not the current one", "it must end")

    def check_driver(self, number: int, taskmanager: str) -> None:
        """Raise :class:`DriverUnknown` unless ``taskmanager`` was told to launch driver ``number``, which runs."""
        self._check_driver(number, taskmanager, goes_on=self._driver.phase in WITH_DRIVER)

    def check_driver_end(self, number: int, taskmanager: str) -> None:
        """Raise :class:`DriverUnknown` unless ``taskmanager`` may report the end of the process of ``number``."""
        self._check_driver(
            number, taskmanager, goes_on=self._driver.phase in WITH_DRIVER or self._driver.concluded_early
        )

    def _check_driver(self, number: int, taskmanager: str, *, goes_on: bool) -> None:
        self.placement.check_on(taskmanager)
        if number != self.number or not goes_on:
            raise DriverUnknown(f"driver {number} of job {self._status.job_id} is not the current one, or has ended")

    def certified(self, leaf: x509.Certificate, taskmanager: str, sandbox: SandboxView | None) -> None:
        """Note the certificate of a process of the attempt; ``sandbox`` is its sandbox, None when unknown."""
        self._status.history.certified(
            str(certified_identity(leaf)),
            leaf,
            taskmanager=taskmanager,
            isolation="" if sandbox is None else sandbox.isolation.value,
            egress="" if sandbox is None else sandbox.egress.value,
        )
        self._status.history_changed()

    # --- the driver -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the attempt: find a checkpoint to continue from, get a slot for the driver, and start it.

        A resumed attempt waits for its driver instead.
        """
        if self.reconciliation is not None:
            self.reconciliation.begin(self.submission.savepoint)
            return
        self._status.enter(JobState.CREATED)
        self._status.history.begin(self.number, self._status.now_ms)
        self._status.keep_history()
        self._outbox.add(RestoreCheckpoint(self.submission.savepoint))

    def checkpoint_restored(self, checkpoint: Checkpoint | None) -> None:
        """Continue from ``checkpoint``, or from the beginning if it is None."""
        if self.reconciliation is not None:
            self.reconciliation.checkpoint_restored(checkpoint)
        if self._driver.phase is not Phase.RESTORING:
            return
        self._status.checkpoints.restored = checkpoint
        if self._status.state in ENDING:
            self.driver_ended("it was never started")
        else:
            self._driver.phase = Phase.PLACING
            self.placement.require()

    def driver_slot_offered(self, offer: SlotOffer) -> bool:
        """Take an offered slot for the driver; False when it is not, or no longer, wanted."""
        if self.reconciliation is not None:
            return self.reconciliation.slot_held(offer)
        if self._driver.phase is not Phase.PLACING:
            return self._driver.phase in {Phase.STARTING, Phase.RUNNING} and self.placement.holds(offer.allocation_id)
        self._driver.phase = Phase.STARTING
        self.placement.take(offer)
        self.executors.begin()  # so that slots are ready when Spark can use them
        return True

    def driver_absent(self, taskmanager: str) -> None:
        """Note that the TaskManager on which the driver was under an earlier leader does not have it."""
        if self.reconciliation is not None:
            self.reconciliation.driver_absent(taskmanager)

    def driver_gone(self, why: str) -> None:
        """Note that an awaited driver of an earlier leader does not run."""
        if self.reconciliation is not None:
            self.reconciliation.driver_gone(why)

    def _driver_placed(self) -> None:
        if self._driver.phase is not Phase.STARTING or self.placement.slot is None:
            return
        if self._status.state in ENDING:
            self.driver_ended("it was never started")
        else:
            self._outbox.add(StartDriver(self.placement.slot))

    def driver_started(self) -> None:
        """Note that the driver's process runs."""
        if self._driver.phase is not Phase.STARTING:
            return
        self._driver.phase = Phase.RUNNING
        self._outbox.add(StartTimer(Timer.DRIVER_REGISTRATION, self._settings.driver_start_timeout))
        if self.placement.given_up:
            self._await_lost_driver()
        elif self._status.state in ENDING:
            self._outbox.add(StopDriver(self._settings.cancel_grace))

    def driver_not_started(self, error: str, *, permanent: bool) -> None:
        """Fail the attempt because the driver cannot be started; ``permanent``: a further attempt would fail too.

        If only the answer was lost, the driver may run: then it may not register, and ends with its slot.
        """
        if self._driver.phase is Phase.RECONCILING:  # its checkpoint is lost
            self._driver.restart_useless = permanent
            self.fail(f"the driver cannot continue: {error}")
            return
        if self._driver.phase not in BEFORE_DRIVER:
            return
        self._driver.restart_useless = permanent
        self.placement.given_up = self.placement.given_up or "it was given up while it started"
        self.fail(f"the driver cannot be started: {error}")
        if self._driver.registered:  # it does run
            self._driver.phase = Phase.RUNNING
            self._await_lost_driver()
        else:
            self.driver_ended("it was never started")

    def slots_lost(self, allocation_ids: Collection[str], taskmanager: str) -> None:
        """Note that slots are gone, with the processes in them. A lost driver may run until its lease is over."""
        if self.placement.is_among(allocation_ids) and not self.placement.given_up:
            self._driver_lost(f"TaskManager {taskmanager}, on which the driver ran, is lost")
        self.executors.slots_lost(allocation_ids, taskmanager)

    def _driver_lost(self, why: str) -> None:
        if self._driver.phase is Phase.RECONCILING:
            self.placement.slot = None  # its TaskManager may come back with the driver
        if self._driver.phase not in {Phase.STARTING, Phase.RUNNING}:
            return  # it has ended
        self.placement.given_up = why
        self._driver.lost = self._status.state not in ENDING
        if self._driver.result is not None:  # its work was done
            self.driver_ended(why)
            return
        self.fail(why)
        if self._driver.phase is Phase.RUNNING:
            self._await_lost_driver()

    def _await_lost_driver(self) -> None:
        """Wait for the end of a lost driver's lease. A driver that never registered has no work: do not wait for it."""
        seconds = self._settings.lease + LEASE_MARGIN_SECONDS if self._driver.registered else 0.0
        self._outbox.add(StartTimer(Timer.DRIVER_GONE, seconds))

    def check_registration(self, number: int, running: RunningDriver | None) -> None:
        """Check that the driver of attempt ``number``, which reports ``running``, may register now.

        Raises:
            PeerRefused: the driver must end.
            NotReconciled: the driver must retry later.
        """
        self.check_current(number)
        if self.reconciliation is not None:
            self.reconciliation.check_registration(running)

    def driver_registered(self, number: int, running: RunningDriver | None = None) -> None:
        """Register the driver of attempt ``number``, new or continuing; raises as ``check_registration``."""
        self.check_registration(number, running)
        self._driver.registered = True
        if (
            self.reconciliation is not None
            and self._driver.phase is Phase.RECONCILING
            and self.placement.slot is not None
        ):
            self.reconciliation.adopt(self.placement.slot, running)
        elif self._status.state is JobState.CREATED:
            self._status.enter(JobState.RUNNING)
        self._outbox.publish()

    def driver_succeeded(self) -> None:
        """Conclude the attempt of a running job: the driver has done its work, and its process is still ending.

        A job that stops with a savepoint waits for the end of the process, because the savepoint is taken after it.
        """
        runs = self._driver.phase is Phase.RUNNING and self._status.state is JobState.RUNNING
        if runs and self._driver.result is None and not self._status.savepoints.asked_to_stop:
            self._driver.result, self._driver.concluded_early = DriverExit(succeeded=True, exit_code=0), True
            self.driver_ended("it has done its work")

    def driver_finished(self, result: DriverExit) -> None:
        """Note the driver's result; its process must end soon. Raises :class:`NotReconciled`."""
        if self._driver.phase is Phase.RECONCILING:
            raise NotReconciled("this driver has not registered yet", "register first")
        if self._driver.result is None:
            self._driver.result = result
            self._outbox.add(StartTimer(Timer.DRIVER_EXIT, DRIVER_EXIT_GRACE_SECONDS))

    @property
    def driver_ends_within(self) -> float:
        """Seconds that the driver's process may take to end after the attempt was concluded; 0 when it has ended."""
        return self._settings.cancel_grace + CANCEL_MARGIN_SECONDS if self._driver.concluded_early else 0.0

    def driver_ended(self, process_end: str) -> None:
        """Settle the attempt: the driver's process has ended, will end by itself, or was never started."""
        if self._driver.phase not in BEFORE_DRIVER | WITH_DRIVER:
            return
        self._driver.phase, self._driver.process_end = Phase.SETTLING, process_end
        self._pool.close()
        self._outbox.add(SettleCheckpoints())

    def cancel(self) -> None:
        """Cancel the job; raises :class:`JobAlreadyTerminal`."""
        if self._status.state.terminal:
            raise JobAlreadyTerminal(f"job {self._status.job_id} is {self._status.state}")
        if self._status.state in {JobState.CANCELLING, JobState.RESTARTING}:
            return  # the Dispatcher has recorded it, and starts no further attempt
        self._status.enter(JobState.CANCELLING)
        self._end_driver()

    def fail(self, error: str, traceback: str = "") -> None:
        """Fail the attempt because of ``error``; does nothing when it is ending already."""
        if not self._status.lifecycle.can_transition_to(JobState.FAILING) or self._status.state is JobState.RESTARTING:
            return
        _LOG.warning("job %s fails: %s", self._status.job_id, error)
        self._status.failure = Failure(error=error, traceback=traceback)
        self._status.enter(JobState.FAILING)
        self._end_driver()

    def suspend(self) -> None:
        """Suspend the job: the JobManager stops, or is no longer the leader. The next leader continues the job."""
        self._driver.phase = Phase.OVER
        if self._status.lifecycle.can_transition_to(JobState.SUSPENDED):
            self._status.enter(JobState.SUSPENDED)

    # --- progress -----------------------------------------------------------------------------------------------

    def progress_reported(self, progress: JobProgress) -> None:
        """Update Spark's counters, for display."""
        self._status.progress = progress
        self._outbox.publish()

    def stages_reported(self, stages: StageTable) -> None:
        """Update Spark's stages, for display."""
        self._status.stages = stages.bounded()

    def task_failed(self, failure: TaskFailure) -> None:
        """Note a failed task; Spark retries it, or fails the job."""
        task = f"task {failure.partition} of stage {failure.stage}, try {failure.attempt}"
        self._status.note(failure.error, failure.traceback, task=task, executor=failure.executor_id)

    # --- time ---------------------------------------------------------------------------------------------------

    def timer_fired(self, timer: Timer, executor_ids: Iterable[int] = ()) -> None:
        """Handle a timer that has fired."""
        match timer:
            case Timer.STREAMING_STOPPED:
                self.streaming.stop_due()
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
            case Timer.DRIVER_REQUIREMENT if self._driver.phase is Phase.PLACING:
                self.placement.require()
            case Timer.DRIVER_PLACED:
                self._driver_placed()
            case Timer.DRIVER_REGISTRATION if not self._driver.registered:
                self.fail(f"the driver did not register within {self._settings.driver_start_timeout:g} s")
            case Timer.DRIVER_EXIT if self._driver.phase is Phase.RUNNING:
                self._outbox.add(StopDriver(KILL_GRACE_SECONDS))
            case Timer.DRIVER_GONE:
                self.driver_ended(self.placement.given_up)
            case Timer.DRIVER_RETURN if self.reconciliation is not None:
                self.reconciliation.return_due()
            case Timer.DRIVER_LOOK if self.reconciliation is not None:
                self.reconciliation.look_for_driver()
            case Timer.EXECUTORS_RETURN:
                self.executors.stop_waiting_for_held_slots()

    # --- inside -------------------------------------------------------------------------------------------------

    def _end_driver(self) -> None:
        """Ask the driver to end, and set a timer that kills it if it does not."""
        if self._driver.phase is Phase.PLACING:
            self.driver_ended("it was never started")
        elif self._driver.phase is Phase.RUNNING:  # a driver that is starting is ended as soon as it runs
            grace = self._settings.cancel_grace
            self._outbox.add(EndDriver(grace), StartTimer(Timer.DRIVER_EXIT, grace + CANCEL_MARGIN_SECONDS))

    def _savepoint_over(self) -> None:
        self.conclusion.savepoint_over()
