from .file import (
    Ledger as Ledger,
    ledger_path as ledger_path,
    read_ledger as read_ledger,
    verify_ledger as verify_ledger,
)
from .generations import DEFAULT_OVERLAP as DEFAULT_OVERLAP, overlap_for as overlap_for
from .offline_issuance import MAX_RECORDS as MAX_RECORDS, IssuanceNotes as IssuanceNotes, issuance_note as issuance_note
from .records import (
    NOTED_KINDS as NOTED_KINDS,
    IssuanceKind as IssuanceKind,
    LedgerRecord as LedgerRecord,
    NotedKind as NotedKind,
    parse_state as parse_state,
    side_of as side_of,
)
from .turns import ledger_turn as ledger_turn
from .unexpired import unexpired_certificates as unexpired_certificates
