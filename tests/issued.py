"""What an online authority has issued to others, by its ledger; shared by everybody's tests."""

from __future__ import annotations

from pathlib import Path

from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.ledger.records import NOTED_KINDS, LedgerRecord


def issued_online(pki: Path) -> list[LedgerRecord]:
    """Without its own identity, and without what was signed on its machine by others."""
    return [each for each in read_ledger(ledger_path(pki)) if each.kind not in {"self", *NOTED_KINDS}]
