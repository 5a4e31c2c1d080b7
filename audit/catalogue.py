"""All checks, in the order in which they run and are reported."""

from __future__ import annotations

from sluice.audit.check import Check
from sluice.audit.checks import (
    certificates,
    edge,
    exhaustion,
    home,
    isolation,
    listening,
    names,
    peers,
    protocol,
    resumption,
    suites,
)

CHECKS: tuple[Check, ...] = (
    *listening.CHECKS,
    *protocol.CHECKS,
    *suites.CHECKS,
    *resumption.CHECKS,
    *exhaustion.CHECKS,
    *certificates.CHECKS,
    *names.CHECKS,
    *peers.CHECKS,
    *edge.CHECKS,
    *home.CHECKS,
    *isolation.CHECKS,
)


def by_id() -> dict[str, Check]:
    """The checks by their ids."""
    return {check.id: check for check in CHECKS}
