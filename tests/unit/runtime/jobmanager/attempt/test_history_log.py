"""What a job remembers of its attempts and of what went wrong in them."""

from __future__ import annotations

import pytest

from sluice.runtime.jobmanager.attempt.history_log import MAX_ATTEMPTS_KEPT, Chronicle
from sluice.runtime.jobmanager.exceptions import MAX_EXCEPTIONS, judged, root_cause
from sluice.runtime.messages import JobState

JAVA = """py4j.protocol.Py4JJavaError: An error occurred while calling o54.collect
: org.apache.spark.SparkException: Job aborted due to stage failure
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "x.py", line 3
Caused by: java.io.IOException: disk full
\tat a.b.C(D.java:1)
"""


def test_the_root_cause_is_the_innermost_one() -> None:
    assert root_cause("Py4JJavaError", JAVA) == "java.io.IOException: disk full"
    assert root_cause("KeyError: 'x'", "Traceback …\nKeyError: 'x'") == "KeyError: 'x'"


def test_attempts_are_remembered_with_their_ends() -> None:
    chronicle = Chronicle()
    chronicle.begin(1, 10)
    chronicle.note(15, "boom", ended_attempt=True)
    chronicle.end("FAILED", 20, "boom")
    chronicle.begin(2, 30)
    first, second = chronicle.attempts
    assert (first.number, first.started_at, first.ended_at, first.outcome, first.error) == (1, 10, 20, "FAILED", "boom")
    assert (second.outcome, second.ended_at) == ("", None)
    assert chronicle.exceptions[0].attempt == 1


def test_an_end_is_noted_once() -> None:
    chronicle = Chronicle()
    chronicle.begin(1, 10)
    chronicle.end("FAILED", 20, "first")
    chronicle.end("CANCELED", 30)
    assert chronicle.attempts[0].error == "first"


def test_the_history_is_bounded_and_what_ended_an_attempt_stays_longest() -> None:
    chronicle = Chronicle()
    chronicle.begin(1, 0)
    chronicle.note(0, "the end", ended_attempt=True)
    for number in range(MAX_EXCEPTIONS * 3):
        chronicle.note(number, f"executor {number} ended", executor=number)
    assert len(chronicle.exceptions) == MAX_EXCEPTIONS
    assert chronicle.exceptions[0].error == "the end"
    assert chronicle.exceptions[-1].executor == MAX_EXCEPTIONS * 3 - 1
    for number in range(MAX_EXCEPTIONS * 2):
        chronicle.note(number, f"end {number}", ended_attempt=True)
    assert [each.error for each in chronicle.exceptions][-1] == f"end {MAX_EXCEPTIONS * 2 - 1}"
    assert len(chronicle.exceptions) == MAX_EXCEPTIONS


def test_texts_and_attempts_are_bounded() -> None:
    chronicle = Chronicle()
    for number in range(1, 3 * MAX_ATTEMPTS_KEPT):
        chronicle.begin(number, number)
    assert len(chronicle.attempts) == MAX_ATTEMPTS_KEPT
    chronicle.note(1, "e" * 10**6, "t" * 10**6)
    assert len(chronicle.exceptions[0].error) + len(chronicle.exceptions[0].traceback) < 40_000


def chronicle_of(*outcomes: str) -> Chronicle:
    """An executor failed in each attempt; those that FAILED ended of something else."""
    chronicle = Chronicle()
    for number, outcome in enumerate(outcomes, 1):
        chronicle.begin(number, number)
        chronicle.note(number, "executor 1 ended", executor=1)
        if outcome == "FAILED":
            chronicle.note(number, "boom", ended_attempt=True)
        if outcome:
            chronicle.end(outcome, number)
    return chronicle


@pytest.mark.parametrize(
    ("state", "outcomes", "recovered"),
    [
        (JobState.FAILED, ("FAILED",), (False, False)),
        (JobState.FAILED, ("FAILED", "FAILED"), (False, False, False, False)),
        (JobState.FAILED, ("LOST", "FAILED"), (None, False, False)),
        (JobState.FINISHED, ("FINISHED",), (True,)),
        (JobState.FINISHED, ("FAILED", "FINISHED"), (True, True, True)),
        (JobState.RUNNING, ("",), (None,)),
        (JobState.RUNNING, ("FAILED", ""), (None, None, None)),
        (JobState.CANCELED, ("CANCELED",), (None,)),
    ],
)
def test_only_what_the_job_got_over_is_recovered(
    state: JobState, outcomes: tuple[str, ...], recovered: tuple[bool | None, ...]
) -> None:
    chronicle = chronicle_of(*outcomes)
    assert tuple(each.recovered for each in judged(chronicle.exceptions, chronicle.attempts, state)) == recovered
