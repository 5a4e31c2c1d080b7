"""Takes over an attempt that began under an earlier leader, once its driver is back (ADR 103). No I/O."""

from __future__ import annotations

from collections.abc import Callable

from sluice.core import PeerRefused
from sluice.runtime.checkpoint import Checkpoint
from sluice.runtime.ha import NotReconciled
from sluice.runtime.jobmanager.attempt.decisions.actions import (
    AdoptDriver,
    HandOver,
    LookForDriver,
    Outbox,
    RestoreCheckpoint,
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
"""How often it is asked whether the TaskManager of a driver that is waited for still has it."""


class Reconciliation:
    """Waits for the driver and the executors of an attempt that another leader began, and adopts them or gives them up.

    Args:
        resumption: where its driver was, and how long it may take.
        lease: seconds that a driver goes on without an answer.
        driver_ended: told when a driver that was waited for is gone, and nobody wants another one.
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
        """Wait for the driver; ``savepoint`` is what the job was to begin from."""
        self._status.pending_reason = (
            f"its JobManager was lost; its driver on {self._resumption.taskmanager} is waited for, "
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
        """What the driver's streaming queries have committed was read."""
        if self._waiting:
            self._status.checkpoints.restored, self._restored = checkpoint, True

    def slot_held(self, offer: SlotOffer) -> bool:
        """A TaskManager offers a driver's slot that it has held; False when it is to be freed."""
        if not self._waiting:
            return self._driver.phase is Phase.RUNNING and self._placement.holds(offer.allocation_id)
        if not offer.held or offer.driver != self._status.number:
            if offer.taskmanager == self._resumption.taskmanager:
                self.driver_absent(offer.taskmanager)
            return False
        self._placement.take_held(offer)
        return True

    def driver_absent(self, taskmanager: str) -> None:
        """This TaskManager, on which the driver was, does not have it."""
        if self._placement.slot is None:
            self.driver_gone(f"TaskManager {taskmanager} does not run its driver any more")

    def driver_gone(self, why: str) -> None:
        """A driver that was waited for does not run: the next attempt begins, unless somebody wants the job's end."""
        if not self._waiting:
            return
        self._placement.given_up = self._placement.given_up or why  # from here on no word of it counts
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
        self._outbox.add(HandOver(self._status.record(), 0.0))

    def check_registration(self, running: RunningDriver | None) -> None:
        """Raise as :meth:`AttemptStateMachine.check_registration` unless the driver may go on now."""
        if not self._waiting:
            return
        if running is not None and running.bound:
            raise PeerRefused(f"only its own JobMaster can go on with this driver: {running.bound}", "it must end")
        lacking = ""
        if self._placement.slot is None:
            lacking = "the TaskManager of this driver has not registered yet"
        elif not self._restored and self._status.state not in ENDING:
            lacking = "the checkpoints of this job are still being read"
        if lacking:
            self._told_to_wait = True
            raise NotReconciled(lacking, "ask again")

    def adopt(self, slot: SlotOffer, running: RunningDriver | None) -> None:
        """Go on with the driver in ``slot``, which is ``running`` this."""
        self._driver.phase = Phase.RUNNING
        self._status.pending_reason = ""
        self._outbox.add(AdoptDriver(slot, running))
        if self._status.state in ENDING:
            self._end_driver()
        else:
            self._status.enter(JobState.RUNNING)
        self._executors.returned(spark=running is not None and running.app_id != "")

    def return_due(self) -> None:
        """A driver that was told to wait may run for another lease; its TaskManager must come meanwhile."""
        if not self._waiting:
            return
        if self._told_to_wait:
            self._told_to_wait = False
            self._outbox.add(StartTimer(Timer.DRIVER_RETURN, self._lease + LEASE_MARGIN_SECONDS))
        else:
            self.driver_gone(f"its driver on {self._resumption.taskmanager} did not come back")

    def look(self) -> None:
        """Ask whether the TaskManager of the driver has it still."""
        if self._waiting:
            self._outbox.add(StartTimer(Timer.DRIVER_LOOK, DRIVER_LOOK_SECONDS))
            if self._placement.slot is None:
                self._outbox.add(LookForDriver(self._resumption.taskmanager))
