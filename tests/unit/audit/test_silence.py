"""Findings based on silence are retried after the other checks; findings based on evidence are not."""

from __future__ import annotations

import pytest

from sluice.audit.check import Check
from sluice.audit.model import (
    Evidence,
    Kind,
    Listener,
    Outcome,
    Severity,
    finding,
    passed,
)
from sluice.audit.runner import examine
from sluice.audit.subject import Options, Subject
from sluice.audit.wire.client import Verdict
from sluice.audit.wire.connection import Alert, Closed, Silent
from sluice.audit.wire.numbers import ALERTS

LISTENER = Listener(name="home", kind=Kind.HOME, path="/nowhere")


class Answers:
    """Evidence that a check returns, one piece per run."""

    def __init__(self, *evidence: Evidence) -> None:
        self.left = list(evidence)

    def check(self) -> Check:
        """A check that returns the next piece of evidence each time it runs."""
        return Check(
            id="TST-01",
            title="A test",
            problem="a failed test",
            severity=Severity.HIGH,
            kinds=frozenset({Kind.HOME}),
            expected="an answer",
            references=(),
            remedy="none",
            run=lambda _: self.left.pop(0),
        )


SILENCE = finding("waited", "nothing in 10 s", silence=True)


def examined(answers: Answers) -> tuple[Outcome, str]:
    """The outcome of the check and what was seen; all evidence must have been used."""
    (result,) = examine("test", [Subject(LISTENER, Options())], checks=[answers.check()]).results
    assert answers.left == []
    return result.outcome, result.seen


def test_a_silent_listener_that_refuses_at_the_second_try_passes() -> None:
    assert examined(Answers(SILENCE, passed("waited", "refused"))) == (
        Outcome.PASSED,
        "refused (tried again; among the other checks: nothing in 10 s)",
    )


def test_a_listener_that_is_silent_twice_is_a_finding() -> None:
    assert examined(Answers(SILENCE, SILENCE))[0] is Outcome.FINDING


@pytest.mark.parametrize("seen", ["admitted: 3 bytes of application data", "TLS 1.0 is spoken"])
def test_a_finding_that_rests_on_something_seen_is_not_tried_again(seen: str) -> None:
    assert examined(Answers(finding("connected", seen))) == (Outcome.FINDING, seen)


def test_only_an_open_connection_without_any_data_is_silent() -> None:
    assert Verdict(Silent(2.0)).silent
    assert not Verdict(Silent(2.0), data=b"hello").silent
    assert not Verdict(Closed(reset=False)).silent
    assert not Verdict(Alert(min(ALERTS))).silent
