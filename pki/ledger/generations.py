"""The newest certificate of each identity in the ledger: only that one may be renewed. No I/O.

Whoever copied a key can renew its certificate as well as its owner can. But each renewal supersedes what there was, so
that of two who go on from one certificate the second is found out, whichever of them it is: at the latest with the next
renewal of the owner.

What was superseded may still renew for a short overlap, for a process that asked and did not get, or could not write,
the answer tries again with the key it has. The overlap is shorter than the time between two renewals, or else two could
take turns for ever.
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
"""Most identities without a valid certificate that are remembered; the oldest are forgotten first."""
RECORD_PRECISION = dt.timedelta(seconds=1)
"""A certificate says in whole seconds when it begins, the ledger in milliseconds when it was issued."""


@dataclass(slots=True)
class _Line:
    """The certificates of one identity, as far as they have not expired; ``superseded`` says since when."""

    first: dt.datetime
    newest: int
    issued: dt.datetime
    ends: dt.datetime
    superseded: dict[int, tuple[dt.datetime, dt.datetime]] = field(default_factory=dict)


class Generations:
    """The lines of all processes, fed with the records of a ledger in their order.

    Drivers, executors and users are left out: nobody renews them by showing what they have.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[AuthorityKind, str], _Line] = {}
        self._restored: dt.datetime | None = None

    def take(self, record: LedgerRecord) -> None:
        """Note what a record says was issued, or that the ledger was restored from a backup."""
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

        One that the ledger does not have is older than the ledger, or newer than what is left of a ledger that was
        restored from a copy: its own beginning, which is ``backdate`` before it was issued, tells.
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

        Nobody knows any more whether one that was issued before had been superseded or revoked.
        """
        line = self._lines.get((side, str(identity)))
        known = line is not None and shown.serial_number in {line.newest, *line.superseded}
        return None if known else self._restored

    def newest(self, side: AuthorityKind, identity: SpiffeId) -> int | None:
        """The serial number of the newest certificate of ``identity``; None: the ledger has none."""
        line = self._lines.get((side, str(identity)))
        return None if line is None else line.newest


def overlap_for(certificate: x509.Certificate, overlap: dt.timedelta) -> dt.timedelta:
    """How long ``certificate`` may still renew after it was superseded: ``overlap``, or less when its life is short."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return min(overlap, life / OVERLAP_SHARE)


def _is_process(identity: str) -> bool:
    """By the role in its path alone: a ledger of years is full of drivers and executors."""
    _, _, path = identity.removeprefix("spiffe://").partition("/")
    return path.partition("/")[0] in ENROLLABLE
