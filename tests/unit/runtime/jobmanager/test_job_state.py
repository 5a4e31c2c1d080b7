"""The life cycle of a job: which transitions exist, and what the end of a driver means."""

from __future__ import annotations

import itertools

import pytest

from sluice.runtime.jobmanager.errors import IllegalTransition
from sluice.runtime.jobmanager.job_state import TRANSITIONS, JobLifecycle, judge_attempt
from sluice.runtime.messages import DriverExit, JobState

S = JobState


def test_every_state_is_in_the_table_and_terminal_ones_lead_nowhere() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert {state for state, ways in TRANSITIONS.items() if not ways} == {s for s in JobState if s.terminal}


def test_every_state_can_be_reached_and_every_running_job_can_end() -> None:
    reached, frontier = {S.INITIALIZING}, [S.INITIALIZING]
    while frontier:
        for state in TRANSITIONS[frontier.pop()] - reached:
            reached.add(state)
            frontier.append(state)
    assert reached == set(JobState)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(JobState, JobState)))
def test_a_transition_is_taken_exactly_when_the_table_has_it(before: JobState, after: JobState) -> None:
    life = JobLifecycle(before)
    if after in TRANSITIONS[before]:
        life.transition_to(after, 7)
        assert (life.state, life.timestamps[after]) == (after, 7)
    else:
        with pytest.raises(IllegalTransition, match=f"from {before} to {after}"):
            life.transition_to(after, 7)
        assert life.state is before


@pytest.mark.parametrize("state", [S.INITIALIZING, S.CREATED, S.RUNNING, S.RESTARTING, S.FAILING, S.RECONCILING])
def test_a_job_that_has_not_ended_can_be_cancelled(state: JobState) -> None:
    assert JobLifecycle(state).can_transition_to(S.CANCELLING)


GOOD = DriverExit(succeeded=True, exit_code=0)
BAD = DriverExit(succeeded=False, exit_code=1, error="ValueError: no", traceback="Traceback …")


@pytest.mark.parametrize(
    ("state", "result", "end", "error"),
    [
        pytest.param(S.RUNNING, GOOD, S.FINISHED, "", id="success"),
        pytest.param(S.RUNNING, BAD, S.FAILED, "ValueError: no", id="the pipeline failed"),
        pytest.param(S.RUNNING, None, S.FAILED, "without reporting", id="no word although the exit code was 0"),
        pytest.param(S.CREATED, None, S.FAILED, "without reporting", id="died before it registered"),
        pytest.param(S.CREATED, GOOD, S.FAILED, "reported success", id="success of a job that never ran"),
        pytest.param(S.CANCELLING, None, S.CANCELED, "", id="cancelled"),
        pytest.param(S.CANCELLING, GOOD, S.CANCELED, "", id="cancelled, although it still said success"),
        pytest.param(S.CANCELLING, BAD, S.CANCELED, "", id="cancelled, and failed because of that"),
        pytest.param(S.FAILING, GOOD, S.FAILED, "", id="given up, although it still said success"),
    ],
)
def test_the_end_of_an_attempt_decides_the_next_states_of_the_job(
    state: JobState, result: DriverExit | None, end: JobState, error: str
) -> None:
    verdict = judge_attempt(state, result, "exit code 0")
    life = JobLifecycle(state)
    for step in verdict.path:
        life.transition_to(step, 1)
    assert life.state is end
    assert error in verdict.error


def test_a_failing_pipeline_keeps_its_traceback() -> None:
    assert judge_attempt(S.RUNNING, BAD, "").traceback == "Traceback …"
