"""Counting the completed checkpoints of a streaming job."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.checkpoint.ledger import (
    HISTORY,
    MAX_QUERIES,
    Checkpoint,
    CheckpointLedger,
    QueryCheckpoint,
    decode,
    encode,
    missing_batches,
)
from sluice.runtime.messages import StreamingQuery, StreamingState


def state(**batches: int) -> StreamingState:
    """Return running queries with these names and last committed batches."""
    return StreamingState(
        queries=tuple(
            StreamingQuery(id=f"id-{name}", run_id="r", name=name, location=f"/c/{name}", state="RUNNING", batch=batch)
            for name, batch in batches.items()
        )
    )


def checkpoint(number: int, **batches: int) -> Checkpoint:
    """A completed checkpoint."""
    queries = tuple(QueryCheckpoint(query_id=f"id-{name}", name=name, batch=batch) for name, batch in batches.items())
    return Checkpoint(number=number, attempt=1, completed_at=0, queries=queries)


def test_a_query_without_a_committed_batch_completes_no_checkpoint() -> None:
    ledger = CheckpointLedger(1)
    assert ledger.update(state(a=-1), 1) is None
    assert (ledger.view.completed, ledger.view.latest) == (0, None)


def test_each_batch_of_each_query_completes_a_checkpoint_of_all_queries() -> None:
    ledger = CheckpointLedger(1)
    first = ledger.update(state(a=0), 1)
    second = ledger.update(state(a=0, b=0), 2)
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1, 2)
    assert {each.name: each.batch for each in second.queries} == {"a": 0, "b": 0}
    assert ledger.update(state(a=0, b=0), 3) is None


def test_a_later_attempt_continues_the_checkpoint_numbers() -> None:
    ledger = CheckpointLedger(2, restored=checkpoint(7, a=4, b=1))
    assert ledger.view.completed == 7
    assert ledger.update(state(a=-1), 1) is None
    done = ledger.update(state(a=6), 2)
    assert done is not None
    assert (done.number, done.attempt) == (9, 2)
    assert {each.name: each.batch for each in done.queries} == {"a": 6, "b": 1}


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(state(a=3), id="an-earlier-batch"),
        pytest.param(
            StreamingState(
                queries=(StreamingQuery(id="other", run_id="r", name="a", location="", state="RUNNING", batch=9),)
            ),
            id="another-query-of-that-name",
        ),
    ],
)
def test_a_query_that_does_not_continue_from_its_restored_batch_is_reported_as_a_problem(told: StreamingState) -> None:
    ledger = CheckpointLedger(2, restored=checkpoint(7, a=4))
    assert ledger.update(told, 1) is None
    assert "batch 4 was committed" in ledger.problem


def test_a_query_without_a_name_is_reported_once_and_completes_no_checkpoint() -> None:
    unnamed = StreamingState(
        queries=(StreamingQuery(id="x", run_id="r", name="", location="", state="RUNNING", batch=5),)
    )
    ledger = CheckpointLedger(1)
    assert ledger.update(unnamed, 1) is None
    assert ledger.unnamed() == ["x"]
    assert ledger.unnamed() == []


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), min_size=1), max_size=40), st.integers(0, 40)
)
def test_checkpoint_numbers_rise_by_the_committed_batches_even_across_a_restart(
    steps: list[dict[str, int]], cut: int
) -> None:
    batches: dict[str, int] = {}
    ledger, committed = CheckpointLedger(1), 0
    for index, step in enumerate(steps):
        if index == cut:  # the attempt ends, the next one goes on from what was recorded
            ledger = CheckpointLedger(2, restored=ledger.view.latest)
        for name, more in step.items():
            if name not in batches:
                batches[name], committed = 0, committed + 1
            else:
                batches[name], committed = batches[name] + more, committed + more
        done = ledger.update(state(**batches), index)
        assert ledger.view.completed == committed
        if done is not None:
            assert decode(encode(done)) == done
            assert {each.name: each.batch for each in done.queries} == batches
    assert not ledger.problem
    assert len(ledger.view.history) <= HISTORY


def test_a_checkpoint_is_complete_if_all_its_batches_are_committed() -> None:
    assert not missing_batches(checkpoint(1, a=4), {"a": 4, "b": 0})
    assert not missing_batches(checkpoint(1, a=4), {"a": 5})
    assert "only batch 3" in missing_batches(checkpoint(1, a=4), {"a": 3})
    assert "nothing of it" in missing_batches(checkpoint(1, a=0), {})


def test_a_job_with_ever_new_queries_keeps_only_the_latest() -> None:
    ledger = CheckpointLedger(1)
    for number in range(MAX_QUERIES + 50):
        assert ledger.update(state(**{f"q{number}": 0}), number) is not None
    latest = ledger.view.latest
    assert latest is not None
    assert len(latest.queries) == MAX_QUERIES
    assert latest.queries[-1].name == f"q{MAX_QUERIES + 49}"
    assert latest.number == MAX_QUERIES + 50


def test_a_query_that_is_still_reported_is_never_left_out() -> None:
    ledger = CheckpointLedger(1)
    for number in range(MAX_QUERIES + 5):
        ledger.update(state(**{"steady": 0, f"q{number}": 0}), number)
    assert ledger.update(state(steady=1), 0) is not None
    latest = ledger.view.latest
    assert latest is not None
    assert {each.name: each.batch for each in latest.queries}["steady"] == 1


def test_only_so_many_queries_without_a_name_are_remembered() -> None:
    ledger = CheckpointLedger(1)
    told = 0
    for number in range(MAX_QUERIES // 60 + 3):
        ids = (f"{number}-{each}" for each in range(60))
        queries = (StreamingQuery(id=each, run_id="r", name="", location="", state="RUNNING", batch=0) for each in ids)
        ledger.update(StreamingState(queries=tuple(queries)), number)
        told += len(ledger.unnamed())
    assert told == MAX_QUERIES
