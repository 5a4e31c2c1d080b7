"""The newest certificate of each identity in the ledger: only that one may be renewed. No I/O.

A thief with a copied key can renew its certificate like the owner. But each renewal supersedes the earlier certificate,
so that the second of the two to renew is detected, at the latest with the owner's next renewal. A superseded
certificate may still be renewed for a short overlap, because a process that did not get, or could not write, the answer
retries with its old key. The overlap is shorter than the time between two renewals; otherwise the two could take turns
for ever.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from cryptography import x509

from sluice.pki.identities import ENROLLABLE
from sluice.pki.ledger.records import LedgerRecord, side_of
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import AuthorityKind

DEFAULT_OVERLAP = dt.timedelta(minutes=15)
OVERLAP_SHARE = 4
"""The overlap is at most this part of a certificate's life: renewals are at least twice as far apart."""
MAX_LINES = 50_000
"""Most remembered identities without a valid certificate; the oldest are forgotten first."""
RECORD_PRECISION = dt.timedelta(seconds=1)
"""Certificates begin at whole seconds, while the ledger records milliseconds."""


@dataclass(slots=True)
class _Line:
    """The unexpired certificates of one identity; ``superseded`` says since when."""

    first: dt.datetime
    newest: int
    issued: dt.datetime
    ends: dt.datetime
    superseded: dict[int, tuple[dt.datetime, dt.datetime]] = field(default_factory=dict)


class Generations:
    """The lines of all processes, fed with the records of a ledger in order.

    Not of drivers, executors and users, who cannot renew with their certificate.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[AuthorityKind, str], _Line] = {}
        self._restored: dt.datetime | None = None

    def take(self, record: LedgerRecord) -> None:
        """Process a record: an issued certificate, or a restoration from a backup."""
        if record.event == "restored":
            self._restored = dt.datetime.fromisoformat(record.time)
            self._lines.clear()
        side = side_of(record)
        if side is None or not _is_process(record.identity):
            return
        serial, now = int(record.serial, 16), dt.datetime.fromisoformat(record.time)
        ends = dt.datetime.fromisoformat(record.not_after)
        key = (side, record.identity)
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= MAX_LINES:
                self._lines = {key: each for key, each in self._lines.items() if each.ends > now}
            self._lines[key] = _Line(now, serial, now, ends)
            return
        if serial == line.newest:
            return
        line.superseded = {number: (since, end) for number, (since, end) in line.superseded.items() if end > now}
        line.superseded[line.newest] = (now, line.ends)
        line.superseded.pop(serial, None)
        line.newest, line.issued, line.ends = serial, now, ends

    def superseded_since(
        self, side: AuthorityKind, identity: SpiffeId, shown: x509.Certificate, backdate: dt.timedelta
    ) -> dt.datetime | None:
        """Since when there is a newer certificate than ``shown``; None while it is the newest.

        A certificate that the ledger lacks is older than the ledger, or newer than a restored copy of it. Its start,
        which is ``backdate`` before it was issued, tells which.
        """
        line = self._lines.get((side, str(identity)))
        if line is None or shown.serial_number == line.newest:
            return None
        known = line.superseded.get(shown.serial_number)
        if known is not None:
            return known[0]
        if shown.not_valid_before_utc + backdate + RECORD_PRECISION > line.issued:
            return None
        return line.first

    def lost_at(self, side: AuthorityKind, identity: SpiffeId, shown: x509.Certificate) -> dt.datetime | None:
        """When the ledger was restored from a backup, if ``shown`` is not known to have been issued since; else None.

        It is unknown whether an earlier certificate had been superseded or revoked.
        """
        line = self._lines.get((side, str(identity)))
        known = line is not None and shown.serial_number in {line.newest, *line.superseded}
        return None if known else self._restored

    def newest(self, side: AuthorityKind, identity: SpiffeId) -> int | None:
        """The serial number of the newest certificate of ``identity``; None: the ledger has none."""
        line = self._lines.get((side, str(identity)))
        return None if line is None else line.newest


def overlap_for(certificate: x509.Certificate, overlap: dt.timedelta) -> dt.timedelta:
    """How long ``certificate`` may still be renewed once superseded: ``overlap``, or less if it is short-lived."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return min(overlap, life / OVERLAP_SHARE)


def _is_process(identity: str) -> bool:
    """Whether an identity is a process's, by its role only: a ledger of years is full of drivers and executors."""
    _, _, path = identity.removeprefix("spiffe://").partition("/")
    return path.partition("/")[0] in ENROLLABLE
