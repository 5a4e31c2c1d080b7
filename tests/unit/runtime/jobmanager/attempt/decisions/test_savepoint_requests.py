"""When a savepoint is made, and what is remembered of it."""

from __future__ import annotations

import pytest

from sluice.runtime.checkpoint.errors import NotStreaming, SavepointFailed
from sluice.runtime.checkpoint.ledger import Checkpoint, CheckpointsView
from sluice.runtime.checkpoint.savepoints import Savepoint
from sluice.runtime.jobmanager.attempt.decisions.savepoint_requests import MAX_REQUESTS, SavepointRequests
from sluice.runtime.jobmanager.views import SavepointState
from sluice.runtime.messages import JobState, StreamingQuery

CHECKPOINT = Checkpoint(number=1, attempt=1, completed_at=1, queries=())


def view(name: str = "rows", state: str = "RUNNING", *, committed: bool = True) -> CheckpointsView:
    """Return a view of the checkpoints of a single query."""
    query = StreamingQuery(id="q", run_id="r", name=name, location="", state=state, batch=0)
    return CheckpointsView(completed=1, history=(CHECKPOINT,) if committed else (), queries=(query,))


def savepoint(name: str) -> Savepoint:
    """Return a complete savepoint."""
    return Savepoint(
        id=name,
        path=f"/s/{name}",
        job_id="j",
        job_name="p",
        owner="ada",
        created_at=1,
        stopped=False,
        checkpoint=CHECKPOINT,
        files=1,
        size=1,
    )


def test_a_second_savepoint_is_refused_until_the_first_is_done() -> None:
    requests = SavepointRequests()
    requests.add("one", JobState.RUNNING, view(), 1, stop=False)
    with pytest.raises(SavepointFailed):
        requests.add("two", JobState.RUNNING, view(), 2, stop=False)
    requests.complete(savepoint("one"))
    requests.add("two", JobState.RUNNING, view(), 3, stop=False)
    requests.fail("no space")
    requests.fail("told twice")
    assert [(each.id, each.state, each.path, each.error) for each in requests.requests] == [
        ("one", SavepointState.COMPLETED, "/s/one", ""),
        ("two", SavepointState.FAILED, "", "no space"),
    ]


def test_no_further_savepoint_is_taken_after_one_that_stops_the_job() -> None:
    requests = SavepointRequests()
    requests.add("one", JobState.RUNNING, view(), 1, stop=True)
    assert (requests.stopping, requests.stopped) == (True, False)
    requests.complete(savepoint("one"))
    assert (requests.stopping, requests.stopped) == (False, True)
    with pytest.raises(SavepointFailed):
        requests.add("two", JobState.RUNNING, view(), 2, stop=False)


@pytest.mark.parametrize("state", [each for each in JobState if each is not JobState.RUNNING])
def test_a_savepoint_of_a_job_that_does_not_run_is_refused(state: JobState) -> None:
    with pytest.raises(SavepointFailed):
        SavepointRequests().add("one", state, view(), 1, stop=False)


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(CheckpointsView(), id="a-batch-job"),
        pytest.param(view(name=""), id="no-query-with-a-name"),
        pytest.param(view(state="ENDED"), id="no-query-any-more"),
    ],
)
def test_a_savepoint_of_a_job_that_is_not_streaming_is_refused(shown: CheckpointsView) -> None:
    with pytest.raises(NotStreaming):
        SavepointRequests().add("one", JobState.RUNNING, shown, 1, stop=False)


def test_a_savepoint_before_the_first_committed_batch_is_refused() -> None:
    with pytest.raises(SavepointFailed):
        SavepointRequests().add("one", JobState.RUNNING, view(committed=False), 1, stop=False)


def test_a_savepoint_begun_by_an_earlier_attempt_has_failed() -> None:
    before = SavepointRequests()
    before.add("one", JobState.RUNNING, view(), 1, stop=True)
    requests = SavepointRequests(before.requests)
    assert requests.requests[0].state is SavepointState.FAILED
    assert not requests.asked_to_stop


def test_the_remembered_savepoint_requests_are_bounded() -> None:
    requests = SavepointRequests()
    for number in range(3 * MAX_REQUESTS):
        requests.add(str(number), JobState.RUNNING, view(), number, stop=False)
        requests.fail("no")
    assert len(requests.requests) == MAX_REQUESTS
