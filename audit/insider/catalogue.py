"""The attempts as checks of the audit: ids, severities, sources and remedies for every report."""

from __future__ import annotations

from sluice.audit.check import Check
from sluice.audit.insider.payload import ATTEMPTS, Attempt, load
from sluice.audit.model import Evidence, Kind, Severity, not_examined
from sluice.audit.subject import Subject


def _answered_elsewhere(_: Subject) -> Evidence:
    return not_examined("only the job itself can answer it")


def _check(attempt: Attempt) -> Check:
    return Check(
        id=attempt.id,
        title=f"A job cannot {attempt.what}",
        problem=f"A job can {attempt.what}",
        severity=Severity(attempt.severity),
        kinds=frozenset({Kind.CODE}),
        expected=attempt.group.expected,
        references=tuple(f"CWE-{number}" for number in attempt.cwe),
        remedy=attempt.remedy,
        run=_answered_elsewhere,
        connects=False,
    )


load()
CHECKS: tuple[Check, ...] = tuple(_check(attempt) for attempt in ATTEMPTS.values())
