"""Problems of certificates, files and listeners, as ``inspect`` and ``doctor`` report them."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class Severity(enum.StrEnum):
    """How bad it is: ``error`` does not work or is not safe, ``warning`` will be, ``note`` is worth knowing."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Larger is worse."""
        return tuple(Severity).index(self)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One finding.

    ``code`` is stable and one word; ``path`` a file, directory, address, or place in a chain; ``what`` is the fact,
    ``why`` what follows from it, ``remedy`` a command or the next step.
    """

    severity: Severity
    code: str
    path: str
    what: str
    why: str = ""
    remedy: str = ""


def worst_first(problems: Iterable[Problem]) -> list[Problem]:
    """By severity, then by path and code."""
    return sorted(problems, key=lambda each: (-each.severity.rank, each.path, each.code))
