"""Notes of certificates that were signed without the online authority, for its ledger.

Only ``ca`` processes write the ledger, and one may hold it or none may run. So a command that signs with an authority's
key writes a note, flushed to disk before the certificate leaves. The online authority adds the notes to its chain at
its start and every few seconds, and removes a note once its records are on disk. After a crash it recognises notes that
it has already added by their certificates.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from cryptography import x509

from sluice.core import StoreError, make_private_directory, read_secret, rfc3339, sync_directory, write_secret
from sluice.pki.ledger.file import Ledger, ledger_path
from sluice.pki.ledger.records import MAX_LINE_BYTES, NOTED_KINDS, LedgerRecord, NotedKind
from sluice.pki.x509 import DAMAGED_JSON, fingerprint

_LOG = logging.getLogger(__name__)

MAX_RECORDS = 1000
"""Most certificates in one note."""
MAX_NOTE_BYTES = MAX_RECORDS * MAX_LINE_BYTES


def issuance_note(certificate: x509.Certificate, identity: str, kind: NotedKind) -> LedgerRecord:
    """The ledger record of ``certificate``; its requester is the local user."""
    return LedgerRecord(
        event="issued",
        kind=kind,
        identity=identity,
        serial=f"{certificate.serial_number:x}",
        certificate=fingerprint(certificate),
        not_after=rfc3339(certificate.not_valid_after_utc),
        requester=f"uid:{os.geteuid()}",
    )


class IssuanceNotes:
    """The notes beside the ledger of the authorities below ``pki``; without a ledger there are no notes."""

    def __init__(self, pki: Path) -> None:
        self._ledger = ledger_path(pki)
        self._directory = self._ledger.parent / "notes"

    @property
    def wanted(self) -> bool:
        """Whether there is a ledger, so that notes are needed."""
        return self._ledger.exists()

    def write(self, records: Sequence[LedgerRecord]) -> None:
        """Write ``records`` to disk before returning; raises :class:`StoreError`."""
        if not self.wanted:
            return
        for start in range(0, len(records), MAX_RECORDS):
            lines = b"".join(msgspec.json.encode(each) + b"\n" for each in records[start : start + MAX_RECORDS])
            make_private_directory(self._directory)
            write_secret(self._directory / f"{secrets.token_hex(8)}.jsonl", lines)

    def waiting(self) -> int:
        """The number of notes that are not in the ledger yet."""
        return len(self._paths())

    def records(self) -> Iterator[LedgerRecord]:
        """The records of the notes, without damaged notes (which the online authority reports)."""
        for path in self._paths():
            with contextlib.suppress(StoreError):
                yield from _read(path)

    def take_in(self, ledger: Ledger) -> int:
        """Add the notes to ``ledger`` and remove them; returns the number of records.

        Raises:
            LedgerError: it could not be written; the notes stay.
        """
        taken = 0
        for path in self._paths():
            try:
                records = _read(path)
            except StoreError as error:
                _LOG.error("a damaged note for the ledger is set aside: %s", error)
                path.replace(path.with_suffix(".damaged"))
                continue
            new = {each.certificate: each for each in records if not ledger.was_noted(each.certificate)}
            ledger.append_all(list(new.values()))
            taken += len(new)
            path.unlink(missing_ok=True)
        if taken:
            sync_directory(self._directory)
        return taken

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._directory.glob("*.jsonl") if not path.name.startswith("."))


def _read(path: Path) -> list[LedgerRecord]:
    records = []
    for line in read_secret(path, MAX_NOTE_BYTES).splitlines():
        try:
            record = msgspec.json.decode(line, type=LedgerRecord)
        except DAMAGED_JSON as error:
            raise StoreError(f"{path} is damaged: {error}") from error
        # Only records of issuance_note: a note must not look like an act of the online authority.
        honest = record.event == "issued" and record.kind in NOTED_KINDS and record.requester.startswith("uid:")
        if not honest or record.token or record.sequence or record.previous or record.digest:
            raise StoreError(f"{path} holds something other than notes of certificates")
        records.append(record)
    if len(records) > MAX_RECORDS:
        raise StoreError(f"{path} holds more than {MAX_RECORDS} records")
    return records
