"""The state machine of an attempt, event by event: the job's state and the resulting actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sluice.core.errors import PeerRefused
from sluice.runtime.checkpoint.errors import SavepointFailed
from sluice.runtime.checkpoint.ledger import Checkpoint, QueryCheckpoint
from sluice.runtime.checkpoint.savepoints import Savepoint
from sluice.runtime.jobmanager.attempt.decisions import actions
from sluice.runtime.jobmanager.attempt.decisions.actions import Timer
from sluice.runtime.jobmanager.attempt.decisions.driver_placement import DRIVER_REQUIREMENT_REPEAT_SECONDS
from sluice.runtime.jobmanager.attempt.decisions.history_log import LOST
from sluice.runtime.jobmanager.attempt.decisions.state_machine import (
    CANCEL_MARGIN_SECONDS,
    DRIVER_EXIT_GRACE_SECONDS,
    KILL_GRACE_SECONDS,
    AttemptStateMachine,
)
from sluice.runtime.jobmanager.attempt.decisions.streaming_control import STOP_STREAMING_SECONDS
from sluice.runtime.jobmanager.attempt.settings import LEASE_MARGIN_SECONDS, AttemptSettings
from sluice.runtime.jobmanager.errors import DriverUnknown, ExecutorUnknown, JobAlreadyTerminal
from sluice.runtime.jobmanager.views import AttemptView, SavepointState
from sluice.runtime.messages import (
    DriverExit,
    Evidence,
    ExecutorExcess,
    ExecutorExit,
    ExecutorTarget,
    ExecutorTargets,
    JobState,
    SlotCount,
    SlotOffer,
    SparkRegistration,
    StreamingQuery,
    StreamingState,
    TaskFailure,
)
from tests.unit.runtime.jobmanager.attempt.attempts import DRIVER_SLOT, SIZE, accepted

GOOD = DriverExit(succeeded=True, exit_code=0)
BAD = DriverExit(succeeded=False, exit_code=1, error="KeyError: 'x'", traceback="Traceback …")
SPARK = SparkRegistration(
    app_id="app-1", driver_url="spark://x", startup_conf={}, java_options=(), executor_memory_mb=768, executor_cores=1
)
SETTINGS = AttemptSettings(driver_start_timeout=60.0, cancel_grace=10.0, drain_timeout=300.0)


class Attempt:
    """A state machine with helpers that return the actions it has requested since the last call."""

    def __init__(self, settings: AttemptSettings = SETTINGS) -> None:
        self.now = 1000.0
        self.machine = AttemptStateMachine(accepted(), settings, number=1, executor_size=SIZE, clock=lambda: self.now)
        self.executors = self.machine.executors

    @property
    def state(self) -> JobState:
        return self.machine.record().detail.state

    def do(self, event: Callable[..., object], *args: Any, **kwargs: Any) -> list[actions.Action]:
        """Trigger an event and return the resulting actions, except those that only publish or record state."""
        event(*args, **kwargs)
        shown = (actions.PublishDetail, actions.KeepHistory)
        return [each for each in self.machine.take_actions() if not isinstance(each, shown)]

    def starting(self) -> Attempt:
        self.placing()
        assert self.machine.driver_slot_offered(DRIVER_SLOT)
        self.do(len, ())
        assert self.do(self.machine.timer_fired, Timer.DRIVER_PLACED) == [actions.StartDriver(DRIVER_SLOT)]
        return self

    def placing(self) -> Attempt:
        self.do(self.machine.begin)
        wanted = actions.StartTimer(Timer.DRIVER_REQUIREMENT, DRIVER_REQUIREMENT_REPEAT_SECONDS)
        assert self.do(self.machine.checkpoint_restored, None) == [actions.RequireDriverSlot(), wanted]
        return self

    def running(self) -> Attempt:
        self.starting()
        self.do(self.machine.driver_started)
        self.do(self.machine.driver_registered, 1)
        return self

    def with_executors(self) -> Attempt:
        self.running()
        self.do(self.executors.spark_started, SPARK)
        target = ExecutorTarget(resource_profile_id=0, total=2, cores=1, memory_mb=768)
        self.do(self.executors.set_executor_targets, ExecutorTargets(version=1, targets=(target,)))
        for number in (1, 2):
            assert self.executors.offer_slot(slot(number))
        launched = self.do(self.machine.timer_fired, Timer.RECONCILE)
        assert [each.executor_id for each in launched if isinstance(each, actions.LaunchExecutor)] == [1, 2]
        return self

    def streaming(self, *, batch: int = 1) -> Attempt:
        self.running()
        self.do(self.machine.streaming.reported, streams(batch))
        return self

    def ends(self, how: str = "exit code 0") -> list[actions.Action]:
        """End the driver process and return what follows, up to the next question to another component."""
        assert self.do(self.machine.driver_ended, how) == [actions.SettleCheckpoints()]
        followed = self.do(self.machine.conclusion.checkpoints_settled)
        if followed == [actions.CollectRecords()]:
            followed = self.do(self.machine.conclusion.records_collected, Evidence())
        return followed


def slot(number: int) -> SlotOffer:
    return SlotOffer(taskmanager="tm-1", host="h", slot=number, allocation_id=f"slot-{number}", profile=SIZE)


def streams(batch: int, *, name: str = "rows") -> StreamingState:
    query = StreamingQuery(id="q", run_id="r", name=name, location="l", state="RUNNING", batch=batch)
    return StreamingState(queries=(query,))


def timers(taken: list[actions.Action]) -> dict[Timer, float]:
    return {each.timer: each.seconds for each in taken if isinstance(each, actions.StartTimer)}


def error_of(attempt: Attempt) -> str:
    failure = attempt.machine.record().detail.failure
    return failure.error if failure is not None else ""


# --- beginning ------------------------------------------------------------------------------------------------


def test_an_attempt_asks_for_executors_as_soon_as_its_driver_has_a_slot() -> None:
    attempt = Attempt()
    assert attempt.do(attempt.machine.begin) == [actions.RestoreCheckpoint("")]
    attempt.do(attempt.machine.checkpoint_restored, None)
    taken = attempt.do(attempt.machine.driver_slot_offered, DRIVER_SLOT)
    assert actions.RequireSlots((SlotCount(SIZE, 2),)) in taken
    assert attempt.state is JobState.CREATED
    assert attempt.machine.record().detail.attempts[-1].taskmanager == "tm-1"


def test_an_attempt_shows_why_its_driver_waits_for_a_slot_and_requests_it_again() -> None:
    attempt = Attempt().placing()
    attempt.do(attempt.machine.placement.required, "no slot for its driver")
    assert attempt.machine.record().detail.pending_reason == "no slot for its driver"
    assert actions.RequireDriverSlot() in attempt.do(attempt.machine.timer_fired, Timer.DRIVER_REQUIREMENT)
    assert attempt.machine.driver_slot_offered(DRIVER_SLOT)
    assert attempt.machine.record().detail.pending_reason == ""
    attempt.do(attempt.machine.placement.required, "too late")
    assert attempt.machine.record().detail.pending_reason == ""
    assert attempt.do(attempt.machine.timer_fired, Timer.DRIVER_REQUIREMENT) == []


def test_a_driver_takes_one_slot_and_the_same_offer_again() -> None:
    attempt = Attempt().starting()
    other = msgspec.structs.replace(DRIVER_SLOT, allocation_id="another")
    assert attempt.machine.driver_slot_offered(DRIVER_SLOT)
    assert not attempt.machine.driver_slot_offered(other)
    attempt.do(attempt.machine.driver_started)
    attempt.do(attempt.machine.driver_ended, "exit code 0")
    assert not attempt.machine.driver_slot_offered(DRIVER_SLOT)


def test_a_job_that_is_cancelled_while_its_driver_waits_for_a_slot_ends() -> None:
    attempt = Attempt().placing()
    assert attempt.do(attempt.machine.cancel) == [actions.SettleCheckpoints()]
    assert not attempt.machine.driver_slot_offered(DRIVER_SLOT)
    attempt.do(attempt.machine.conclusion.checkpoints_settled)
    attempt.do(attempt.machine.conclusion.records_collected, Evidence())
    assert attempt.state is JobState.CANCELED


def test_a_driver_whose_slot_came_after_the_end_was_decided_is_not_started() -> None:
    attempt = Attempt().placing()
    assert attempt.machine.driver_slot_offered(DRIVER_SLOT)
    attempt.do(attempt.machine.cancel)
    assert attempt.do(attempt.machine.timer_fired, Timer.DRIVER_PLACED) == [actions.SettleCheckpoints()]


def test_a_lost_taskmanager_fails_the_attempt_which_ends_when_the_lease_of_its_driver_is_over() -> None:
    attempt = Attempt(dataclasses.replace(SETTINGS, lease=10.0)).running()
    taken = attempt.do(attempt.machine.slots_lost, ("driver-slot",), "tm-1")
    assert attempt.state is JobState.FAILING
    assert timers(taken)[Timer.DRIVER_GONE] == 10.0 + LEASE_MARGIN_SECONDS
    with pytest.raises(PeerRefused):
        attempt.machine.check_current(1)  # its lease is not renewed any more
    with pytest.raises(PeerRefused):
        attempt.machine.driver_registered(1)
    assert attempt.do(attempt.machine.timer_fired, Timer.DRIVER_GONE) == [actions.SettleCheckpoints()]
    assert error_of(attempt) == "TaskManager tm-1, on which the driver ran, is lost"


@pytest.mark.parametrize(("lost_before", "decides"), [(0, False), (2, False), (3, True)])
def test_a_job_restarts_a_few_times_after_lost_taskmanagers_whatever_its_restart_strategy(
    lost_before: int, decides: bool
) -> None:
    attempt = Attempt(dataclasses.replace(SETTINGS, lease=10.0))
    earlier = tuple(
        AttemptView(number=each, started_at=1, outcome=LOST, taskmanager="tm-1") for each in range(lost_before)
    )
    attempt.machine._status.history.attempts = earlier
    attempt.running()
    attempt.do(attempt.machine.slots_lost, ("driver-slot",), "tm-1")
    attempt.do(attempt.machine.timer_fired, Timer.DRIVER_GONE)
    attempt.do(attempt.machine.conclusion.checkpoints_settled)
    taken = attempt.do(attempt.machine.conclusion.records_collected, Evidence())
    assert (actions.AskForRestart() in taken) is decides
    handed_over = [each for each in taken if isinstance(each, actions.ScheduleNextAttempt)]
    assert [each.delay for each in handed_over] == ([] if decides else [0.0])
    last = attempt.machine.record().detail.attempts[-1]
    assert (last.outcome, last.error) == (LOST, "TaskManager tm-1, on which the driver ran, is lost")


def test_a_lost_driver_that_never_registered_has_no_work_and_is_not_waited_for() -> None:
    attempt = Attempt(dataclasses.replace(SETTINGS, lease=10.0)).starting()
    attempt.do(attempt.machine.slots_lost, ("driver-slot",), "tm-1")
    assert timers(attempt.do(attempt.machine.driver_started))[Timer.DRIVER_GONE] == 0.0
    with pytest.raises(PeerRefused):
        attempt.machine.driver_registered(1)


def test_a_registered_driver_whose_launch_was_not_answered_is_waited_for() -> None:
    attempt = Attempt(dataclasses.replace(SETTINGS, lease=10.0)).starting()
    attempt.do(attempt.machine.driver_registered, 1)
    taken = attempt.do(attempt.machine.driver_not_started, "no answer", permanent=False)
    assert timers(taken)[Timer.DRIVER_GONE] == 10.0 + LEASE_MARGIN_SECONDS
    with pytest.raises(PeerRefused):
        attempt.machine.check_current(1)


def test_losing_the_taskmanager_after_the_driver_has_finished_does_not_fail_the_job() -> None:
    for ended in (False, True):
        attempt = Attempt().running()
        attempt.do(attempt.machine.driver_finished, GOOD)
        if ended:
            attempt.do(attempt.machine.driver_ended, "exit code 0")
        attempt.do(attempt.machine.slots_lost, ("driver-slot",), "tm-1")
        attempt.do(attempt.machine.conclusion.checkpoints_settled)
        attempt.do(attempt.machine.conclusion.records_collected, Evidence())
        assert attempt.state is JobState.FINISHED


OUT_OF_MEMORY = "out of memory: the executor and its children use 301 MiB, and their limit is 300 MiB; raise this"


@pytest.mark.parametrize(
    ("error", "excesses", "said"),
    [
        ("java.io.EOFException", (), "java.io.EOFException"),
        ("java.io.EOFException", ((2, OUT_OF_MEMORY),), f"java.io.EOFException (executor 2: {OUT_OF_MEMORY})"),
        ("java.io.EOFException", ((2, OUT_OF_MEMORY), (1, "too much disk")), f"(executor 2: {OUT_OF_MEMORY})"),
        ("java.io.EOFException", ((7, "of an earlier attempt"),), "java.io.EOFException"),
        (f"executor lost: {OUT_OF_MEMORY}", ((1, OUT_OF_MEMORY),), f"executor lost: {OUT_OF_MEMORY}"),
    ],
)
def test_a_pipeline_that_failed_with_its_executors_says_which_bound_they_exceeded(
    error: str, excesses: tuple[tuple[int, str], ...], said: str
) -> None:
    attempt = Attempt().with_executors()
    attempt.do(attempt.machine.driver_finished, DriverExit(succeeded=False, exit_code=1, error=error))
    attempt.do(attempt.machine.driver_ended, "exit code 1")
    attempt.do(attempt.machine.conclusion.checkpoints_settled)
    found = tuple(ExecutorExcess(executor_id=number, reason=reason) for number, reason in excesses)
    attempt.do(attempt.machine.conclusion.records_collected, Evidence(), found)
    assert error_of(attempt).endswith(said)
    assert attempt.machine.record().detail.attempts[-1].error == error_of(attempt)


def test_a_job_that_finishes_although_an_executor_exceeded_a_bound_has_no_error() -> None:
    attempt = Attempt().with_executors()
    attempt.do(attempt.machine.driver_finished, GOOD)
    attempt.do(attempt.machine.driver_ended, "exit code 0")
    attempt.do(attempt.machine.conclusion.checkpoints_settled)
    excess = ExecutorExcess(executor_id=1, reason=OUT_OF_MEMORY)
    attempt.do(attempt.machine.conclusion.records_collected, Evidence(), (excess,))
    assert (attempt.state, attempt.machine.record().detail.failure) == (JobState.FINISHED, None)


def test_only_the_taskmanager_with_the_driver_slot_may_report_about_the_driver() -> None:
    attempt = Attempt().placing()
    with pytest.raises(DriverUnknown):
        attempt.machine.check_driver(1, "tm-1")
    assert attempt.machine.driver_slot_offered(DRIVER_SLOT)
    attempt.machine.check_driver(1, "tm-1")
    for number, taskmanager in ((1, "tm-2"), (2, "tm-1")):
        with pytest.raises(DriverUnknown):
            attempt.machine.check_driver(number, taskmanager)
    attempt.do(attempt.machine.driver_ended, "exit code 0")
    for check in (attempt.machine.check_driver, attempt.machine.check_driver_end):
        with pytest.raises(DriverUnknown):
            check(1, "tm-1")


def test_a_job_runs_when_its_driver_has_registered() -> None:
    attempt = Attempt().starting()
    assert timers(attempt.do(attempt.machine.driver_started)) == {Timer.DRIVER_REGISTRATION: 60.0}
    attempt.do(attempt.machine.driver_registered, 1)
    assert attempt.state is JobState.RUNNING
    assert attempt.do(attempt.machine.timer_fired, Timer.DRIVER_REGISTRATION) == []


def test_a_driver_of_another_attempt_is_refused() -> None:
    attempt = Attempt().starting()
    with pytest.raises(PeerRefused):
        attempt.machine.driver_registered(2)
    assert attempt.state is JobState.CREATED


def test_a_driver_that_does_not_register_in_time_is_ended() -> None:
    attempt = Attempt().starting()
    attempt.do(attempt.machine.driver_started)
    assert actions.EndDriver(10.0) in attempt.do(attempt.machine.timer_fired, Timer.DRIVER_REGISTRATION)
    assert attempt.state is JobState.FAILING
    assert error_of(attempt) == "the driver did not register within 60 s"


@pytest.mark.parametrize("permanent", [False, True])
def test_a_driver_that_cannot_be_started_is_a_failed_attempt(permanent: bool) -> None:
    """A permanent failure, as with a lost checkpoint, ends the job: the next attempt would fail, too."""
    attempt = Attempt()
    attempt.do(attempt.machine.begin)
    assert attempt.do(attempt.machine.driver_not_started, "lost", permanent=permanent) == [actions.SettleCheckpoints()]
    attempt.do(attempt.machine.conclusion.checkpoints_settled)
    (followed,) = attempt.do(attempt.machine.conclusion.records_collected, Evidence())
    assert isinstance(followed, actions.EndJob if permanent else actions.AskForRestart)
    assert error_of(attempt) == "the driver cannot be started: lost"


def test_a_job_cancelled_before_its_driver_starts_starts_no_driver() -> None:
    attempt = Attempt()
    attempt.do(attempt.machine.begin)
    assert attempt.do(attempt.machine.cancel) == []
    assert attempt.do(attempt.machine.checkpoint_restored, None) == [actions.SettleCheckpoints()]


def test_a_driver_whose_job_was_cancelled_while_it_started_is_ended() -> None:
    attempt = Attempt().starting()
    assert attempt.do(attempt.machine.cancel) == []
    assert actions.StopDriver(10.0) in attempt.do(attempt.machine.driver_started)


def test_a_restored_checkpoint_is_shown() -> None:
    attempt = Attempt()
    attempt.do(attempt.machine.begin)
    query = QueryCheckpoint(query_id="q", name="rows", batch=6)
    attempt.do(attempt.machine.checkpoint_restored, Checkpoint(number=7, attempt=1, completed_at=1, queries=(query,)))
    assert attempt.machine.record().detail.checkpoints == 7


# --- the end --------------------------------------------------------------------------------------------------


def test_a_driver_that_reported_success_finishes_the_job() -> None:
    attempt = Attempt().running()
    assert timers(attempt.do(attempt.machine.driver_finished, GOOD)) == {Timer.DRIVER_EXIT: DRIVER_EXIT_GRACE_SECONDS}
    (end,) = attempt.ends()
    assert isinstance(end, actions.EndJob)
    assert end.record.detail.state is JobState.FINISHED
    assert end.record.detail.attempts[-1].outcome == "FINISHED"


def test_a_driver_that_has_succeeded_concludes_the_attempt_before_its_process_has_ended() -> None:
    attempt = Attempt().running()
    assert attempt.machine.driver_ends_within == 0
    assert attempt.do(attempt.machine.driver_succeeded) == [actions.SettleCheckpoints()]
    attempt.do(attempt.machine.conclusion.checkpoints_settled)
    (end,) = attempt.do(attempt.machine.conclusion.records_collected, Evidence())
    assert isinstance(end, actions.EndJob)
    assert end.record.detail.state is JobState.FINISHED
    assert attempt.machine.driver_ends_within == SETTINGS.cancel_grace + CANCEL_MARGIN_SECONDS
    assert attempt.do(attempt.machine.driver_finished, GOOD) == []
    attempt.machine.check_driver_end(1, "tm-1")
    with pytest.raises(DriverUnknown):
        attempt.machine.check_driver_end(1, "tm-2")
    with pytest.raises(DriverUnknown):
        attempt.machine.check_driver(1, "tm-1")
    assert attempt.do(attempt.machine.driver_ended, "exit code 0") == []


@pytest.mark.parametrize("why", ["cancelled", "failing", "savepoint", "failed"])
def test_only_plain_success_of_a_running_job_is_concluded_before_the_driver_has_ended(why: str) -> None:
    attempt = Attempt().streaming() if why == "savepoint" else Attempt().running()
    match why:
        case "cancelled":
            attempt.do(attempt.machine.cancel)
        case "failing":
            attempt.do(attempt.machine.fail, "no")
        case "savepoint":
            attempt.do(attempt.machine.streaming.savepoint_requested, "sp", stop=True)
        case _:
            attempt.do(attempt.machine.driver_finished, BAD)
    assert attempt.do(attempt.machine.driver_succeeded) == []
    assert attempt.machine.driver_ends_within == 0
    assert attempt.ends()


def test_a_driver_that_lives_on_after_its_report_is_killed() -> None:
    attempt = Attempt().running()
    attempt.do(attempt.machine.driver_finished, GOOD)
    assert attempt.do(attempt.machine.timer_fired, Timer.DRIVER_EXIT) == [actions.StopDriver(KILL_GRACE_SECONDS)]
    attempt.ends()
    assert attempt.do(attempt.machine.timer_fired, Timer.DRIVER_EXIT) == []


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (None, "the driver ended without reporting its result: exit code 0"),
        (BAD, "KeyError: 'x'"),
        (DriverExit(succeeded=False, exit_code=3), "the pipeline ended with exit code 3"),
    ],
)
def test_a_failed_attempt_asks_whether_the_job_is_to_be_restarted(result: DriverExit | None, error: str) -> None:
    attempt = Attempt().running()
    if result is not None:
        attempt.do(attempt.machine.driver_finished, result)
    assert attempt.ends() == [actions.AskForRestart()]
    assert (attempt.state, error_of(attempt)) == (JobState.FAILING, error)
    (end,) = attempt.do(attempt.machine.conclusion.restart_decided, None)
    assert isinstance(end, actions.EndJob)
    assert attempt.state is JobState.FAILED


def test_the_history_is_stored_before_the_restart_is_decided() -> None:
    attempt = Attempt().running()
    attempt.do(attempt.machine.driver_ended, "exit code 1")
    attempt.do(attempt.machine.conclusion.checkpoints_settled)
    attempt.machine.conclusion.records_collected(Evidence())
    kept, asked = (each for each in attempt.machine.take_actions() if not isinstance(each, actions.PublishDetail))
    assert isinstance(kept, actions.KeepHistory)
    assert kept.history.attempts[-1].outcome == "FAILED"
    assert asked == actions.AskForRestart()


def test_a_decided_restart_schedules_the_next_attempt_after_its_delay() -> None:
    attempt = Attempt().running()
    attempt.ends()
    (handed,) = attempt.do(attempt.machine.conclusion.restart_decided, 2.0)
    assert isinstance(handed, actions.ScheduleNextAttempt)
    assert (handed.delay, handed.record.detail.state) == (2.0, JobState.RESTARTING)
    assert handed.record.detail.pending_reason.startswith("attempt 1 failed, the next one starts after 2 s: ")


def test_a_job_that_is_cancelled_while_its_restart_is_decided_is_not_restarted() -> None:
    attempt = Attempt().running()
    attempt.ends()
    attempt.do(attempt.machine.cancel)
    (end,) = attempt.do(attempt.machine.conclusion.restart_decided, 2.0)
    assert isinstance(end, actions.EndJob)
    assert attempt.state is JobState.CANCELED


def test_cancelling_ends_the_driver_whatever_it_reports() -> None:
    attempt = Attempt().running()
    taken = attempt.do(attempt.machine.cancel)
    assert actions.EndDriver(10.0) in taken
    assert timers(taken) == {Timer.DRIVER_EXIT: 10.0 + CANCEL_MARGIN_SECONDS}
    assert attempt.do(attempt.machine.cancel) == []
    attempt.do(attempt.machine.driver_finished, GOOD)
    assert isinstance(attempt.ends()[0], actions.EndJob)
    assert attempt.state is JobState.CANCELED
    with pytest.raises(JobAlreadyTerminal):
        attempt.machine.cancel()


def test_a_failing_attempt_fails_once_and_may_still_be_cancelled() -> None:
    attempt = Attempt().running()
    attempt.do(attempt.machine.fail, "first")
    assert attempt.do(attempt.machine.fail, "second") == []
    assert error_of(attempt) == "first"
    attempt.do(attempt.machine.cancel)
    attempt.ends()
    assert attempt.state is JobState.CANCELED


def test_lost_records_do_not_keep_an_attempt_from_ending() -> None:
    attempt = Attempt().running()
    attempt.do(attempt.machine.driver_ended, "exit code 1")
    assert attempt.do(attempt.machine.conclusion.records_lost) == [actions.AskForRestart()]


def test_a_suspended_attempt_takes_no_further_actions() -> None:
    attempt = Attempt().with_executors()
    attempt.do(attempt.machine.suspend)
    assert attempt.state is JobState.SUSPENDED
    assert attempt.do(attempt.machine.driver_ended, "killed") == []
    assert attempt.do(attempt.executors.reconcile) == []


# --- executors --------------------------------------------------------------------------------------------------


def ended(executor_id: int, code: int = 1) -> ExecutorExit:
    return ExecutorExit(executor_id=executor_id, exit_code=code, by_application=False, reason=f"exit code {code}")


def test_an_executor_that_ends_is_reported_to_spark_recorded_and_replaced() -> None:
    attempt = Attempt().with_executors()
    taken = attempt.do(attempt.executors.executor_exited, ended(1), "tm-1")
    assert actions.ReportExecutorExit(ended(1)) in taken
    attempt.now += 2
    (launch,) = attempt.do(attempt.machine.timer_fired, Timer.RECONCILE)
    assert isinstance(launch, actions.LaunchExecutor)
    assert launch.executor_id == 3
    (exception,) = attempt.machine.record().exceptions
    assert (exception.error, exception.executor) == ("executor 1 ended: exit code 1", 1)


def test_only_the_taskmanager_that_runs_an_executor_may_report_its_end() -> None:
    attempt = Attempt().with_executors()
    with pytest.raises(ExecutorUnknown):
        attempt.executors.executor_exited(ended(1), "tm-2")
    with pytest.raises(ExecutorUnknown):
        attempt.executors.check_launched(1, "tm-2")
    attempt.executors.check_launched(1, "tm-1")


def test_too_many_failures_fail_the_attempt() -> None:
    attempt = Attempt(dataclasses.replace(SETTINGS, failure_budget=1)).with_executors()
    attempt.do(attempt.executors.executor_exited, ended(1), "tm-1")
    assert actions.EndDriver(10.0) in attempt.do(attempt.executors.executor_exited, ended(2), "tm-1")
    assert error_of(attempt) == "2 executors ended by themselves within an hour, the last one: exit code 1"


@pytest.mark.parametrize("unreachable", [False, True])
def test_an_executor_that_was_not_launched_is_killed_in_case_it_runs_unless_unreachable(unreachable: bool) -> None:
    attempt = Attempt().with_executors()
    taken = attempt.do(attempt.executors.executor_not_launched, 1, slot(1), "too late", unreachable=unreachable)
    assert (actions.KillExecutor(1, "tm-1") in taken) is not unreachable
    assert any(isinstance(each, actions.ReportExecutorExit) for each in taken)


def test_executors_of_a_lost_taskmanager_are_reported_ended_and_their_slots_requested_again() -> None:
    attempt = Attempt().with_executors()
    taken = attempt.do(attempt.executors.slots_lost, ("slot-1",), "tm-1")
    (told,) = (each.exit_report for each in taken if isinstance(each, actions.ReportExecutorExit))
    assert (told.reason, told.host_lost) == ("TaskManager tm-1 is lost", True)
    assert actions.RequireSlots((SlotCount(SIZE, 2),)) in taken


def test_executors_of_a_drained_taskmanager_are_decommissioned_and_killed_when_their_time_is_over() -> None:
    attempt = Attempt().with_executors()
    taken = attempt.do(attempt.executors.slots_draining, ("slot-1",), "tm-1")
    assert actions.DecommissionExecutors((1,), "TaskManager tm-1 is drained") in taken
    assert timers(taken)[Timer.DRAINED] == 300.0
    assert attempt.do(attempt.machine.timer_fired, Timer.DRAINED, (1,)) == [actions.KillExecutor(1, "tm-1")]


def test_preempted_executors_are_decommissioned_and_do_not_count_as_failures() -> None:
    attempt = Attempt().with_executors()
    taken = attempt.do(attempt.executors.slots_preempted, ("slot-1",), "a job of higher priority waits", 45.0)
    assert actions.DecommissionExecutors((1,), "preempted: a job of higher priority waits") in taken
    assert timers(taken)[Timer.DRAINED] == 45.0
    assert attempt.do(attempt.machine.timer_fired, Timer.DRAINED, (1,)) == [actions.KillExecutor(1, "tm-1")]
    for _ in range(3):
        attempt.do(attempt.executors.executor_exited, ended(1, 137), "tm-1")
    executor = next(each for each in attempt.executors.all if each.id == 1)
    assert executor.exit_reason == "preempted: a job of higher priority waits (exit code 137)"
    assert not executor.failed
    assert attempt.machine.record().exceptions == ()


def test_no_slot_is_taken_by_an_attempt_that_ends() -> None:
    attempt = Attempt().running()
    attempt.do(attempt.machine.cancel)
    assert not attempt.executors.offer_slot(slot(1))


def test_an_unmet_requirement_is_stated_again_and_its_reason_shown() -> None:
    attempt = Attempt().starting()
    assert not any(
        isinstance(each, actions.RequireSlots) for each in attempt.do(attempt.machine.timer_fired, Timer.REQUIREMENT)
    )
    attempt.do(attempt.executors.slots_required, "no TaskManager")
    assert attempt.machine.record().detail.pending_reason == "no TaskManager"
    assert actions.RequireSlots((SlotCount(SIZE, 2),)) in attempt.do(attempt.machine.timer_fired, Timer.REQUIREMENT)


# --- progress, checkpoints, savepoints ------------------------------------------------------------------------------


def test_failed_tasks_are_exceptions_of_the_job_and_are_stored_together() -> None:
    attempt = Attempt().with_executors()
    failure = TaskFailure(stage=3, partition=17, attempt=0, executor_id=1, error="KeyError: 'x'", traceback="")
    assert timers(attempt.do(attempt.machine.task_failed, failure)) == {Timer.HISTORY: 1.0}
    assert attempt.do(attempt.machine.task_failed, failure) == []
    attempt.machine.timer_fired(Timer.HISTORY)
    (kept,) = attempt.machine.take_actions()
    assert isinstance(kept, actions.KeepHistory)
    assert [each.task for each in kept.history.exceptions] == ["task 17 of stage 3, try 0"] * 2
    assert kept.history.exceptions[0].taskmanager == "tm-1"


def test_a_committed_batch_is_a_checkpoint_and_a_batch_that_goes_back_fails_the_job_for_good() -> None:
    attempt = Attempt().running()
    (recorded,) = attempt.do(attempt.machine.streaming.reported, streams(4))
    assert isinstance(recorded, actions.RecordCheckpoint)
    attempt.do(attempt.machine.streaming.reported, streams(2))
    assert attempt.state is JobState.FAILING
    assert isinstance(attempt.ends()[0], actions.EndJob), "no attempt can go on from there"


def test_a_query_without_a_name_is_an_exception_once() -> None:
    attempt = Attempt().running()
    for batch in (1, 2):
        attempt.do(attempt.machine.streaming.reported, streams(batch, name=""))
    (exception,) = attempt.machine.record().exceptions
    assert "has no name" in exception.error


def taken(action: actions.TakeSavepoint) -> Savepoint:
    return Savepoint(
        id=action.request.id, path="/s", job_id="1" * 32, job_name="p", owner="ann", created_at=1,
        stopped=action.request.stop, checkpoint=action.checkpoint, files=1, size=1,
    )  # fmt: skip


def test_a_savepoint_is_taken_while_the_job_runs() -> None:
    attempt = Attempt().streaming()
    (action,) = attempt.do(attempt.machine.streaming.savepoint_requested, "sp", stop=False)
    assert isinstance(action, actions.TakeSavepoint)
    assert attempt.do(attempt.machine.streaming.savepoint_taken, taken(action)) == []
    assert attempt.machine.record().savepoints[0].state is SavepointState.COMPLETED


def test_a_job_that_stops_with_a_savepoint_takes_it_after_its_driver_has_ended() -> None:
    attempt = Attempt().streaming()
    wanted = attempt.do(attempt.machine.streaming.savepoint_requested, "sp", stop=True)
    assert actions.StopStreaming(10.0) in wanted
    assert timers(wanted) == {Timer.STREAMING_STOPPED: 10.0 + STOP_STREAMING_SECONDS}
    attempt.do(attempt.machine.driver_finished, GOOD)
    (action,) = attempt.ends()
    assert isinstance(action, actions.TakeSavepoint)
    assert attempt.do(attempt.machine.streaming.savepoint_taken, taken(action)) == [actions.CollectRecords()]
    attempt.do(attempt.machine.conclusion.records_collected, Evidence())
    assert attempt.state is JobState.FINISHED


def test_a_pipeline_that_continues_after_its_queries_stopped_is_ended_and_does_not_fail_the_job() -> None:
    attempt = Attempt().streaming()
    attempt.do(attempt.machine.streaming.savepoint_requested, "sp", stop=True)
    assert actions.EndDriver(10.0) in attempt.do(attempt.machine.timer_fired, Timer.STREAMING_STOPPED)
    attempt.do(attempt.machine.driver_finished, BAD)
    assert isinstance(attempt.ends()[0], actions.TakeSavepoint)


@pytest.mark.parametrize("failed", ["told", "taken", "ended"])
def test_a_job_whose_last_savepoint_failed_has_failed(failed: str) -> None:
    attempt = Attempt().streaming()
    attempt.do(attempt.machine.streaming.savepoint_requested, "sp", stop=True)
    if failed == "told":
        attempt.do(attempt.machine.streaming.not_stopped, "no answer")
    attempt.do(attempt.machine.driver_finished, BAD if failed == "ended" else GOOD)
    attempt.ends()
    if failed == "taken":
        attempt.do(attempt.machine.streaming.savepoint_failed, "no space")
        attempt.do(attempt.machine.conclusion.records_collected, Evidence())
    assert attempt.state is JobState.FAILING
    assert attempt.machine.record().savepoints[0].state is SavepointState.FAILED


def test_a_job_whose_driver_has_done_its_work_is_not_stopped_with_a_savepoint() -> None:
    attempt = Attempt().streaming()
    assert attempt.do(attempt.machine.driver_succeeded) == [actions.SettleCheckpoints()]
    assert attempt.do(attempt.machine.conclusion.checkpoints_settled) == [actions.CollectRecords()]
    with pytest.raises(SavepointFailed, match="ended its work"):
        attempt.machine.streaming.savepoint_requested("sp", stop=True)
    attempt.do(attempt.machine.conclusion.records_collected, Evidence())
    assert attempt.state is JobState.FINISHED
