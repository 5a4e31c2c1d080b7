"""The certificates that an online authority has issued to others, from its ledger. Shared by all tests."""

from __future__ import annotations

from pathlib import Path

from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.ledger.records import NOTED_KINDS, LedgerRecord


def issued_online(pki: Path) -> list[LedgerRecord]:
    """Return the records, except those for the authority itself and other signers on its machine."""
    return [each for each in read_ledger(ledger_path(pki)) if each.kind not in {"self", *NOTED_KINDS}]
