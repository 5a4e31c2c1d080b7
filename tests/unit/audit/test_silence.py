"""Findings that rest on silence are tried again when all others are through; those on something seen are not."""

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
    """A check that says one thing after the other."""

    def __init__(self, *evidence: Evidence) -> None:
        self.left = list(evidence)

    def check(self) -> Check:
        """Of it."""
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
    """What is told of the check."""
    (result,) = examine("test", [Subject(LISTENER, Options())], checks=[answers.check()]).results
    assert answers.left == []
    return result.outcome, result.seen


def test_who_refuses_when_the_machine_is_quiet_refuses() -> None:
    assert examined(Answers(SILENCE, passed("waited", "refused"))) == (
        Outcome.PASSED,
        "refused (tried again; among the other checks: nothing in 10 s)",
    )


def test_who_stays_silent_is_a_finding() -> None:
    assert examined(Answers(SILENCE, SILENCE))[0] is Outcome.FINDING


@pytest.mark.parametrize("seen", ["admitted: 3 bytes of application data", "TLS 1.0 is spoken"])
def test_who_has_shown_something_is_not_asked_again(seen: str) -> None:
    assert examined(Answers(finding("connected", seen))) == (Outcome.FINDING, seen)


def test_only_a_connection_that_is_still_open_and_on_which_nothing_came_is_silence() -> None:
    assert Verdict(Silent(2.0)).silent
    assert not Verdict(Silent(2.0), data=b"hello").silent
    assert not Verdict(Closed(reset=False)).silent
    assert not Verdict(Alert(min(ALERTS))).silent
