"""Renewals refused because a newer certificate exists, for doctor and the dashboard: ``<pki>/ca/superseded.json``.

The ledger keeps all of them. This file has those that still need attention, for doctor, the dashboard and the page of
certificates. An entry is done once the shown certificate is revoked (with reason ``superseded`` when it was a harmless
copy), or some days after it was last shown.
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
"""Most certificates remembered, the latest ones."""
MAX_FILE_BYTES = 2 << 20
ATTENTION = dt.timedelta(days=7)
"""How long a superseded certificate needs attention after it was last shown."""
RECORD_AGAIN = dt.timedelta(hours=1)
"""Shortest time between two records of one certificate."""


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
        """The refusal in a sentence."""
        return (
            f"an older certificate of {self.identity} (serial {self.serial}) was shown for renewal at "
            f"{self.last:%Y-%m-%d %H:%M} UTC although {self.newest} is the newest: two have this identity"
        )


class Refusals:
    """The file of one home; its authorities write it in their turn at the ledger."""

    def __init__(self, pki: Path) -> None:
        self._path = refusals_path(pki)
        self._known: dict[tuple[AuthorityKind, str], Refusal] = {}
        self._stamp: FileStamp | None = None
        self._read_again()

    def add(self, refusal: Refusal) -> bool:
        """Add a refusal; returns whether to record it in the ledger, because it is the first for a while.

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
        """Read the file again: another authority of the home may have added entries."""
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self._known = {(each.authority, each.serial): each for each in _read(self._path)}
        except StoreError as error:  # issuing can go on: the ledger has the content
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
    """The refusals that need attention, the latest first; none where no online authority has run.

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
