"""Attempts under any events in any order: one driver, one end, and nothing is left over or lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.core.errors import PeerRefused, SluiceError
from sluice.runtime.checkpoint.savepoints import Savepoint
from sluice.runtime.jobmanager.attempt.decisions import actions
from sluice.runtime.jobmanager.attempt.decisions.state_machine import AttemptStateMachine
from sluice.runtime.jobmanager.attempt.settings import AttemptSettings
from sluice.runtime.jobmanager.errors import ExecutorUnknown
from sluice.runtime.jobmanager.job_state import ENDING
from sluice.runtime.jobmanager.views import JobRecord, SavepointState
from sluice.runtime.messages import (
    DriverExit,
    Evidence,
    ExecutorExit,
    ExecutorTarget,
    ExecutorTargets,
    JobState,
    SlotOffer,
    SparkRegistration,
    StreamingQuery,
    StreamingState,
)
from tests.unit.runtime.jobmanager.attempt.attempts import DRIVER_SLOT, SIZE, accepted

NUMBERS = strategies.integers(1, 4)
ASYNCHRONOUS = (
    actions.RestoreCheckpoint,
    actions.StartDriver,
    actions.LaunchExecutor,
    actions.TakeSavepoint,
    actions.SettleCheckpoints,
    actions.CollectRecords,
    actions.AskForRestart,
    actions.StopStreaming,
)
"""Actions with an outcome, which comes at any later time."""


class Attempts(RuleBasedStateMachine):
    """The world around one attempt state machine.

    It carries out actions late, in any order, and with any outcome.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        cluster = AttemptSettings(driver_start_timeout=60.0, cancel_grace=10.0, slot_idle_timeout=30.0)
        self.machine = AttemptStateMachine(accepted(), cluster, number=1, executor_size=SIZE, clock=lambda: self.now)
        self.under_way: list[actions.Action] = []
        self.timers: list[actions.StartTimer] = []
        self.drivers = 0
        self.driver_runs = False
        self.driver_told_to_end = False
        self.driver_wanted = False
        self.driver_lost = False
        self.reported = False
        self.launched: set[int] = set()
        self.asked = 0
        self.decision: float | None = None
        self.ends: list[JobRecord] = []
        self.savepoints: set[str] = set()

    @property
    def starting(self) -> bool:
        """Whether the driver is being started."""
        return any(isinstance(each, actions.StartDriver) for each in self.under_way)

    @property
    def placed(self) -> bool:
        """Whether the driver has a slot and is about to be started."""
        return any(each.timer is actions.Timer.DRIVER_PLACED for each in self.timers)

    def event(self, event: Any, *args: Any, **kwargs: Any) -> Any:
        """Pass an event to the state machine and carry out the resulting actions."""
        try:
            return event(*args, **kwargs)
        finally:
            for action in self.machine.take_actions():
                self.carry_out(action)

    def carry_out(self, action: actions.Action) -> None:
        """Start an action and check that it is allowed now."""
        over = bool(self.ends)
        match action:
            case actions.StartTimer():
                self.timers.append(action)
                self.driver_told_to_end = self.driver_told_to_end or action.timer is actions.Timer.DRIVER_GONE
            case actions.RequireDriverSlot():
                self.driver_wanted = True
                assert not over
            case actions.StartDriver(slot):
                self.drivers += 1
                assert slot == DRIVER_SLOT
                assert not over
            case actions.LaunchExecutor(executor_id):
                assert not over
                assert executor_id not in self.launched, "a number is used once"
                assert self.machine.record().detail.state not in ENDING
                self.launched.add(executor_id)
            case actions.EndDriver() | actions.StopDriver():
                self.driver_told_to_end = True
            case actions.AskForRestart():
                self.asked += 1
                assert not over
            case actions.EndJob(record):
                assert not over
                assert record.detail.state.terminal
                self.ends.append(record)
            case actions.ScheduleNextAttempt(record, delay):
                assert not over
                assert delay == self.decision or (self.driver_lost and delay == 0.0), "a restart that nobody decided"
                assert record.detail.state is JobState.RESTARTING
                self.ends.append(record)
            case actions.PublishDetail(detail):
                assert not detail.state.terminal, "a result is shown when it is durable, and by the Dispatcher"
            case _:
                pass
        if isinstance(action, ASYNCHRONOUS):
            self.under_way.append(action)

    # --- events -------------------------------------------------------------------------------------------------

    @initialize(ready=strategies.booleans())
    def begin(self, ready: bool) -> None:
        """Start the JobMaster.

        If ``ready`` is set, as in half of the runs, the job is already running, streams and has executors.
        """
        self.event(self.machine.begin)
        if not ready:
            return
        self.finish(self.under_way.pop(0), well=True, delay=None)  # restored
        self.the_driver_gets_a_slot()
        self.fire(next(each for each in self.timers if each.timer is actions.Timer.DRIVER_PLACED))
        self.finish(self.under_way.pop(0), well=True, delay=None)  # started
        self.the_driver_registers()
        self.a_spark_context_starts("app-1")
        self.spark_wants_executors(1, 2)
        self.a_slot_is_offered(1)
        self.a_slot_is_offered(2)
        self.event(self.machine.executors.reconcile)
        self.a_batch_is_committed(1)

    @precondition(lambda self: self.under_way)
    @rule(data=strategies.data(), well=strategies.booleans())
    def outcome(self, data: strategies.DataObject, well: bool) -> None:
        """An action that was under way ends, well or not."""
        index = data.draw(strategies.integers(0, len(self.under_way) - 1))
        self.finish(self.under_way.pop(index), well=well, delay=data.draw(strategies.sampled_from([None, 0.0, 5.0])))

    def finish(self, action: Any, *, well: bool, delay: float | None) -> None:
        """Report the outcome of one action to the state machine."""
        machine, executors = self.machine, self.machine.executors
        failed = lambda: (machine.driver_not_started, "no python")  # noqa: E731
        outcomes: dict[type, tuple[Callable[[], Any], Callable[[], Any]]] = {
            actions.RestoreCheckpoint: (lambda: (machine.checkpoint_restored, None), failed),
            actions.StartDriver: (lambda: (machine.driver_started,), failed),
            actions.LaunchExecutor: (
                lambda: (executors.executor_launched, action.executor_id),
                lambda: (executors.executor_not_launched, action.executor_id, action.slot, "no"),
            ),
            actions.TakeSavepoint: (
                lambda: (machine.streaming.savepoint_taken, _savepoint(action)),
                lambda: (machine.streaming.savepoint_failed, "no space"),
            ),
            actions.StopStreaming: (lambda: (len, ()), lambda: (machine.streaming.not_stopped, "no answer")),
            actions.SettleCheckpoints: (
                lambda: (machine.conclusion.checkpoints_settled,),
                lambda: (machine.conclusion.records_lost,),
            ),
            actions.CollectRecords: (
                lambda: (machine.conclusion.records_collected, Evidence()),
                lambda: (machine.conclusion.records_lost,),
            ),
            actions.AskForRestart: (
                lambda: (machine.conclusion.restart_decided, delay),
                lambda: (machine.conclusion.restart_decided, None),
            ),
        }
        event, *arguments = outcomes[type(action)][0 if well else 1]()
        self.driver_runs = self.driver_runs or (well and isinstance(action, actions.StartDriver))
        if isinstance(action, actions.AskForRestart):
            self.decision = delay if well else None
        flags = {
            machine.driver_not_started: {"permanent": delay is None},
            executors.executor_not_launched: {"unreachable": delay is None},
        }
        self.event(event, *arguments, **flags.get(event, {}))

    @precondition(lambda self: self.timers)
    @rule(data=strategies.data())
    def time_passes(self, data: strategies.DataObject) -> None:
        """A random timer fires."""
        self.fire(self.timers[data.draw(strategies.integers(0, len(self.timers) - 1))])

    def fire(self, timer: actions.StartTimer) -> None:
        """Fire a timer; a driver that was lost ends with its lease at ``DRIVER_GONE``."""
        self.timers.remove(timer)
        self.now += timer.seconds
        if timer.timer is actions.Timer.DRIVER_GONE:
            self.driver_runs = False
        self.event(self.machine.timer_fired, timer.timer, timer.executor_ids)

    @precondition(lambda self: self.driver_wanted)
    @rule()
    def the_driver_gets_a_slot(self) -> None:
        """The driver's slot is offered; it is accepted once, and again while the driver runs there."""
        taken = self.event(self.machine.driver_slot_offered, DRIVER_SLOT)
        assert not (taken and self.ends)

    @precondition(lambda self: self.driver_wanted)
    @rule()
    def the_taskmanager_of_the_driver_is_lost(self) -> None:
        """Lose the driver's TaskManager; the driver must not continue, whatever answer it gets."""
        known = self.driver_runs or self.starting or self.placed
        reported = self.reported
        self.event(self.machine.slots_lost, ("driver-slot",), "tm")
        if reported:
            self.driver_runs = False  # that was the end of its work
        self.driver_lost = self.driver_lost or known

    @precondition(lambda self: self.driver_lost)
    @rule()
    def a_lost_driver_asks_for_its_lease(self) -> None:
        """A lost driver asks to renew its lease and is refused."""
        with contextlib.suppress(PeerRefused):
            self.machine.check_current(1)
            raise AssertionError("it was not refused")

    @precondition(lambda self: self.driver_runs)
    @rule()
    def the_driver_registers(self) -> None:
        """The driver registers, for the first time or again after a lost connection."""
        with contextlib.suppress(PeerRefused):
            self.event(self.machine.driver_registered, 1)

    @rule(number=strategies.integers(2, 3))
    def a_driver_of_another_attempt_registers(self, number: int) -> None:
        """A driver of another attempt registers and is refused."""
        with contextlib.suppress(PeerRefused):
            self.event(self.machine.driver_registered, number)
            raise AssertionError("it was not refused")

    @rule(succeeded=strategies.booleans())
    def the_driver_reports(self, succeeded: bool) -> None:
        """The driver reports the end of its work."""
        self.reported = True
        self.event(self.machine.driver_finished, DriverExit(succeeded=succeeded, exit_code=0 if succeeded else 1))

    @precondition(lambda self: self.drivers and not self.driver_runs and not self.starting)
    @rule()
    def the_driver_is_said_to_have_ended_again(self) -> None:
        """A repeated report that the driver has ended changes nothing."""
        self.event(self.machine.driver_ended, "exit code 0")

    @precondition(lambda self: self.driver_runs)
    @rule()
    def the_driver_ends(self) -> None:
        """The driver's process ends."""
        self.driver_runs = False
        self.event(self.machine.driver_ended, "exit code 0")

    @rule(app=strategies.sampled_from(["app-1", "app-2"]))
    def a_spark_context_starts(self, app: str) -> None:
        """The first SparkContext or another one starts."""
        self.event(
            self.machine.executors.spark_started,
            SparkRegistration(
                app_id=app, driver_url="spark://x", startup_conf={}, java_options=(), executor_memory_mb=768,
                executor_cores=1,
            ),
        )  # fmt: skip

    @rule(version=NUMBERS, total=strategies.integers(0, 4))
    def spark_wants_executors(self, version: int, total: int) -> None:
        """Spark requests some number of executors."""
        target = ExecutorTarget(resource_profile_id=0, total=total, cores=1, memory_mb=768)
        self.event(self.machine.executors.set_executor_targets, ExecutorTargets(version=version, targets=(target,)))

    @rule(ids=strategies.sets(NUMBERS))
    def spark_gives_executors_up(self, ids: set[int]) -> None:
        """Spark releases executors, known and unknown ones."""
        self.event(self.machine.executors.kill_executors, ids)

    @rule(number=NUMBERS)
    def a_slot_is_offered(self, number: int) -> None:
        """A slot is offered; it is not accepted once the attempt has ended."""
        offer = SlotOffer(taskmanager="tm", host="h", slot=number, allocation_id=f"slot-{number}", profile=SIZE)
        taken = self.event(self.machine.executors.offer_slot, offer)
        assert not (taken and self.ends)

    @rule(number=NUMBERS, code=strategies.sampled_from([0, 1, 137]), known=strategies.booleans())
    def an_executor_ends(self, number: int, code: int, known: bool) -> None:
        """An executor ends, and its own or another TaskManager reports that."""
        report = ExecutorExit(executor_id=number, exit_code=code, by_application=code == 1, reason="ended")
        with contextlib.suppress(ExecutorUnknown):
            self.event(self.machine.executors.executor_exited, report, "tm" if known else "other")
            assert known, "another TaskManager was believed"

    @rule(number=NUMBERS, lost=strategies.booleans())
    def a_taskmanager_goes(self, number: int, lost: bool) -> None:
        """A TaskManager leaves, by failing or by draining."""
        executors = self.machine.executors
        self.event(self.machine.slots_lost if lost else executors.slots_draining, (f"slot-{number}",), "tm")

    @rule(batch=NUMBERS)
    def a_batch_is_committed(self, batch: int) -> None:
        """A batch of a streaming query is committed; a lower number than before means a lost checkpoint."""
        query = StreamingQuery(id="q", run_id="r", name="rows", location="l", state="RUNNING", batch=batch)
        self.event(self.machine.streaming.reported, StreamingState(queries=(query,)))

    @rule(number=NUMBERS, stop=strategies.booleans())
    def a_savepoint_is_requested(self, number: int, stop: bool) -> None:
        """Request a savepoint; every accepted request must have its answer at the end."""
        name = f"sp-{number}-{len(self.savepoints)}"
        with contextlib.suppress(SluiceError):
            self.event(self.machine.streaming.savepoint_requested, name, stop=stop)
            self.savepoints.add(name)
            assert not self.ends

    @rule()
    def somebody_cancels(self) -> None:
        """The job is cancelled; a job that has ended refuses that."""
        with contextlib.suppress(SluiceError):
            self.event(self.machine.cancel)

    @rule()
    def something_fails(self) -> None:
        """The JobMaster fails with an internal error."""
        self.event(self.machine.fail, "internal error")

    # --- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def one_driver_at_most(self) -> None:
        """An attempt starts at most one driver, and starts it once."""
        assert self.drivers <= 1

    @invariant()
    def one_question_and_one_end_at_most(self) -> None:
        """An attempt asks for a restart and ends at most once, so the strategy counts each failure once."""
        assert self.asked <= 1
        assert len(self.ends) <= 1

    @invariant()
    def nothing_ends_while_the_driver_runs(self) -> None:
        """An attempt does not end while its driver runs, because the next attempt would start a second one."""
        assert not (self.ends and self.driver_runs)

    @invariant()
    def an_end_is_complete(self) -> None:
        """At the end all executors are gone and every accepted savepoint request is answered."""
        for record in self.ends:
            assert all(each.state == "EXITED" for each in record.detail.executors)
            answers = {each.id: each.state for each in record.savepoints}
            assert self.savepoints <= set(answers)
            assert SavepointState.IN_PROGRESS not in answers.values()

    @invariant()
    def a_job_that_ends_has_ended_its_driver(self) -> None:
        """The driver of a failing or cancelled job has been told to end."""
        if self.driver_runs and self.machine.record().detail.state in ENDING:
            assert self.driver_told_to_end

    def teardown(self) -> None:
        """Whatever happened before, the attempt ends once its driver has ended and all outcomes are known."""
        for _ in range(20):
            if self.driver_runs:
                self.the_driver_ends()
            if self.driver_wanted:
                self.the_driver_gets_a_slot()
            for timer in [*self.timers]:
                if timer.timer in {actions.Timer.DRIVER_PLACED, actions.Timer.DRIVER_GONE}:
                    self.fire(timer)
            for action in [*self.under_way]:
                self.under_way.remove(action)
                self.finish(action, well=True, delay=None)
        assert len(self.ends) == 1
        self.an_end_is_complete()
        self.one_question_and_one_end_at_most()
        before = len(self.under_way)
        self.somebody_cancels()
        self.event(self.machine.executors.reconcile)
        assert len(self.under_way) == before


def _savepoint(action: actions.TakeSavepoint) -> Savepoint:
    return Savepoint(
        id=action.request.id, path="/s", job_id="1" * 32, job_name="p", owner="ann", created_at=1,
        stopped=action.request.stop, checkpoint=action.checkpoint, files=1, size=1,
    )  # fmt: skip


TestAttempts = Attempts.TestCase
TestAttempts.settings = settings(max_examples=150, stateful_step_count=60)
