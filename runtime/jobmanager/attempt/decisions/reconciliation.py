"""Takes over an attempt of an earlier leader once its driver is back (ADR 103). Decisions only; no I/O."""

from __future__ import annotations

from collections.abc import Callable

from sluice.core import PeerRefused
from sluice.runtime.checkpoint import Checkpoint
from sluice.runtime.ha import NotReconciled
from sluice.runtime.jobmanager.attempt.decisions.actions import (
    AdoptDriver,
    LookForDriver,
    Outbox,
    RestoreCheckpoint,
    ScheduleNextAttempt,
    StartTimer,
    Timer,
)
from sluice.runtime.jobmanager.attempt.decisions.driver_placement import DriverPlacement
from sluice.runtime.jobmanager.attempt.decisions.driver_status import DriverStatus, Phase
from sluice.runtime.jobmanager.attempt.decisions.executor_control import ExecutorControl
from sluice.runtime.jobmanager.attempt.decisions.executor_pool import ExecutorPool
from sluice.runtime.jobmanager.attempt.decisions.job_status import JobStatus
from sluice.runtime.jobmanager.attempt.settings import LEASE_MARGIN_SECONDS, Resumption
from sluice.runtime.jobmanager.job_state import ENDING
from sluice.runtime.messages import JobState, RunningDriver, SlotOffer

DRIVER_LOOK_SECONDS = 0.5
"""How often to check whether the TaskManager of an awaited driver still has it."""


class Reconciliation:
    """Waits for the driver and the executors of an attempt that another leader began, and adopts them or gives them up.

    Args:
        resumption: where the driver was, and how long to wait for it.
        lease: seconds for which a driver continues without an answer.
        driver_ended: called when an awaited driver is gone, and the job is ending.
        end_driver: asks the driver to end.
    """

    def __init__(
        self,
        resumption: Resumption,
        status: JobStatus,
        driver: DriverStatus,
        outbox: Outbox,
        *,
        placement: DriverPlacement,
        pool: ExecutorPool,
        executors: ExecutorControl,
        lease: float,
        driver_ended: Callable[[str], None],
        end_driver: Callable[[], None],
    ) -> None:
        self._resumption = resumption
        self._status = status
        self._driver = driver
        self._outbox = outbox
        self._placement = placement
        self._pool = pool
        self._executors = executors
        self._lease = lease
        self._driver_ended = driver_ended
        self._end_driver = end_driver
        self._restored = False
        self._told_to_wait = False

    @property
    def _waiting(self) -> bool:
        return self._driver.phase is Phase.RECONCILING

    def begin(self, savepoint: str) -> None:
        """Wait for the driver; ``savepoint`` is the one that the job started from."""
        self._status.pending_reason = (
            f"its JobManager was lost; waiting for its driver on {self._resumption.taskmanager}, "
            f"at most {max(1, round(self._resumption.seconds))} s"
        )
        self._status.await_executors()
        self._outbox.add(
            RestoreCheckpoint(savepoint),
            StartTimer(Timer.DRIVER_RETURN, self._resumption.seconds),
            StartTimer(Timer.DRIVER_LOOK, DRIVER_LOOK_SECONDS),
        )
        self._executors.resume()
        self._outbox.publish()

    def checkpoint_restored(self, checkpoint: Checkpoint | None) -> None:
        """Note the checkpoint of the driver's streaming queries, which has been read."""
        if self._waiting:
            self._status.checkpoints.restored, self._restored = checkpoint, True

    def slot_held(self, offer: SlotOffer) -> bool:
        """Take over a driver's slot that a TaskManager has held; False when it must be freed."""
        if not self._waiting:
            return self._driver.phase is Phase.RUNNING and self._placement.holds(offer.allocation_id)
        if not offer.held or offer.driver != self._status.number:
            if offer.taskmanager == self._resumption.taskmanager:
                self.driver_absent(offer.taskmanager)
            return False
        self._placement.take_held(offer)
        return True

    def driver_absent(self, taskmanager: str) -> None:
        """Note that the TaskManager on which the driver was does not have it."""
        if self._placement.slot is None:
            self.driver_gone(f"TaskManager {taskmanager} no longer runs its driver")

    def driver_gone(self, why: str) -> None:
        """Give up an awaited driver, which does not run: begin the next attempt, unless the job is ending."""
        if not self._waiting:
            return
        self._placement.given_up = self._placement.given_up or why  # its later messages are refused
        if self._status.state in ENDING:
            self._driver_ended(why)
            return
        self._driver.phase = Phase.OVER
        self._status.history.lost(self._status.number, self._status.now_ms, f"its JobManager was lost, and {why}")
        self._status.executors_missing()
        self._executors.end()
        self._pool.close()
        self._status.enter(JobState.RESTARTING)
        self._status.pending_reason = f"its JobManager was lost, and {why}: it starts again"
        self._outbox.add(ScheduleNextAttempt(self._status.record(), 0.0))

    def check_registration(self, running: RunningDriver | None) -> None:
        """Raise as :meth:`AttemptStateMachine.check_registration` unless the driver may continue now."""
        if not self._waiting:
            return
        if running is not None and running.bound:
            raise PeerRefused(f"this driver can continue only with its own JobMaster: {running.bound}", "it must end")
        lacking = ""
        if self._placement.slot is None:
            lacking = "the TaskManager of this driver has not registered yet"
        elif not self._restored and self._status.state not in ENDING:
            lacking = "the checkpoints of this job are still being read"
        if lacking:
            self._told_to_wait = True
            raise NotReconciled(lacking, "retry later")

    def adopt(self, slot: SlotOffer, running: RunningDriver | None) -> None:
        """Take over the driver in ``slot``, which reports ``running``."""
        self._driver.phase = Phase.RUNNING
        self._status.pending_reason = ""
        self._outbox.add(AdoptDriver(slot, running))
        if self._status.state in ENDING:
            self._end_driver()
        else:
            self._status.enter(JobState.RUNNING)
        self._executors.returned(spark=running is not None and running.app_id != "")

    def return_due(self) -> None:
        """Give up the awaited driver, or wait for another lease if it was told to retry: it may run that long."""
        if not self._waiting:
            return
        if self._told_to_wait:
            self._told_to_wait = False
            self._outbox.add(StartTimer(Timer.DRIVER_RETURN, self._lease + LEASE_MARGIN_SECONDS))
        else:
            self.driver_gone(f"its driver on {self._resumption.taskmanager} did not come back")

    def look_for_driver(self) -> None:
        """Check whether the TaskManager of the driver still has it."""
        if self._waiting:
            self._outbox.add(StartTimer(Timer.DRIVER_LOOK, DRIVER_LOOK_SECONDS))
            if self._placement.slot is None:
                self._outbox.add(LookForDriver(self._resumption.taskmanager))
