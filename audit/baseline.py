"""Accepted findings, each with a reason and an expiry date, from a TOML file.

[[accepted]]
check = "TLS-04"
listener = "legacy"          # or a pattern: "executor-*"
reason = "the old client goes in March, ticket 4711"
expires = 2027-03-31
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from sluice.audit.catalogue import by_id
from sluice.audit.errors import InputError
from sluice.audit.insider import CHECKS as INSIDE
from sluice.audit.model import Accepted, Outcome, Report, Result
from sluice.audit.toml import read_toml

LONGEST = dt.timedelta(days=366)
"""Longest time that a finding may be accepted."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One accepted finding; ``listener`` may have ``*`` in it."""

    check: str
    listener: str
    reason: str
    expires: dt.date


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accepted: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """The report with accepted findings marked, and unused entries, with the reason."""

    report: Report
    idle: tuple[str, ...]


def read_baseline(path: Path, today: dt.date) -> tuple[Entry, ...]:
    """Read the entries; raises :class:`InputError` for an invalid one."""
    entries = read_toml(path, _Document).accepted
    for entry in entries:
        if entry.check not in by_id() and not any(entry.check == check.id for check in INSIDE):
            raise InputError(f"{path}: there is no check {entry.check!r}", "see `sluice audit --list-checks`")
        if not entry.reason.strip():
            raise InputError(f"{path}: {entry.check} at {entry.listener} has no reason", "say why it is accepted")
        if entry.expires > today + LONGEST:
            raise InputError(
                f"{path}: {entry.check} at {entry.listener} is accepted until {entry.expires}",
                f"at most {LONGEST.days} days, then review it again",
            )
    return entries


def apply_baseline(report: Report, entries: tuple[Entry, ...], today: dt.date) -> Applied:
    """Mark the findings that ``entries`` accept; an entry past its end accepts nothing."""
    idle = [f"{_name(entry)} expired on {entry.expires}" for entry in entries if entry.expires < today]
    valid = [entry for entry in entries if entry.expires >= today]
    used: set[Entry] = set()

    def judged(result: Result) -> Result:
        matching = (e for e in valid if e.check == result.check and fnmatchcase(result.listener, e.listener))
        entry = next(matching, None)
        if entry is None or result.outcome is not Outcome.FINDING:
            return result
        used.add(entry)
        return msgspec.structs.replace(result, accepted=Accepted(entry.reason, entry.expires))

    results = tuple(judged(result) for result in report.results)
    idle += [f"{_name(entry)} was not found any more" for entry in valid if entry not in used]
    return Applied(msgspec.structs.replace(report, results=results), tuple(idle))


def _name(entry: Entry) -> str:
    return f"{entry.check} at {entry.listener}"
