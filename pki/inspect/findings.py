"""Findings about certificates, files and listeners, as ``inspect`` and ``doctor`` report them."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class Severity(enum.StrEnum):
    """``error``: does not work or is not safe; ``warning``: soon will not; ``note``: worth knowing."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Larger is worse."""
        return tuple(Severity).index(self)


class Finding(msgspec.Struct, frozen=True):
    """One finding.

    ``code`` is stable and one word; ``path`` a file, directory, address, or place in a chain; ``what`` is the fact,
    ``why`` its consequence, ``remedy`` a command or the next step.
    """

    severity: Severity
    code: str
    path: str
    what: str
    why: str = ""
    remedy: str = ""

    @classmethod
    def error(cls, code: str, path: str, what: str, why: str = "", remedy: str = "") -> Finding:
        """Something that does not work or is not safe."""
        return cls(Severity.ERROR, code, path, what, why, remedy)

    @classmethod
    def warning(cls, code: str, path: str, what: str, why: str = "", remedy: str = "") -> Finding:
        """Something that will not work or not be safe."""
        return cls(Severity.WARNING, code, path, what, why, remedy)

    @classmethod
    def note(cls, code: str, path: str, what: str, why: str = "", remedy: str = "") -> Finding:
        """Something worth knowing."""
        return cls(Severity.NOTE, code, path, what, why, remedy)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """By severity, then by path and code."""
    return sorted(findings, key=lambda each: (-each.severity.rank, each.path, each.code))
