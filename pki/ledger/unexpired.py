"""Unexpired certificates in the ledger, including those that exist only on other machines."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.ledger.offline_issuance import IssuanceNotes
from sluice.pki.ledger.records import side_of
from sluice.pki.revocation import RevocationTarget
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import AuthorityKind


def unexpired_certificates(
    pki: Path, now: dt.datetime, *, identity: SpiffeId | None = None, serial: int | None = None
) -> Iterator[tuple[AuthorityKind, RevocationTarget]]:
    """Every certificate in the ledger that has not expired at ``now``, with the authority that signed it.

    Args:
        pki: of the authority's home; without a ledger in it there is nothing.
        now: with time zone.
        identity: only those of this identity.
        serial: only the one with this number.

    Raises:
        LedgerError: the ledger is damaged.
    """
    path = ledger_path(pki)
    if not path.exists():
        return
    for record in chain(read_ledger(path), IssuanceNotes(pki).records()):
        if (kind := side_of(record)) is None:
            continue
        if identity is not None and record.identity != str(identity):
            continue
        number, end = int(record.serial, 16), dt.datetime.fromisoformat(record.not_after)
        if end > now and serial in {None, number}:
            yield kind, RevocationTarget(number, record.identity, end, sha256=record.certificate)
