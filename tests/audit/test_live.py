"""Every check on every listener of the cluster given with ``--cluster``."""

from __future__ import annotations

import pytest

from sluice.audit.check import Check
from sluice.audit.model import Outcome
from sluice.audit.runner import run_check
from sluice.audit.subject import Subject


def test_audit(subject: Subject, check: Check) -> None:
    """The check passes on the listener."""
    result = run_check(subject, check)
    if result.outcome is Outcome.NOT_EXAMINED:
        pytest.skip(result.seen)
    assert result.outcome is Outcome.PASSED, (
        f"\n{result.severity}: {result.check} at {result.place}\ndone: {result.done}\nseen: {result.seen}\n"
        f"expected: {result.expected} ({'; '.join(result.references)})\nremedy: {result.remedy}"
    )
