"""The definition of a check: one question about a listener, and the right answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sluice.audit.model import TLS_KINDS, Evidence, Foreign, Kind, Listener, Severity
from sluice.audit.subject import Subject
from sluice.pki import Channel


@dataclass(frozen=True, slots=True)
class Check:
    """One question about a listener, the expected answer, and its sources.

    ``title`` states the requirement, ``problem`` names a finding.
    """

    id: str
    title: str
    problem: str
    severity: Severity
    expected: str
    references: tuple[str, ...]
    remedy: str
    run: Callable[[Subject], Evidence]
    kinds: frozenset[Kind] = TLS_KINDS
    """Kinds of listeners that it applies to."""
    channels: frozenset[Channel] | None = None
    """None: every channel."""
    last: bool = False
    """Whether it must run after all others."""
    connects: bool = True
    """Whether it needs a connection to the listener."""
    ours_only: bool = False
    """Whether it checks a rule of Sluice, which does not apply to other products."""
    foreign: Foreign | None = None

    def applies_to(self, listener: Listener) -> bool:
        """Whether the check applies to ``listener``."""
        if listener.foreign and self.ours_only:
            return False
        return listener.kind in self.kinds and (self.channels is None or listener.channel in self.channels)

    def on(self, listener: Listener) -> Check:
        """The check with the wording and severity for ``listener``."""
        if self.foreign is None or not listener.foreign:
            return self
        other = self.foreign
        return replace(
            self,
            title=self.title if other.title is None else other.title,
            severity=self.severity if other.severity is None else other.severity,
            expected=self.expected if other.expected is None else other.expected,
            remedy=self.remedy if other.remedy is None else other.remedy,
        )
