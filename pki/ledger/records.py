"""Records of the ledger of issued certificates, chained by digests. No I/O.

A record that was removed, changed, inserted or moved breaks the chain. Only cutting off the *end* leaves a valid chain;
to detect that, keep a :class:`ChainState` elsewhere and compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from sluice.core import ChainState
from sluice.pki.errors import LedgerError
from sluice.pki.x509 import DAMAGED_JSON, AuthorityKind

MAX_LINE_BYTES = 8 << 10
"""Longest line of a ledger, in bytes with its newline."""

IssuanceKind = Literal["self", "enrolment", "renewal", "job", "edge-enrolment", "edge-renewal"]
"""Why the online authority issued; ``self`` is its own identity, ``edge-…`` are public server certificates, those of
its ACME server included: they are of kind ``edge-enrolment``, with a ``requester`` ``acme:…``."""
NotedKind = Literal["local", "edge-local", "authority"]
"""Kinds signed offline, with a key on its machine: by the internal authority, the edge's, or the root."""
NOTED_KINDS = frozenset({"local", "edge-local", "authority"})
_BEGINNING = ChainState()
EDGE_KINDS = frozenset({"edge-enrolment", "edge-renewal", "edge-local"})
"""Signed by the edge authority; all others but ``authority`` by the internal one."""


class LedgerRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One certificate that was issued; or another event.

    ``event="recovered"``: what a crash had left half written was dropped. ``event="refused"``: this certificate was
    shown, by its holder, for something of ``kind`` (empty: to have another revoked), although there is a newer one.
    ``event="restored"``: the home was restored from a backup; what was issued after that backup is not recorded.

    ``time`` and ``not_after`` are UTC in RFC 3339, ``serial`` is hexadecimal, ``certificate`` the SHA-256 of its DER,
    ``identity`` a SPIFFE ID, or from the ACME server the names: ``dns:<name>,ip:<address>``. ``requester`` is a SPIFFE
    ID, ``token:<id>``, ``acme:<account>``, ``pod:<namespace>/<service account>/<pod>/<uid>`` or ``uid:<user id>``,
    ``token`` the id of the join token that this enrolment used up.
    There is no secret in a record.
    """

    event: Literal["issued", "recovered", "refused", "restored"]
    sequence: int = 0
    time: str = ""
    kind: IssuanceKind | NotedKind | Literal[""] = ""
    identity: str = ""
    serial: str = ""
    certificate: str = ""
    not_after: str = ""
    requester: str = ""
    token: str = ""
    dropped_bytes: int = 0
    dropped_sha256: str = ""
    previous: str = ""
    digest: str = ""


def side_of(record: LedgerRecord) -> AuthorityKind | None:
    """Which authority signed the leaf of ``record``; None: the record is not about a leaf."""
    if record.event != "issued" or not record.serial or record.kind == "authority":
        return None
    return AuthorityKind.EDGE if record.kind in EDGE_KINDS else AuthorityKind.INTERNAL


def parse_state(text: str) -> ChainState:
    """Parse ``COUNT:DIGEST``; raises :class:`LedgerError`."""
    try:
        return ChainState.parse(text)
    except ValueError as error:
        raise LedgerError(
            f"{text[:100]!r} is not the state of a ledger", "use COUNT:DIGEST as `verify` prints it"
        ) from error


def seal(record: LedgerRecord, state: ChainState) -> tuple[bytes, LedgerRecord]:
    """Seal ``record`` as the next of the chain; returns its line (with newline) and the sealed record."""
    linked = msgspec.structs.replace(record, sequence=state.count + 1, previous=state.digest, digest="")
    sealed = msgspec.structs.replace(linked, digest=_digest(linked))
    line = msgspec.json.encode(sealed) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise LedgerError(f"a ledger record of {len(line)} bytes is larger than {MAX_LINE_BYTES}")
    return line, sealed


def state_after(record: LedgerRecord) -> ChainState:
    """The state of the chain with ``record`` as its last."""
    return ChainState(record.sequence, record.digest)


def read_chain(lines: Iterable[bytes], state: ChainState = _BEGINNING) -> Iterator[LedgerRecord]:
    """The records of whole lines, each checked; raises :class:`LedgerError` naming the first that does not fit.

    ``state`` is the state of the chain before the first of them.
    """
    for number, line in enumerate(lines, start=state.count + 1):
        record = _decode(line, number)
        if record.previous != state.digest or record.sequence != number:
            raise LedgerError(
                f"ledger line {number} does not follow the line before it",
                "a line was removed, changed, inserted or moved; restore the ledger from a copy",
            )
        state = state_after(record)
        yield record


def verify(lines: Iterable[bytes], *, known: ChainState | None = None) -> ChainState:
    """Check a whole ledger, and that it continues the earlier state ``known``; returns its state."""
    state = ChainState()
    reached = known is None or known == state
    for record in read_chain(lines):
        state = state_after(record)
        reached = reached or state == known
    if not reached:
        raise LedgerError(
            f"the ledger does not contain the state {known}", "its end was cut off, or it is another ledger"
        )
    return state


def _decode(line: bytes, number: int) -> LedgerRecord:
    try:
        record = msgspec.json.decode(line, type=LedgerRecord)
    except DAMAGED_JSON as error:
        raise LedgerError(f"ledger line {number} is damaged: {error}", "restore the ledger from a copy") from error
    # A record has exactly one encoding: if a single byte differs, it was changed.
    whole = msgspec.json.encode(record) + b"\n"
    if whole != line or record.digest != _digest(msgspec.structs.replace(record, digest="")):
        raise LedgerError(f"ledger line {number} was changed", "restore the ledger from a copy")
    return record


def _digest(record: LedgerRecord) -> str:
    return hashlib.sha256(msgspec.json.encode(record)).hexdigest()
