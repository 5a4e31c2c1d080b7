"""The Dispatcher's state machine, without I/O.

It decides about admission, turns, attempts, cancellation, results and cleanup of jobs.
"""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
from sluice.runtime.jobmanager.dispatcher.job_queue import JobLimits
from sluice.runtime.jobmanager.dispatcher.state_machine import DispatcherStateMachine, Phase
from sluice.runtime.jobmanager.errors import (
    JobAlreadyTerminal,
    JobNotFound,
    QuotaExceeded,
    SubmissionRejected,
    TooManyJobs,
)
from sluice.runtime.jobmanager.restart_strategies import FixedDelay, NoRestart
from sluice.runtime.messages import JobState

FILES = {"a": 10}


def machine(*, running: int = 0, queued: int = 0, kept: int = 10, quota: int = 0) -> DispatcherStateMachine:
    """Return a machine, by default without limits."""
    return DispatcherStateMachine(JobLimits(running, 0, queued, 0), kept=kept, blob_quota=quota)


def submitted(jobs: DispatcherStateMachine, *names: str, owner: str = "ann") -> None:
    """Submit jobs, and make them durable."""
    for name in names:
        jobs.submitted(name, owner, FILES, FixedDelay(1, 5.0))
        assert jobs.take_actions() == [Accept(name)]
        jobs.accepted(name)


def running(jobs: DispatcherStateMachine, name: str, attempt: int = 1) -> None:
    """Start the JobMaster of a job whose turn it is."""
    assert jobs.take_actions() == [BeginAttempt(name)]
    jobs.attempt_begun(name, attempt)
    assert jobs.take_actions() == [StartMaster(name, attempt)]
    jobs.master_started(name)
    assert jobs.take_actions() == []


def test_a_recovered_job_whose_driver_may_still_run_continues_regardless_of_the_limits() -> None:
    jobs = machine(running=1)
    for number, name in enumerate(("one", "two"), 3):
        jobs.recovered(name, "ann", FILES, NoRestart(), cancelled=name == "two", resumed=number)
        assert jobs.take_actions() == [StartMaster(name, number, resumed=True)]
        jobs.master_started(name)
    assert jobs.take_actions() == [CancelMaster("two")]
    jobs.recovered("three", "ann", FILES, NoRestart(), cancelled=False)
    assert jobs.take_actions() == [Recover("three")]
    jobs.ready("three")
    assert jobs.take_actions() == []  # it waits for its turn
    jobs.restarting("one", 0.0)  # its driver did not come back
    assert jobs.take_actions() == [EndAttempt("one")]
    jobs.attempt_over("one")
    assert jobs.take_actions() == [StartDelay("one", 0.0)]
    jobs.delay_over("one")
    running(jobs, "one", 4)  # it has kept its turn


def test_a_job_goes_through_its_states_from_submission_to_removal() -> None:
    jobs = machine(kept=0)
    submitted(jobs, "one")
    running(jobs, "one")
    jobs.ended("one")
    jobs.ended("one")  # its JobMaster got no answer in time
    jobs.released("one")
    assert jobs.take_actions() == [RemoveMaster("one")]
    jobs.cleaned("one")
    assert jobs.take_actions() == [Forget("one")]
    assert jobs.jobs == {}


def test_a_job_that_is_not_durable_is_not_started_and_gives_up_its_turn_when_dropped() -> None:
    jobs = machine(running=1)
    jobs.submitted("one", "ann", FILES, NoRestart())
    assert jobs.take_actions() == [Accept("one")]
    submitted(jobs, "two")
    assert jobs.take_actions() == []
    assert "1 jobs run" in jobs.pending_reason("two")
    jobs.dropped("one")
    assert jobs.take_actions() == [BeginAttempt("two")]


def test_a_job_whose_turn_comes_before_it_is_durable_starts_once_it_is() -> None:
    jobs = machine(running=1)
    submitted(jobs, "one")
    running(jobs, "one")
    jobs.submitted("two", "ann", FILES, NoRestart())
    assert jobs.take_actions() == [Accept("two")]
    jobs.ended("one")
    assert jobs.take_actions() == []
    jobs.accepted("two")
    assert jobs.take_actions() == [BeginAttempt("two")]


def test_duplicate_jobs_and_jobs_beyond_the_quota_or_queue_limit_are_refused() -> None:
    jobs = machine(running=1, queued=1, quota=25)
    submitted(jobs, "one")
    with pytest.raises(SubmissionRejected, match="there is a job one"):
        jobs.submitted("one", "ann", FILES, NoRestart())
    with pytest.raises(QuotaExceeded, match="26 bytes"):
        jobs.submitted("two", "ann", {"b": 16}, NoRestart())
    jobs.take_actions()
    jobs.submitted("two", "ann", {"a": 10, "b": 15}, NoRestart())  # the same file counts once
    with pytest.raises(TooManyJobs):
        jobs.submitted("three", "bob", FILES, NoRestart())
    assert jobs.take_actions() == [Accept("two")]
    jobs.ended("one")
    jobs.submitted("four", "ann", {"b": 15}, NoRestart())


def test_a_failed_attempt_is_followed_by_another_after_the_restart_delay_and_its_own_end() -> None:
    jobs = machine()
    submitted(jobs, "one")
    running(jobs, "one")
    assert jobs.attempt_failed("one", 0.0) == 5.0
    jobs.restarting("one", 5.0)
    jobs.restarting("one", 5.0)
    assert jobs.take_actions() == [EndAttempt("one")]
    jobs.attempt_over("one")
    assert jobs.take_actions() == [StartDelay("one", 5.0)]
    jobs.delay_over("one")
    running(jobs, "one", 2)
    assert jobs.attempt_failed("one", 9.0) is None


def cancelled_at(phase: Phase) -> DispatcherStateMachine:
    """Return a machine with job ``one`` in ``phase``; for QUEUED, another job takes the only place."""
    jobs = machine(running=1)
    if phase is Phase.QUEUED:
        submitted(jobs, "zero")
        jobs.take_actions()
    if phase is Phase.RECOVERING:
        jobs.recovered("one", "ann", FILES, NoRestart(), cancelled=False)
        return jobs
    submitted(jobs, "one")
    if phase in {Phase.QUEUED, Phase.BEGINNING}:
        return jobs
    jobs.attempt_begun("one", 1)
    if phase is Phase.STARTING:
        return jobs
    jobs.master_started("one")
    if phase is Phase.RUNNING:
        return jobs
    jobs.restarting("one", 5.0)
    if phase is Phase.DELAYED:
        jobs.attempt_over("one")
    return jobs


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.DELAYED])
def test_a_job_that_waits_is_cancelled_at_once(phase: Phase) -> None:
    jobs = cancelled_at(phase)
    assert jobs.jobs["one"].phase is phase
    jobs.take_actions()
    assert not jobs.cancelled("one")
    assert jobs.take_actions() == [Conclude("one", JobState.CANCELED)]
    jobs.delay_over("one")
    jobs.ended("one")
    assert jobs.take_actions() == [CleanUp("one")]


@pytest.mark.parametrize("phase", [Phase.RECOVERING, Phase.BEGINNING, Phase.RESTARTING])
def test_a_job_in_transition_to_an_attempt_is_cancelled_after_the_transition(phase: Phase) -> None:
    jobs = cancelled_at(phase)
    assert jobs.jobs["one"].phase is phase
    jobs.take_actions()
    assert not jobs.cancelled("one")
    assert jobs.take_actions() == []
    if phase is Phase.RECOVERING:
        jobs.ready("one")
    elif phase is Phase.BEGINNING:
        jobs.attempt_begun("one", 1)
    else:
        jobs.attempt_over("one")
    assert jobs.take_actions() == [Conclude("one", JobState.CANCELED)]


def test_a_job_with_a_jobmaster_is_cancelled_by_its_jobmaster() -> None:
    jobs = cancelled_at(Phase.RUNNING)
    assert jobs.cancelled("one")
    assert jobs.attempt_failed("one", 0.0) is None, "a cancelled job is not restarted"
    starting = cancelled_at(Phase.STARTING)
    starting.take_actions()
    assert not starting.cancelled("one")
    starting.master_started("one")
    assert starting.take_actions() == [CancelMaster("one")]


def test_a_job_that_has_ended_cannot_be_cancelled() -> None:
    jobs = cancelled_at(Phase.RUNNING)
    jobs.check_cancellable("one", JobState.RUNNING)
    jobs.ended("one")
    with pytest.raises(JobAlreadyTerminal, match="FINISHED"):
        jobs.check_cancellable("one", JobState.FINISHED)
    with pytest.raises(JobNotFound):
        jobs.check_cancellable("nobody", JobState.FINISHED)


def test_a_new_leader_cleans_up_results_and_recovers_jobs_in_their_order() -> None:
    jobs = machine(running=1, queued=1, kept=1)
    jobs.recovered_result("clean", "ann", clean=True)
    jobs.recovered_result("dirty", "ann", clean=False)
    jobs.recovered("cancelled", "ann", FILES, NoRestart(), cancelled=True)
    for name in ("one", "two", "three"):  # accepted is accepted: no limit of the queue counts
        jobs.recovered(name, "ann", FILES, NoRestart(), cancelled=False)
    found = ("cancelled", "one", "two", "three")
    assert jobs.take_actions() == [CleanUp("dirty"), *(Recover(name) for name in found)]
    for name in found:
        jobs.ready(name)
    assert jobs.take_actions() == [Conclude("cancelled", JobState.CANCELED), BeginAttempt("one")]
    jobs.failed_to_start("one", "its files are lost")
    assert jobs.take_actions() == [Conclude("one", JobState.FAILED, "its files are lost")]
    jobs.ended("one")
    assert jobs.take_actions() == [BeginAttempt("two"), CleanUp("one")]
    jobs.cleaned("dirty")
    assert jobs.take_actions() == [Forget("clean")]


def test_the_oldest_result_makes_room() -> None:
    jobs = machine()
    assert jobs.make_room() is None
    for name in ("one", "two"):
        jobs.recovered_result(name, "ann", clean=True)
    assert jobs.make_room() == "one"
    assert list(jobs.jobs) == ["two"]


OWNERS = ("ann", "bob")


class Lives(RuleBasedStateMachine):
    """A model of the Dispatcher's environment: actions end in any order, and requests come at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.pending: list[Action] = []
        self.masters: dict[str, int] = {}
        self.starting: set[str] = set()
        self.durably_cancelled: set[str] = set()
        self.forgotten: set[str] = set()

    @initialize(limit=st.integers(0, 3), per_user=st.integers(0, 2), kept=st.integers(0, 2))
    def begin(self, limit: int, per_user: int, kept: int) -> None:
        self.limits, self.kept = JobLimits(limit, per_user, 3, 2), kept
        self.jobs = DispatcherStateMachine(self.limits, kept=kept, blob_quota=100)

    def collect(self) -> None:
        for action in self.jobs.take_actions():
            assert not any(each.job_id == action.job_id for each in self.pending), "one thing at a time for each job"
            match action:
                case StartMaster():
                    assert action.job_id not in self.masters, "no job runs twice"
                    assert action.job_id not in self.durably_cancelled
                    self.starting.add(action.job_id)
                case Forget():
                    self.forgotten.add(action.job_id)
                    continue
                case CancelMaster():
                    continue
            self.pending.append(action)

    @rule(owner=st.sampled_from(OWNERS), size=st.integers(0, 60))
    def submit(self, owner: str, size: int) -> None:
        name = f"job-{self.number}"
        self.number += 1
        try:
            self.jobs.submitted(name, owner, {name: size}, FixedDelay(2, 1.0))
        except (TooManyJobs, QuotaExceeded):
            assert name not in self.jobs.jobs
        self.collect()

    @rule(owner=st.sampled_from(OWNERS), cancelled=st.booleans())
    def recover(self, owner: str, cancelled: bool) -> None:
        name = f"job-{self.number}"
        self.number += 1
        self.jobs.recovered(name, owner, {}, FixedDelay(2, 1.0), cancelled=cancelled)
        if cancelled:
            self.durably_cancelled.add(name)
        self.collect()

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), well=st.booleans())
    def an_action_ends(self, data: st.DataObject, well: bool) -> None:
        action = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.outcome(action, well=well)
        self.collect()

    def outcome(self, action: Action, *, well: bool) -> None:  # one case for each action
        job_id, jobs = action.job_id, self.jobs
        match action:
            case Accept():
                jobs.accepted(job_id) if well else jobs.dropped(job_id)
            case Recover():
                jobs.ready(job_id) if well else jobs.failed_to_start(job_id, "lost")
            case BeginAttempt():
                jobs.attempt_begun(job_id, 1) if well else jobs.failed_to_start(job_id, "refused")
            case StartMaster():
                self.starting.discard(job_id)
                if well:
                    self.masters[job_id] = action.attempt
                    jobs.master_started(job_id)
                else:
                    jobs.failed_to_start(job_id, "no memory")
            case EndAttempt():
                self.masters.pop(job_id, None)
                jobs.attempt_over(job_id)
            case StartDelay():
                jobs.delay_over(job_id)
            case Conclude():
                jobs.ended(job_id)
            case RemoveMaster() | CleanUp():
                self.masters.pop(job_id, None)
                jobs.cleaned(job_id)

    def of_masters(self) -> list[str]:
        """Jobs whose JobMaster has not ended."""
        return [job_id for job_id in self.masters if self.jobs.jobs[job_id].phase is Phase.RUNNING]

    @precondition(lambda self: self.of_masters())
    @rule(data=st.data(), fails=st.booleans())
    def an_attempt_ends(self, data: st.DataObject, fails: bool) -> None:
        job_id = data.draw(st.sampled_from(self.of_masters()))
        delay = self.jobs.attempt_failed(job_id, 0.0) if fails else None
        if delay is not None:
            assert job_id not in self.durably_cancelled
            self.jobs.restarting(job_id, delay)
        else:
            self.jobs.ended(job_id)
            self.collect()
            self.jobs.released(job_id)
        self.collect()

    @precondition(lambda self: self.jobs.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.jobs.jobs)))
        if self.jobs.jobs[job_id].phase is Phase.ACCEPTING:
            return  # the Dispatcher waits until it is decided
        try:
            self.jobs.check_cancellable(job_id, JobState.FINISHED)
        except JobAlreadyTerminal:
            return
        if self.jobs.jobs[job_id].phase is Phase.DELAYED:  # its timer comes to nothing
            self.pending = [each for each in self.pending if each != StartDelay(job_id, 1.0)]
        if self.jobs.jobs[job_id].phase is not Phase.STARTING:
            self.durably_cancelled.add(job_id)
        self.jobs.cancelled(job_id)
        self.collect()

    @invariant()
    def limits_hold(self) -> None:
        run = [job_id for job_id in self.masters if self.jobs.jobs[job_id].phase is Phase.RUNNING]
        run += self.starting
        owners = [self.jobs.jobs[job_id].owner for job_id in run]
        assert not self.limits.running or len(run) <= self.limits.running
        assert not self.limits.per_user or all(owners.count(each) <= self.limits.per_user for each in OWNERS)

    @invariant()
    def nobody_is_stuck(self) -> None:
        """Each job has a pending action, a JobMaster, or a reason to wait."""
        for job_id, job in self.jobs.jobs.items():
            under_way = any(each.job_id == job_id for each in self.pending)
            waits = job.phase is Phase.QUEUED and bool(self.jobs.pending_reason(job_id))
            assert under_way or waits or job.phase in {Phase.RUNNING, Phase.CLEAN}, (job_id, job.phase)

    @invariant()
    def no_more_results_than_are_kept(self) -> None:
        assert sum(job.phase is Phase.CLEAN for job in self.jobs.jobs.values()) <= self.kept
        assert not self.forgotten & self.jobs.jobs.keys()

    def teardown(self) -> None:
        """Check that every job ends and is cleaned up if everything succeeds from now on."""
        if not hasattr(self, "jobs"):
            return
        while self.pending or self.of_masters():
            for action in list(self.pending):
                self.pending.remove(action)
                self.outcome(action, well=True)
                self.collect()
            for job_id in self.of_masters():
                self.jobs.ended(job_id)
                self.collect()
                self.jobs.released(job_id)
                self.collect()
        assert all(job.phase is Phase.CLEAN for job in self.jobs.jobs.values())


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=150, stateful_step_count=40)
