"""Tests of the log of a job's attempts and of the errors in them."""

from __future__ import annotations

import pytest
from cryptography import x509

from sluice.runtime.jobmanager.attempt.decisions.history_log import (
    MAX_ATTEMPTS_KEPT,
    MAX_PROCESSES_KEPT,
    MAX_SERIALS_KEPT,
    HistoryLog,
)
from sluice.runtime.jobmanager.exceptions import MAX_EXCEPTIONS, root_cause, with_outcomes
from sluice.runtime.messages import JobState
from tests.outside import OutsideAuthority

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
    log = HistoryLog()
    log.begin(1, 10)
    log.note(15, "boom", ended_attempt=True)
    log.end("FAILED", 20, "boom")
    log.begin(2, 30)
    first, second = log.attempts
    assert (first.number, first.started_at, first.ended_at, first.outcome, first.error) == (1, 10, 20, "FAILED", "boom")
    assert (second.outcome, second.ended_at) == ("", None)
    assert log.exceptions[0].attempt == 1


def test_the_end_of_an_attempt_is_noted_once() -> None:
    log = HistoryLog()
    log.begin(1, 10)
    log.end("FAILED", 20, "first")
    log.end("CANCELED", 30)
    assert log.attempts[0].error == "first"


def test_the_history_is_bounded_and_keeps_exceptions_that_ended_attempts_longest() -> None:
    log = HistoryLog()
    log.begin(1, 0)
    log.note(0, "the end", ended_attempt=True)
    for number in range(MAX_EXCEPTIONS * 3):
        log.note(number, f"executor {number} ended", executor=number)
    assert len(log.exceptions) == MAX_EXCEPTIONS
    assert log.exceptions[0].error == "the end"
    assert log.exceptions[-1].executor == MAX_EXCEPTIONS * 3 - 1
    for number in range(MAX_EXCEPTIONS * 2):
        log.note(number, f"end {number}", ended_attempt=True)
    assert [each.error for each in log.exceptions][-1] == f"end {MAX_EXCEPTIONS * 2 - 1}"
    assert len(log.exceptions) == MAX_EXCEPTIONS


def test_texts_and_attempts_are_bounded() -> None:
    log = HistoryLog()
    for number in range(1, 3 * MAX_ATTEMPTS_KEPT):
        log.begin(number, number)
    assert len(log.attempts) == MAX_ATTEMPTS_KEPT
    log.note(1, "e" * 10**6, "t" * 10**6)
    assert len(log.exceptions[0].error) + len(log.exceptions[0].traceback) < 40_000


def log_of(*outcomes: str) -> HistoryLog:
    """Return a log with one lost executor per attempt; FAILED attempts ended because of another error."""
    log = HistoryLog()
    for number, outcome in enumerate(outcomes, 1):
        log.begin(number, number)
        log.note(number, "executor 1 ended", executor=1)
        if outcome == "FAILED":
            log.note(number, "boom", ended_attempt=True)
        if outcome:
            log.end(outcome, number)
    return log


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
def test_an_exception_counts_as_recovered_only_if_the_job_continued_and_finished(
    state: JobState, outcomes: tuple[str, ...], recovered: tuple[bool | None, ...]
) -> None:
    log = log_of(*outcomes)
    assert tuple(each.recovered for each in with_outcomes(log.exceptions, log.attempts, state)) == recovered


@pytest.fixture(scope="module")
def leaf(tmp_path_factory: pytest.TempPathFactory) -> x509.Certificate:
    return OutsideAuthority(tmp_path_factory.mktemp("outside")).certificate


def certify(log: HistoryLog, leaf: x509.Certificate, number: int, **changes: str) -> None:
    where = {"taskmanager": "tm-1", "isolation": "sandbox", "egress": "enforce"} | changes
    log.certified(f"spiffe://td/job/x/executor/{number}", leaf, **where)


def test_certificates_of_a_process_are_counted_and_the_latest_serials_kept(leaf: x509.Certificate) -> None:
    log = HistoryLog()
    log.begin(1, 10)
    for _ in range(MAX_SERIALS_KEPT + 2):
        certify(log, leaf, 1)
    (process,) = log.processes
    assert (process.certificates, len(process.serials)) == (MAX_SERIALS_KEPT + 2, MAX_SERIALS_KEPT)
    assert process.serials[0] == f"{leaf.serial_number:x}"
    assert (process.attempt, process.isolation, process.egress) == (1, "sandbox", "enforce")


def test_a_renewal_on_the_same_taskmanager_keeps_the_known_isolation(leaf: x509.Certificate) -> None:
    log = HistoryLog()
    certify(log, leaf, 1)
    certify(log, leaf, 1, isolation="", egress="")
    assert [(each.isolation, each.certificates) for each in log.processes] == [("sandbox", 2)]
    certify(log, leaf, 1, taskmanager="tm-2", isolation="", egress="")
    assert [each.isolation for each in log.processes] == ["sandbox", ""], "another TaskManager may be another box"


def test_the_certified_processes_are_bounded_and_dropped_ones_counted(leaf: x509.Certificate) -> None:
    log = HistoryLog()
    for number in range(MAX_PROCESSES_KEPT + 3):
        certify(log, leaf, number)
    assert (len(log.processes), log.processes_dropped) == (MAX_PROCESSES_KEPT, 3)
    assert log.processes[-1].identity.endswith(f"/{MAX_PROCESSES_KEPT + 2}")
