"""Destinations outside of the cluster on a job's trust map: one for each host and port that the job tried.

The job chooses the names of destinations, so they are only shown and never trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.core import EgressRow, EgressVerdict
from sluice.core.pages import Tone

MAX_DESTINATIONS = 200
"""Maximum number of destinations on one map; the most recently tried ones are shown."""
OUTSIDE = "outside"
"""The role of a destination."""
CHANNEL = "egress"
_PREFIX = "outside "
_TONES: Mapping[EgressVerdict, Tone] = {
    EgressVerdict.ALLOWED: "ok",
    EgressVerdict.WOULD_REFUSE: "warn",
    EgressVerdict.REFUSED: "bad",
}
_WORST_FIRST = (EgressVerdict.REFUSED, EgressVerdict.WOULD_REFUSE, EgressVerdict.ALLOWED)


@dataclass(frozen=True, slots=True)
class EgressDestination:
    """All connections of one process to one destination. ``bytes_up`` were sent by the job, ``bytes_down`` received."""

    process: str
    destination: str
    verdict: EgressVerdict
    count: int
    bytes_up: int
    bytes_down: int
    latest: float
    protocols: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def identity(self) -> str:
        """The identity that stands for the destination on the map."""
        return _PREFIX + self.destination

    @property
    def tone(self) -> Tone:
        """The tone of the verdict."""
        return _TONES[self.verdict]


def egress_destinations(rows: Iterable[EgressRow], trust_domain: str) -> tuple[EgressDestination, ...]:
    """The outbound connections of a job, by process and destination, each with its worst verdict."""
    by_end: dict[tuple[str, str], list[EgressRow]] = {}
    for row in sorted(rows, key=lambda each: each.opened_at):
        process = f"spiffe://{trust_domain}/job/{row.job_id}/{row.process}"
        by_end.setdefault((process, row.target), []).append(row)
    latest = sorted(by_end.items(), key=lambda each: each[1][-1].opened_at)[-MAX_DESTINATIONS:]
    return tuple(_egress_destination(process, destination, found) for (process, destination), found in latest)


def _egress_destination(process: str, destination: str, rows: Sequence[EgressRow]) -> EgressDestination:
    verdicts = {row.verdict for row in rows}
    return EgressDestination(
        process,
        destination,
        next(each for each in _WORST_FIRST if each in verdicts),
        sum(row.count for row in rows),
        sum(row.bytes_up for row in rows),
        sum(row.bytes_down for row in rows),
        rows[-1].opened_at,
        tuple(dict.fromkeys(row.protocol for row in rows)),
        tuple(dict.fromkeys(row.reason for row in rows if row.reason))[:3],
    )
