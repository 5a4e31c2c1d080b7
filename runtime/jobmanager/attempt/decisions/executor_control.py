"""Requires slots, and launches, replaces and ends the executors of an attempt. Decisions only; no I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from sluice.runtime.jobmanager.attempt.decisions.actions import (
    DecommissionExecutors,
    KillExecutor,
    LaunchExecutor,
    Outbox,
    ReleaseSlot,
    ReportExecutorExit,
    ReportHeldSlotsSettled,
    RequireSlots,
    StartTimer,
    Timer,
)
from sluice.runtime.jobmanager.attempt.decisions.executor_pool import Executor, ExecutorPool, ExecutorState
from sluice.runtime.jobmanager.attempt.decisions.job_status import JobStatus
from sluice.runtime.jobmanager.errors import ExecutorUnknown
from sluice.runtime.jobmanager.job_state import ENDING
from sluice.runtime.messages import ExecutorExit, ExecutorTargets, SlotCount, SlotOffer, SparkRegistration

_LOG = logging.getLogger(__name__)

REQUIREMENT_REPEAT_SECONDS = 2.0
"""How often an unmet slot requirement is repeated, and the reason for waiting refreshed."""
EXECUTORS_RETURN_SECONDS = 15.0
"""How long TaskManagers may take to offer the executors of a driver that a new leader has taken over."""
RETRY_MARGIN_SECONDS = 0.01
"""Added to the time of the next decision, so that a timer does not fire just before it."""


class ExecutorControl:
    """Turns events about executors into actions, by the decisions of :class:`ExecutorPool`.

    Args:
        clock: epoch seconds.
        drain_timeout: seconds that executors on a drained TaskManager get to end gracefully.
        fail: fails the attempt for a reason.
    """

    def __init__(
        self,
        status: JobStatus,
        pool: ExecutorPool,
        outbox: Outbox,
        clock: Callable[[], float],
        *,
        drain_timeout: float,
        fail: Callable[[str], None],
    ) -> None:
        self._status = status
        self._pool = pool
        self._outbox = outbox
        self._clock = clock
        self._drain_timeout = drain_timeout
        self._fail = fail
        self._wanted: tuple[SlotCount, ...] | None = None
        self._resuming = False
        self._apps: dict[int, str] = {}
        """The id of the SparkContext for which each executor was launched; only for executors held by TaskManagers."""

    def resume(self) -> None:
        """Continue under a new leader: require and launch nothing before TaskManagers have reported what runs."""
        self._resuming = True
        self._outbox.add(RequireSlots(()))  # so that the ResourceManager can report lost slots

    def returned(self, *, spark: bool) -> None:
        """Note that the driver is back, with or without a SparkContext. Executors that do not return soon are gone."""
        if spark:
            self._outbox.add(StartTimer(Timer.EXECUTORS_RETURN, EXECUTORS_RETURN_SECONDS))
        else:
            self.stop_waiting_for_held_slots()

    def slot_held(self, offer: SlotOffer) -> bool:
        """Take over a slot that a TaskManager has held since an earlier leader; False when it must be freed."""
        if self._status.over or not self._resuming:
            return False
        running, spark = offer.executor, self._pool.registration
        if running is not None and spark is not None and running.app_id != spark.app_id:
            return False
        if not self._pool.adopt(offer, self._clock()):
            return False
        if running is not None:
            self._apps[running.executor_id] = running.app_id
            self._status.executor_back(running.executor_id)
        self._outbox.add(StartTimer(Timer.RECONCILE, 0))  # after the answer
        return True

    def stop_waiting_for_held_slots(self) -> None:
        """End the wait for held slots: what TaskManagers have not offered is gone. Then continue as any attempt."""
        if not self._resuming:
            return
        self._resuming = False
        self._status.executors_missing()
        self._outbox.add(ReportHeldSlotsSettled())
        self.begin()

    def begin(self) -> None:
        """Require slots for executors as soon as the driver has its slot, before it says what it wants."""
        self._outbox.add(StartTimer(Timer.REQUIREMENT, REQUIREMENT_REPEAT_SECONDS))
        self.reconcile()

    def end(self) -> None:
        """Mark all executors as exited, because the attempt is over."""
        self._status.executors_missing()
        for executor in self._pool.executors:
            if executor.state is not ExecutorState.EXITED:
                executor.state, executor.exit_reason = ExecutorState.EXITED, "the attempt ended"

    @property
    def all(self) -> tuple[Executor, ...]:
        """All executors, ended ones included."""
        return self._pool.executors

    @property
    def ready(self) -> bool:
        """Whether a SparkContext can use more executors at once."""
        return self._pool.registration is not None

    def check_launched(self, executor_id: int, taskmanager: str) -> None:
        """Raise :class:`ExecutorUnknown` unless ``taskmanager`` was told to launch this executor, and it is active."""
        if not self._pool.launched_on(executor_id, taskmanager):
            raise ExecutorUnknown(f"{taskmanager} was not asked to run executor {executor_id} of {self._status.job_id}")

    def spark_started(self, registration: SparkRegistration) -> None:
        """Note that a SparkContext is up; end the executors of an earlier one."""
        self._kill(self._pool.spark_started(registration))
        if self._resuming:
            others = [each for each, app_id in self._apps.items() if app_id != registration.app_id]
            self._kill(self._pool.stop(others))
        self.reconcile()

    def set_executor_targets(self, targets: ExecutorTargets) -> None:
        """Set how many executors Spark wants."""
        self._pool.set_targets(targets)
        self.reconcile()

    def kill_executors(self, executor_ids: Iterable[int]) -> None:
        """End executors that Spark no longer wants."""
        self._kill(self._pool.stop(executor_ids))
        self.reconcile()

    def offer_slot(self, offer: SlotOffer) -> bool:
        """Take an offered slot; False when it is not, or no longer, wanted."""
        if self._status.over or not self._pool.offer(offer):
            return False
        self._outbox.add(StartTimer(Timer.RECONCILE, 0))  # after the answer
        return True

    def executor_launched(self, executor_id: int) -> None:
        """Note that the executor's process runs."""
        self._pool.launched(executor_id)
        self._status.history_changed()
        self._outbox.publish()

    def executor_not_launched(self, executor_id: int, slot: SlotOffer, error: str, *, unreachable: bool) -> None:
        """Note that an executor could not be launched. ``unreachable``: there is no connection to its TaskManager."""
        self._executor_ended(
            ExecutorExit(
                executor_id=executor_id,
                exit_code=1,
                by_application=False,
                reason=f"it could not be launched: {error}",
                host=slot.host,
                host_lost=unreachable,
            )
        )
        if not unreachable:  # it may run after all, if only the answer was late
            self._outbox.add(KillExecutor(executor_id, slot.taskmanager))
        self.reconcile()

    def executor_exited(self, exit_report: ExecutorExit, taskmanager: str) -> None:
        """Note that an executor on ``taskmanager`` has ended; raises :class:`ExecutorUnknown` if it never ran there."""
        executor = self._pool.get(exit_report.executor_id)
        if executor is None and self._resuming and self._status.executor_gone(exit_report, taskmanager):
            self._outbox.add(ReportExecutorExit(exit_report))
            self.reconcile()
            return
        if executor is None or executor.slot.taskmanager != taskmanager:
            raise ExecutorUnknown(
                f"{taskmanager} does not run executor {exit_report.executor_id} of {self._status.job_id}"
            )
        self._executor_ended(exit_report)
        self.reconcile()

    def slots_lost(self, allocation_ids: Iterable[str], taskmanager: str) -> None:
        """Note that slots are gone, with the executors in them."""
        for executor in self._pool.slots_lost(allocation_ids):
            self._executor_ended(
                ExecutorExit(
                    executor_id=executor.id,
                    exit_code=-1,
                    by_application=False,
                    reason=f"TaskManager {taskmanager} is lost",
                    host=executor.slot.host,
                    host_lost=True,
                )
            )
        self._require_again()

    def slots_draining(self, allocation_ids: Iterable[str], taskmanager: str) -> None:
        """Decommission the executors in slots that must be given back soon; others replace them."""
        self._end_in_order(allocation_ids, f"TaskManager {taskmanager} is drained", self._drain_timeout)

    def slots_preempted(self, allocation_ids: Iterable[str], reason: str, grace: float) -> None:
        """Decommission the executors in slots that other jobs get, within ``grace`` seconds."""
        executors = self._end_in_order(allocation_ids, f"preempted: {reason}", grace)
        for each in executors:
            each.leaving = f"preempted: {reason}"
        if executors:
            ids = ", ".join(str(each.id) for each in executors)
            _LOG.info("job %s: executors %s are preempted: %s", self._status.job_id, ids, reason)

    def _end_in_order(self, allocation_ids: Iterable[str], reason: str, seconds: float) -> list[Executor]:
        """Have executors move their blocks elsewhere and end; they are killed after ``seconds``."""
        executors = self._pool.drain(allocation_ids)
        if executors:
            ids = tuple(each.id for each in executors)
            self._outbox.add(DecommissionExecutors(ids, reason), StartTimer(Timer.DRAINED, seconds, ids))
        self._require_again()
        return executors

    def slots_required(self, reason: str) -> None:
        """Note the ResourceManager's answer: why the requirement is not met, empty when it is."""
        if self._resuming:
            return  # the job waits for its driver, not for slots
        if reason != self._status.pending_reason and not self._status.over:
            self._status.pending_reason = reason
            self._outbox.publish()

    def drained(self, executor_ids: Iterable[int]) -> None:
        """Kill executors whose time to end gracefully is over."""
        self._kill(each for i in executor_ids if (each := self._pool.get(i)) is not None)

    def _kill(self, executors: Iterable[Executor]) -> None:
        self._outbox.add(
            *(KillExecutor(each.id, each.slot.taskmanager) for each in executors if each.state != ExecutorState.EXITED)
        )

    def _executor_ended(self, exit_report: ExecutorExit) -> None:
        """Report an ended executor to Spark, and fail the attempt if too many ended by themselves."""
        if not self._pool.exited(exit_report, self._clock()):
            return
        _LOG.info("job %s: executor %d ended: %s", self._status.job_id, exit_report.executor_id, exit_report.reason)
        executor = self._pool.get(exit_report.executor_id)
        if executor is not None and executor.failed and self._status.state not in ENDING:
            self._status.note(f"executor {executor.id} ended: {exit_report.reason}", executor=executor.id)
        self._outbox.add(ReportExecutorExit(exit_report))
        if self._pool.failures.exhausted:
            count = self._pool.failures.count
            ended = (
                f"{count} executors ended by themselves within an hour" if count > 1 else "an executor ended by itself"
            )
            self._fail(f"{ended}, the last one: {self._pool.failures.last}")

    def reconcile(self) -> None:
        """Compare the wanted executors with the running ones, whatever happened, and act on the difference."""
        self._outbox.publish()
        if self._status.over:
            return
        if self._resuming:
            if self._pool.targets_known and not self._status.awaited:
                self.stop_waiting_for_held_slots()
            return
        decision = self._pool.decide(self._clock())
        spark = self._pool.registration
        if spark is not None:  # no executor is launched without one
            self._outbox.add(
                *(LaunchExecutor(each.id, each.slot, each.target, spark, each.gives_way) for each in decision.launch)
            )
        self._outbox.add(*(ReleaseSlot(each) for each in decision.release))
        if decision.wanted != self._wanted:
            self._wanted = decision.wanted
            self._outbox.add(RequireSlots(decision.wanted))
        if decision.retry_at is not None:
            seconds = max(0.0, decision.retry_at - self._clock()) + RETRY_MARGIN_SECONDS
            self._outbox.add(StartTimer(Timer.RECONCILE, seconds))

    def _require_again(self) -> None:
        """Repeat an unchanged requirement, to learn the reason for waiting."""
        self._wanted = None
        self.reconcile()

    def repeat_requirement(self) -> None:
        """Repeat an unmet requirement periodically: the reason for waiting may have changed."""
        if self._status.over:
            return
        self._outbox.add(StartTimer(Timer.REQUIREMENT, REQUIREMENT_REPEAT_SECONDS))
        if self._status.pending_reason and self._wanted is not None:
            self._outbox.add(RequireSlots(self._wanted))
