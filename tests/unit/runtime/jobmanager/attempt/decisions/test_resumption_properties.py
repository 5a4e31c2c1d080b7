"""Property tests of leader changes.

Either a driver goes on or another one begins, never both, and nothing is lost.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.core.errors import PeerRefused, SluiceError
from sluice.runtime.ha import NotReconciled
from sluice.runtime.jobmanager.attempt.decisions import actions
from sluice.runtime.jobmanager.attempt.decisions.state_machine import AttemptStateMachine
from sluice.runtime.jobmanager.attempt.settings import LEASE_MARGIN_SECONDS, AttemptSettings, Resumption
from sluice.runtime.jobmanager.dispatcher.job_records import interrupted_record, resumed_record
from sluice.runtime.jobmanager.dispatcher.orphaned_drivers import may_run
from sluice.runtime.jobmanager.store.job_history import JobHistory
from sluice.runtime.jobmanager.store.job_store import AcceptedJob, Attempt
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import DriverExit, Evidence, JobState, RunningDriver, SlotKind, SlotOffer
from tests.unit.runtime.jobmanager.attempt.attempts import JOB, SIZE, SUBMISSION

LEASE = 20.0
SETTINGS = AttemptSettings(driver_start_timeout=60.0, cancel_grace=10.0, lease=LEASE)


@dataclass
class Driver:
    """A simulated driver. It works until it ends, and ends itself when its lease expires."""

    attempt: int
    renewed_at: float
    told_work: bool = False


class Leaders(RuleBasedStateMachine):
    """One job, its drivers and a succession of leaders. Only durable state survives a change of leader."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.attempt = Attempt(number=1, epoch=1, origin="here", token="0" * 32)
        self.history = JobHistory()
        self.cancelled = False
        self.drivers: list[Driver] = []
        self.results: list[JobRecord] = []
        self.machine: AttemptStateMachine | None = None
        self.pending: list[Any] = []
        self.timers: list[tuple[float, actions.StartTimer]] = []
        self.lead(fresh=True)

    @initialize(started=strategies.sampled_from([True, True, False]), registered=strategies.booleans())
    def begin(self, started: bool, registered: bool) -> None:
        """Start most runs with a driver."""
        if not started:
            return
        self._do_first()  # restored
        self.a_slot_for_a_new_driver_is_offered()
        self._pass(0.5)
        self._do_first()  # started
        if registered:
            self._register(self.drivers[0])

    # --- leaders ------------------------------------------------------------------------------------------------

    def lead(self, *, fresh: bool = False) -> None:
        """Let a new leader's Dispatcher take over, or let the current one begin the next attempt."""
        self.pending, self.timers, self.machine = [], [], None
        if self.results:
            return
        job = AcceptedJob(
            job_id=JOB, name="p.py", owner="ann", accepted_at=1, cancelled=self.cancelled, submission=SUBMISSION,
            attempt=None if fresh else self.attempt,
        )  # fmt: skip
        resumption = None
        if not fresh and may_run(job, self.history):
            record = resumed_record(job, self.history)
            resumption = Resumption(self.attempt.taskmanager, LEASE + LEASE_MARGIN_SECONDS)
        else:
            if self.cancelled:
                self.results.append(interrupted_record(job, self.history))
                return
            record = interrupted_record(job, self.history)
            if not fresh:
                number = self.attempt.number + 1
                self.attempt = Attempt(number=number, epoch=1, origin="here", token="0" * 32)
        self.machine = AttemptStateMachine(
            record, SETTINGS, number=self.attempt.number, executor_size=SIZE, clock=lambda: self.now,
            resumption=resumption,
        )  # fmt: skip
        self.event(self.machine.begin)
        if self.cancelled and self.machine is not None:
            with contextlib.suppress(SluiceError):
                self.event(self.machine.cancel)

    @rule()
    def the_leader_is_lost(self) -> None:
        """Replace the leader; all state that was not durable is lost."""
        self.lead()

    def event(self, event: Any, *args: Any) -> Any:
        """Send an event to the JobMaster and carry out the resulting actions."""
        machine = self.machine
        assert machine is not None
        try:
            return event(*args)
        finally:
            for action in machine.take_actions():
                self.carry_out(action)

    def carry_out(self, action: actions.Action) -> None:
        match action:
            case actions.StartTimer():
                self.timers.append((self.now + action.seconds, action))
            case actions.KeepHistory(history):
                self.history = history
            case actions.EndJob(record):
                self.results.append(record)
                self.machine = None
            case actions.ScheduleNextAttempt():
                self.pending = [action]
            case actions.StartDriver() | actions.SettleCheckpoints() | actions.CollectRecords():
                self.pending.append(action)
            case actions.RestoreCheckpoint() | actions.AskForRestart():
                self.pending.append(action)
            case _:
                pass

    @precondition(lambda self: self.machine is not None and self.pending)
    @rule(data=strategies.data())
    def something_is_done(self, data: strategies.DataObject) -> None:
        """Complete one of the actions that the JobMaster has requested, in any order."""
        machine = self.machine
        assert machine is not None
        self._do(machine, self.pending.pop(data.draw(strategies.integers(0, len(self.pending) - 1))), restart=0.0)

    def _do(self, machine: AttemptStateMachine, action: Any, *, restart: float | None) -> None:
        match action:
            case actions.RestoreCheckpoint():
                self.event(machine.checkpoint_restored, None)
            case actions.StartDriver(slot):  # durable first
                self.attempt = Attempt(
                    number=self.attempt.number, epoch=1, origin="here", token="0" * 32, taskmanager=slot.taskmanager
                )
                self.drivers.append(Driver(self.attempt.number, self.now))
                self.event(machine.driver_started)
            case actions.SettleCheckpoints():
                self.event(machine.conclusion.checkpoints_settled)
            case actions.CollectRecords():
                self.event(machine.conclusion.records_collected, Evidence())
            case actions.AskForRestart():
                self.event(machine.conclusion.restart_decided, restart)
            case actions.ScheduleNextAttempt(record):
                self.history = JobHistory(attempts=record.detail.attempts)
                self.lead()

    # --- time and drivers ---------------------------------------------------------------------------------------

    @rule(seconds=strategies.sampled_from([0.5, 5.0, 12.0]))
    def time_passes(self, seconds: float) -> None:
        """Advance the clock: drivers with an expired lease end, and timers fire."""
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.drivers = [each for each in self.drivers if self.now - each.renewed_at < LEASE]
        due = [timer for at, timer in self.timers if at <= self.now]
        self.timers = [(at, timer) for at, timer in self.timers if at > self.now]
        for timer in due:
            if self.machine is not None:
                self.event(self.machine.timer_fired, timer.timer, timer.executor_ids)

    @precondition(lambda self: self.machine is not None)
    @rule(data=strategies.data())
    def the_taskmanager_offers_the_drivers_slot(self, data: strategies.DataObject) -> None:
        """Offer the driver's slot again, with whatever runs in it.

        If the slot is refused, it is freed and its driver ends.
        """
        assert self.machine is not None
        driver = data.draw(strategies.sampled_from(self.drivers)) if self.drivers else None
        offer = SlotOffer(
            taskmanager="tm-1", host="h", slot=0, allocation_id=f"slot-{driver.attempt if driver else 0}", profile=SIZE,
            kind=SlotKind.DRIVER, held=True, driver=driver.attempt if driver else 0,
        )  # fmt: skip
        if not self.event(self.machine.driver_slot_offered, offer) and driver is not None:
            self.drivers.remove(driver)

    @precondition(lambda self: self.machine is not None)
    @rule()
    def a_slot_for_a_new_driver_is_offered(self) -> None:
        """Offer a slot for a new driver, as after a decision of the ResourceManager."""
        assert self.machine is not None
        offer = SlotOffer(
            taskmanager="tm-1", host="h", slot=1, allocation_id=f"slot-{self.attempt.number}", profile=SIZE,
            kind=SlotKind.DRIVER,
        )  # fmt: skip
        if self.attempt.taskmanager == "":
            self.event(self.machine.driver_slot_offered, offer)

    @precondition(lambda self: self.machine is not None and self.drivers)
    @rule(data=strategies.data())
    def a_driver_registers(self, data: strategies.DataObject) -> None:
        """Register a driver with the current leader; a driver that is refused ends."""
        self._register(data.draw(strategies.sampled_from(self.drivers)))

    def _register(self, driver: Driver) -> None:
        assert self.machine is not None
        running = RunningDriver(spark_auth_secret="0" * 64) if driver.told_work else None
        try:
            self.event(self.machine.driver_registered, driver.attempt, running)
        except PeerRefused:
            self.drivers.remove(driver)
        except NotReconciled:
            driver.renewed_at = self.now
        else:
            driver.told_work, driver.renewed_at = True, self.now

    @precondition(lambda self: self.machine is not None and self.drivers)
    @rule(data=strategies.data())
    def a_driver_ends(self, data: strategies.DataObject) -> None:
        """End a driver, with or without its work done.

        The leader is told only if the driver belongs to its current attempt.
        """
        machine = self.machine
        assert machine is not None
        driver = data.draw(strategies.sampled_from(self.drivers))
        self.drivers.remove(driver)
        if driver.attempt != self.attempt.number:
            return
        if driver.told_work and data.draw(strategies.booleans()):
            with contextlib.suppress(NotReconciled):
                self.event(machine.driver_finished, DriverExit(succeeded=True, exit_code=0))
        if self.machine is not None:
            self.event(machine.driver_gone, "exit code 0")
            self.event(machine.driver_ended, "exit code 0")

    @precondition(lambda self: self.machine is not None)
    @rule()
    def the_taskmanager_does_not_have_the_driver(self) -> None:
        """Report the driver as absent, but only if it really is."""
        assert self.machine is not None
        if not self.drivers:
            self.event(self.machine.driver_absent, "tm-1")

    @precondition(lambda self: self.machine is not None)
    @rule()
    def somebody_cancels(self) -> None:
        """Cancel the job; the cancellation is durable before the JobMaster is told."""
        assert self.machine is not None
        self.cancelled = True
        with contextlib.suppress(SluiceError):
            self.event(self.machine.cancel)

    # --- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def two_drivers_never_have_work(self) -> None:
        """At most one driver has work, and none starts while an old one may still write."""
        assert len([each for each in self.drivers if each.told_work]) <= 1
        assert len(self.drivers) <= 1

    @invariant()
    def one_result_at_most(self) -> None:
        """There is at most one result, and none while a driver is working."""
        assert len(self.results) <= 1
        assert not (self.results and self.drivers)

    @invariant()
    def a_job_that_is_cancelled_does_not_start_again(self) -> None:
        """A cancelled job does not start again unless it had begun before."""
        if self.machine is not None and self.cancelled:
            assert self.machine.record().detail.state is not JobState.CREATED

    def teardown(self) -> None:
        """Check that the job ends under the last leader, whatever happened before."""
        for _ in range(12):
            if self.machine is None:
                break
            self.now += LEASE + 2 * LEASE_MARGIN_SECONDS
            self.drivers = []
            for _, timer in [*self.timers]:
                if self.machine is not None:
                    self.event(self.machine.timer_fired, timer.timer, timer.executor_ids)
            self.timers = []
            machine = self.machine
            if machine is not None:
                with contextlib.suppress(SluiceError):
                    self.cancelled = True
                    self.event(machine.cancel)
                self.event(machine.driver_ended, "killed")
                while self.pending and self.machine is not None:
                    self._do_first()
        assert self.machine is None
        assert len(self.results) == 1

    def _do_first(self, restart: float | None = None) -> None:
        assert self.machine is not None
        self._do(self.machine, self.pending.pop(0), restart=restart)


TestLeaders = Leaders.TestCase
TestLeaders.settings = settings(max_examples=150, stateful_step_count=50)
