"""The summary of the last ``sluice audit`` of this home. The command writes it; the dashboard shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from sluice.core import Home, StoreError, read_bounded

MAX_SUMMARY_BYTES = 1 << 20


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """A listener, and what it negotiated with a client that offers all strong options. Empty without a handshake."""

    name: str
    channel: str = ""
    process: str = ""
    version: str = ""
    suite: str = ""
    group: str = ""
    findings: int = 0


class AuditSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of an audit. ``at`` is in epoch seconds; ``findings`` counts by severity, without accepted findings."""

    at: float
    checks: int
    findings: dict[str, int] = {}
    listeners: tuple[Examined, ...] = ()

    @property
    def total(self) -> int:
        """The number of findings."""
        return sum(self.findings.values())

    def of(self, channel: str, identities: Sequence[str]) -> Examined | None:
        """The listener of one of ``identities`` on ``channel``; any listener of the channel if none of them matches."""
        there = [each for each in self.listeners if each.channel == channel and each.version]
        mine = [each for each in there if each.process and any(each.process in identity for identity in identities)]
        return next(iter(mine or there), None)


def summary_file(home: Home) -> Path:
    """The file of the summary."""
    return home.root / "audit" / "last.json"


def read_summary(home: Home) -> AuditSummary | None:
    """The last summary; None if it is missing or unreadable, since nothing depends on it."""
    try:
        return msgspec.json.decode(read_bounded(summary_file(home), MAX_SUMMARY_BYTES), type=AuditSummary)
    except (StoreError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
