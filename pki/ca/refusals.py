"""Renewals refused because a newer certificate exists, for doctor and the dashboard: ``<pki>/ca/superseded.json``.

The ledger has each of them for good. This file has what needs attention still: doctor, the dashboard and the page of
certificates read it. An entry needs no attention any more once the certificate that was shown is revoked (with reason
``superseded`` when it was a harmless copy), or some days after it was shown last.
"""

from __future__ import annotations

import datetime as dt
import logging
from pathlib import Path

import msgspec

from sluice.core import FileStamp, Home, StoreError, file_stamp, make_private_directory, read_bounded, write_secret
from sluice.pki.config import PkiConfig
from sluice.pki.ledger import ledger_path
from sluice.pki.revocation import RevocationStore
from sluice.pki.x509 import DAMAGED_JSON, AuthorityKind

_LOG = logging.getLogger(__name__)

REFUSALS_FILE = "superseded.json"
MAX_REFUSALS = 1000
"""Certificates remembered, the ones shown last."""
MAX_FILE_BYTES = 2 << 20
ATTENTION = dt.timedelta(days=7)
"""How long after it was shown last a superseded certificate needs attention."""
RECORD_AGAIN = dt.timedelta(hours=1)
"""A certificate that is shown again and again is recorded no more often."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A certificate that was shown for renewal although ``newest`` exists (serial numbers are hexadecimal)."""

    identity: str
    authority: AuthorityKind
    serial: str
    newest: str
    not_after: dt.datetime
    first: dt.datetime
    last: dt.datetime

    def describe(self) -> str:
        """In a sentence, for people."""
        return (
            f"an older certificate of {self.identity} (serial {self.serial}) was shown for renewal at "
            f"{self.last:%Y-%m-%d %H:%M} UTC although {self.newest} is the newest: two have this identity"
        )


class Refusals:
    """The file of one home, for its authorities: each writes in its turn at the ledger."""

    def __init__(self, pki: Path) -> None:
        self._path = refusals_path(pki)
        self._known: dict[tuple[AuthorityKind, str], Refusal] = {}
        self._stamp: FileStamp | None = None
        self._read_again()

    def add(self, refusal: Refusal) -> bool:
        """Take in one more; returns whether it is to be recorded, being the first for a while.

        Raises:
            StoreError: it cannot be written.
        """
        self._read_again()
        key = (refusal.authority, refusal.serial)
        before = self._known.get(key)
        if before is not None and refusal.last - before.last < RECORD_AGAIN:
            return False
        first = refusal.first if before is None else before.first
        self._known.pop(key, None)
        self._known[key] = msgspec.structs.replace(refusal, first=first)
        while len(self._known) > MAX_REFUSALS:
            self._known.pop(next(iter(self._known)))
        self._write()
        return True

    def _read_again(self) -> None:
        """What another authority of the home has added counts, too."""
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self._known = {(each.authority, each.serial): each for each in _read(self._path)}
        except StoreError as error:  # no reason not to issue: the ledger has what was in it
            _LOG.error("the record of refused certificates is lost: %s", error)
        self._stamp = stamp

    def _write(self) -> None:
        make_private_directory(self._path.parent)
        write_secret(self._path, msgspec.json.format(msgspec.json.encode(tuple(self._known.values())), indent=1))
        self._stamp = file_stamp(self._path)


def refusals_path(pki: Path) -> Path:
    """Where the file of the authorities below ``pki`` is."""
    return ledger_path(pki).parent / REFUSALS_FILE


def needing_attention(home: Home, now: dt.datetime) -> tuple[Refusal, ...]:
    """What somebody should look at, the latest first; nothing where no online authority has run.

    Raises:
        StoreError: the file, or the record of revocations, is damaged.
    """
    found = [each for each in _read(refusals_path(home.pki)) if now - each.last < ATTENTION]
    if not found:
        return ()
    revocations = RevocationStore(home.pki, PkiConfig(), clock=lambda: now)
    open_still = [each for each in found if not revocations.is_revoked(each.authority, int(each.serial, 16))]
    return tuple(sorted(open_still, key=lambda each: each.last, reverse=True))


def _read(path: Path) -> tuple[Refusal, ...]:
    if not path.exists():
        return ()
    try:
        return msgspec.json.decode(read_bounded(path, MAX_FILE_BYTES), type=tuple[Refusal, ...])
    except DAMAGED_JSON as error:
        raise StoreError(f"{path} is damaged: {error}", "remove it: the ledger has what was in it") from error
