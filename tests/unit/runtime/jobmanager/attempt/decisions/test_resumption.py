"""Attempts under a new leader, event by event: the driver returns or a new attempt begins (ADR 103)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sluice.core.errors import PeerRefused
from sluice.runtime.checkpoint.ledger import Checkpoint, QueryCheckpoint
from sluice.runtime.ha import NotReconciled
from sluice.runtime.jobmanager.attempt.decisions import actions
from sluice.runtime.jobmanager.attempt.decisions.actions import Timer
from sluice.runtime.jobmanager.attempt.decisions.state_machine import UNRECORDED_EXECUTORS, AttemptStateMachine
from sluice.runtime.jobmanager.attempt.settings import LEASE_MARGIN_SECONDS, AttemptSettings, Resumption
from sluice.runtime.jobmanager.dispatcher.job_records import resumed_record
from sluice.runtime.jobmanager.store.job_history import JobHistory
from sluice.runtime.jobmanager.store.job_store import AcceptedJob, Attempt
from sluice.runtime.jobmanager.views import AttemptView, ExecutorView
from sluice.runtime.messages import (
    DriverExit,
    Evidence,
    ExecutorExit,
    ExecutorTarget,
    ExecutorTargets,
    JobState,
    RunningDriver,
    RunningExecutor,
    SlotCount,
    SlotKind,
    SlotOffer,
    SparkRegistration,
    StreamingQuery,
    StreamingState,
)
from tests.unit.runtime.jobmanager.attempt.attempts import JOB, SIZE, SUBMISSION

SPARK = SparkRegistration(
    app_id="app-1", driver_url="spark://x", startup_conf={}, java_options=(), executor_memory_mb=768, executor_cores=1
)
RUNNING = RunningDriver(spark_auth_secret="0" * 64, app_id="app-1")
SETTINGS = AttemptSettings(driver_start_timeout=60.0, cancel_grace=10.0, lease=20.0)
DRIVER = SlotOffer(
    taskmanager="tm-1",
    host="h",
    slot=0,
    allocation_id="driver",
    profile=SIZE,
    kind=SlotKind.DRIVER,
    held=True,
    driver=2,
)


def view(number: int, state: str = "RUNNING") -> ExecutorView:
    return ExecutorView(id=number, taskmanager="tm-2", slot=number, state=state, exit_reason="", started_at=1)


def held(number: int, *, app_id: str = "app-1") -> SlotOffer:
    executor = RunningExecutor(executor_id=number, app_id=app_id, resource_profile_id=0, cores=1, memory_mb=768)
    return SlotOffer(
        taskmanager="tm-2", host="h", slot=number, allocation_id=f"slot-{number}", profile=SIZE, held=True,
        executor=executor,
    )  # fmt: skip


class Resumed:
    """The second attempt of a job whose leader was lost while executors 3 and 4 were running."""

    def __init__(self) -> None:
        accepted = AcceptedJob(
            job_id=JOB, name="p.py", owner="ann", accepted_at=1, cancelled=False, submission=SUBMISSION,
            attempt=Attempt(number=2, epoch=1, origin="here", token="0" * 32, taskmanager="tm-1"),
        )  # fmt: skip
        history = JobHistory(
            attempts=(AttemptView(number=1, started_at=1, outcome="FAILED"), AttemptView(number=2, started_at=5)),
            executors=(view(1, "EXITED"), view(3), view(4)),
        )
        self.machine = AttemptStateMachine(
            resumed_record(accepted, history), SETTINGS, number=2, executor_size=SIZE, clock=lambda: 1000.0,
            resumption=Resumption("tm-1", 25.0),
        )  # fmt: skip
        self.executors = self.machine.executors

    @property
    def state(self) -> JobState:
        return self.machine.record().detail.state

    def shown(self) -> dict[int, str]:
        return {each.id: each.state for each in self.machine.record().detail.executors}

    def do(self, event: Callable[..., object], *args: Any, **kwargs: Any) -> list[actions.Action]:
        """Trigger an event and return the resulting actions, except those that only publish or record state."""
        event(*args, **kwargs)
        shown = (actions.PublishDetail, actions.KeepHistory)
        return [each for each in self.machine.take_actions() if not isinstance(each, shown)]

    def begun(self) -> Resumed:
        self.do(self.machine.begin)
        self.do(self.machine.checkpoint_restored, None)
        return self

    def adopted(self, running: RunningDriver | None = RUNNING) -> Resumed:
        self.begun()
        assert self.machine.driver_slot_offered(DRIVER)
        assert actions.AdoptDriver(DRIVER, running) in self.do(self.machine.driver_registered, 2, running)
        return self


def wants(total: int) -> ExecutorTargets:
    target = ExecutorTarget(resource_profile_id=0, total=total, cores=1, memory_mb=768)
    return ExecutorTargets(version=7, targets=(target,))


def timers(taken: list[actions.Action]) -> dict[Timer, float]:
    return {each.timer: each.seconds for each in taken if isinstance(each, actions.StartTimer)}


def test_a_resumed_attempt_begins_by_waiting_for_its_driver() -> None:
    job = Resumed()
    begun = job.do(job.machine.begin)
    assert job.state is JobState.RECONCILING
    assert timers(begun)[Timer.DRIVER_RETURN] == 25.0
    assert [each for each in begun if not isinstance(each, actions.StartTimer)] == [
        actions.RestoreCheckpoint(""),
        actions.RequireSlots(()),  # nothing, but so it hears of lost slots
    ]
    assert job.do(job.executors.slots_required, "") == []
    assert "its driver on tm-1, at most 25 s" in job.machine.record().detail.pending_reason
    assert job.shown() == {1: "EXITED", 3: "RUNNING", 4: "RUNNING"}


def test_a_resumed_attempt_continues_with_its_driver_and_executors_and_launches_none() -> None:
    job = Resumed().adopted()
    assert (job.state, job.machine.record().detail.attempt) == (JobState.RUNNING, 2)
    assert job.do(job.executors.spark_started, SPARK) == []
    assert job.do(job.executors.set_executor_targets, wants(2)) == []  # two are awaited
    assert job.executors.slot_held(held(3))
    assert job.executors.slot_held(held(4))
    settled = job.do(job.machine.timer_fired, Timer.RECONCILE)
    assert actions.ReportHeldSlotsSettled() in settled
    assert [each for each in settled if isinstance(each, actions.LaunchExecutor | actions.ReleaseSlot)] == []
    assert actions.RequireSlots((SlotCount(SIZE, 2),)) in settled
    assert job.shown() == {1: "EXITED", 3: "RUNNING", 4: "RUNNING"}
    assert job.machine.record().detail.attempts[-1].outcome == ""


def test_an_executor_that_does_not_return_is_replaced_under_an_unused_number() -> None:
    job = Resumed().adopted()
    job.do(job.executors.spark_started, SPARK)
    job.do(job.executors.set_executor_targets, wants(2))
    assert job.executors.slot_held(held(3))
    assert actions.ReportHeldSlotsSettled() in job.do(job.machine.timer_fired, Timer.EXECUTORS_RETURN)
    assert job.shown()[4] == "EXITED"
    fresh = msgspec.structs.replace(held(9), held=False, executor=None)
    assert job.executors.offer_slot(fresh)
    launched = job.do(job.machine.timer_fired, Timer.RECONCILE)
    assert [each.executor_id for each in launched if isinstance(each, actions.LaunchExecutor)] == [
        4 + 1 + UNRECORDED_EXECUTORS
    ]
    assert not job.executors.slot_held(held(4))  # too late: its TaskManager ends it


def test_executors_of_another_spark_context_are_not_taken() -> None:
    job = Resumed().adopted()
    assert job.executors.slot_held(held(3, app_id="app-0"))  # which one is up is not known yet
    killed = job.do(job.executors.spark_started, SPARK)
    assert actions.KillExecutor(3, "tm-2") in killed
    assert not job.executors.slot_held(held(4, app_id="app-0"))


def test_the_end_of_an_awaited_executor_is_reported_to_spark() -> None:
    job = Resumed().adopted()
    gone = ExecutorExit(executor_id=3, exit_code=1, by_application=False, reason="killed")
    assert actions.ReportExecutorExit(gone) in job.do(job.executors.executor_exited, gone, "tm-2")
    assert job.shown()[3] == "EXITED"


def test_a_returning_driver_without_a_spark_context_continues_and_gets_slots() -> None:
    job = Resumed()
    job.begun()
    assert job.machine.driver_slot_offered(DRIVER)
    followed = job.do(job.machine.driver_registered, 2, None)
    assert actions.AdoptDriver(DRIVER, None) in followed
    assert actions.RequireSlots((SlotCount(SIZE, 2),)) in followed
    assert job.shown() == {1: "EXITED", 3: "EXITED", 4: "EXITED"}


@pytest.mark.parametrize("first", ["registration", "checkpoint"])
def test_a_driver_that_registers_before_its_slot_and_checkpoints_are_known_must_retry(first: str) -> None:
    job = Resumed()
    job.do(job.machine.begin)
    with pytest.raises(NotReconciled, match="TaskManager"):
        job.machine.driver_registered(2, RUNNING)
    if first == "registration":
        job.do(job.machine.checkpoint_restored, None)
        with pytest.raises(NotReconciled, match="TaskManager"):
            job.machine.driver_registered(2, RUNNING)
    else:
        assert job.machine.driver_slot_offered(DRIVER)
        with pytest.raises(NotReconciled, match="checkpoints"):
            job.machine.driver_registered(2, RUNNING)
    with pytest.raises(NotReconciled):
        job.machine.driver_finished(DriverExit(succeeded=True, exit_code=0))
    assert job.state is JobState.RECONCILING


@pytest.mark.parametrize("number", [1, 3])
def test_a_driver_of_another_attempt_is_refused(number: int) -> None:
    job = Resumed().begun()
    assert job.machine.driver_slot_offered(DRIVER)
    with pytest.raises(PeerRefused):
        job.machine.driver_registered(number, RUNNING)


def test_a_driver_bound_to_its_former_leader_is_refused_and_the_job_restarts_when_it_has_ended() -> None:
    job = Resumed().begun()
    assert job.machine.driver_slot_offered(DRIVER)
    with pytest.raises(PeerRefused, match="for a savepoint"):
        job.machine.driver_registered(2, msgspec.structs.replace(RUNNING, bound="it stops for a savepoint"))
    handed_over(job, job.do(job.machine.driver_gone, "its driver ended meanwhile: exit code 1"))


def handed_over(job: Resumed, taken: list[actions.Action]) -> None:
    """Check that the next attempt starts at once, without a restart decision or a counted failure."""
    (handed,) = (each for each in taken if isinstance(each, actions.ScheduleNextAttempt))
    assert handed.delay == 0.0
    assert not any(isinstance(each, actions.AskForRestart | actions.EndJob) for each in taken)
    assert job.state is JobState.RESTARTING
    assert handed.record.detail.attempts[-1].outcome == "LOST"
    assert all(each.state == "EXITED" for each in handed.record.detail.executors)


def test_a_resumed_attempt_restarts_the_job_if_its_driver_does_not_return_within_the_lease() -> None:
    job = Resumed().begun()
    handed_over(job, job.do(job.machine.timer_fired, Timer.DRIVER_RETURN))
    with pytest.raises(PeerRefused):
        job.machine.driver_registered(2, RUNNING)
    with pytest.raises(PeerRefused):
        job.machine.check_current(2)
    assert not job.machine.driver_slot_offered(DRIVER)
    assert not job.executors.slot_held(held(3))


def test_a_driver_that_was_told_to_wait_may_run_for_another_lease() -> None:
    """Its TaskManager returns later than it does: it has not yet noticed that another JobManager leads."""
    job = Resumed().begun()
    with pytest.raises(NotReconciled):
        job.machine.driver_registered(2, RUNNING)
    for _ in range(2):
        followed = job.do(job.machine.timer_fired, Timer.DRIVER_RETURN)
        assert timers(followed) == {Timer.DRIVER_RETURN: SETTINGS.lease + LEASE_MARGIN_SECONDS}
        assert job.state is JobState.RECONCILING
        with pytest.raises(NotReconciled):
            job.machine.driver_registered(2, RUNNING)
    job.do(job.machine.timer_fired, Timer.DRIVER_RETURN)
    handed_over(job, job.do(job.machine.timer_fired, Timer.DRIVER_RETURN))


def test_a_resumed_attempt_restarts_the_job_at_once_if_the_taskmanager_lacks_the_driver() -> None:
    job = Resumed().begun()
    looked = job.do(job.machine.timer_fired, Timer.DRIVER_LOOK)
    assert actions.LookForDriver("tm-1") in looked
    handed_over(job, job.do(job.machine.driver_absent, "tm-1"))


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_slot_without_the_driver_of_this_attempt_is_not_taken(attempt: int) -> None:
    job = Resumed().begun()
    offer = msgspec.structs.replace(DRIVER, driver=attempt)
    assert not job.machine.driver_slot_offered(msgspec.structs.replace(offer, taskmanager="tm-9"))
    assert job.state is JobState.RECONCILING  # somebody else's word
    assert not job.machine.driver_slot_offered(offer)
    handed_over(job, job.do(len, ()))


def test_a_taskmanager_that_has_offered_the_driver_slot_is_not_asked_for_the_driver() -> None:
    job = Resumed().begun()
    assert job.machine.driver_slot_offered(DRIVER)
    assert actions.LookForDriver("tm-1") not in job.do(job.machine.timer_fired, Timer.DRIVER_LOOK)
    assert job.do(job.machine.driver_absent, "tm-1") == []
    assert job.state is JobState.RECONCILING


def test_a_cancelled_job_ends_its_driver_when_it_comes_back() -> None:
    job = Resumed().begun()
    job.do(job.machine.cancel)
    assert job.machine.driver_slot_offered(DRIVER)
    followed = job.do(job.machine.driver_registered, 2, RUNNING)
    assert actions.EndDriver(10.0) in followed
    assert job.state is JobState.CANCELLING


def test_a_cancelled_job_whose_driver_does_not_come_back_is_canceled() -> None:
    job = Resumed().begun()
    job.do(job.machine.cancel)
    assert job.do(job.machine.timer_fired, Timer.DRIVER_RETURN) == [actions.SettleCheckpoints()]
    job.do(job.machine.conclusion.checkpoints_settled)
    assert isinstance(job.do(job.machine.conclusion.records_collected, Evidence())[-1], actions.EndJob)
    assert job.state is JobState.CANCELED


def test_a_driver_whose_taskmanager_is_lost_before_it_registers_may_still_return() -> None:
    job = Resumed().begun()
    assert job.machine.driver_slot_offered(DRIVER)
    job.do(job.machine.slots_lost, ("driver",), "tm-1")
    with pytest.raises(NotReconciled):
        job.machine.driver_registered(2, RUNNING)
    assert job.machine.driver_slot_offered(DRIVER)  # its TaskManager has registered again
    job.do(job.machine.driver_registered, 2, RUNNING)
    assert job.state is JobState.RUNNING


def test_a_resumed_streaming_job_continues_its_checkpoint_numbers() -> None:
    job = Resumed()
    job.do(job.machine.begin)
    query = QueryCheckpoint(query_id="q", name="rows", batch=4)
    job.do(job.machine.checkpoint_restored, Checkpoint(number=5, attempt=2, completed_at=1, queries=(query,)))
    assert job.machine.driver_slot_offered(DRIVER)
    job.do(job.machine.driver_registered, 2, RUNNING)
    running = StreamingQuery(id="q", run_id="r", name="rows", location="l", state="RUNNING", batch=6)
    (recorded,) = job.do(job.machine.streaming.reported, StreamingState(queries=(running,)))
    assert isinstance(recorded, actions.RecordCheckpoint)
    assert (recorded.checkpoint.number, recorded.checkpoint.attempt) == (7, 2)
