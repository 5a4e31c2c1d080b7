"""The job queue: first come, first served, and no user waits because of another user's limit."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.jobmanager.dispatcher.job_queue import JobLimits, JobQueue
from sluice.runtime.jobmanager.errors import TooManyJobs


def waits(queue: JobQueue, *jobs: str) -> list[str]:
    """Return those of the jobs that wait."""
    return [job for job in jobs if queue.reason(job)]


def test_jobs_run_in_the_order_in_which_they_came() -> None:
    queue = JobQueue(JobLimits(running=2))
    for job in ("a", "b", "c", "d"):
        queue.enter(job, "ann")
    assert waits(queue, "a", "b", "c", "d") == ["c", "d"]
    assert queue.reason("d") == "queued, 1 jobs ahead of it: 2 jobs run, as many as may"
    queue.leave("a")
    assert waits(queue, "c", "d") == ["d"]


def test_a_user_at_the_limit_is_passed_over() -> None:
    queue = JobQueue(JobLimits(running=3, per_user=1))
    for job, owner in (("a1", "ann"), ("a2", "ann"), ("b1", "bob")):
        queue.enter(job, owner)
    assert waits(queue, "a1", "a2", "b1") == ["a2"]
    assert "1 jobs of ann run, as many as one user may have" in queue.reason("a2")
    queue.leave("b1")
    assert waits(queue, "a2") == ["a2"]
    queue.leave("a1")
    assert waits(queue, "a2") == []


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        pytest.param(JobLimits(running=1, queued=1), "1 jobs are waiting", id="of-all"),
        pytest.param(JobLimits(running=1, queued=9, queued_per_user=1), "1 jobs of ann are waiting", id="of-one-user"),
    ],
)
def test_a_full_queue_refuses_a_job_that_cannot_run_at_once(limits: JobLimits, match: str) -> None:
    queue = JobQueue(limits)
    queue.enter("a", "ann")
    queue.enter("b", "ann")
    with pytest.raises(TooManyJobs, match=match):
        queue.enter("c", "ann")
    queue.enter_again("old", "ann")
    assert waits(queue, "b", "c", "old") == ["b", "old"]


def test_a_waiting_job_gets_its_turn_when_another_ends_unless_it_has_left() -> None:
    queue = JobQueue(JobLimits(running=1))
    for job in ("a", "b", "c"):
        queue.enter(job, "ann")
    assert [queue.may_run(job) for job in ("a", "b", "c")] == [True, False, False]
    assert queue.leave("b") == []
    assert queue.leave("a") == ["c"]
    assert queue.may_run("c")
    assert not queue.may_run("b"), "a job that left was never running"


@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=40),
    running=st.integers(0, 3),
    per_user=st.integers(0, 2),
)
def test_the_limits_hold_and_no_job_waits_without_a_reason(
    steps: list[tuple[bool, int]], running: int, per_user: int
) -> None:
    queue = JobQueue(JobLimits(running=running, per_user=per_user))
    inside: dict[str, str] = {}
    for comes, number in steps:
        job, owner = f"job-{number}", f"user-{number % 3}"
        if comes and job not in inside:
            queue.enter(job, owner)
            inside[job] = owner
        elif not comes:
            queue.leave(job)
            inside.pop(job, None)
        runs = [each for each in inside if not queue.reason(each)]
        of_user = [inside[each] for each in runs]
        assert not running or len(runs) <= running
        assert not per_user or all(of_user.count(each) <= per_user for each in of_user)
        for each in inside.keys() - set(runs):
            full = bool(running) and len(runs) >= running
            assert full or (per_user and of_user.count(inside[each]) >= per_user)
