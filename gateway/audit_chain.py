"""The audit log as data: each record carries the SHA-256 of the line before it. No I/O.

A line that was removed, changed, inserted or moved breaks the chain at the next one. Only cutting off
the *end* leaves a valid chain, which is why :class:`ChainState` (count and last digest) can be kept elsewhere
and compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from gateway.errors import AuditLogError

GENESIS = "0" * 64
"""``previous`` of the first record."""
MAX_LINE_BYTES = 16 << 10


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One decision, or ``event="recovered"``: the log was continued after a line that a crash cut short.

    ``time`` is UTC in RFC 3339; ``credential`` is a token's id. There is no secret in a record.
    """

    event: Literal["decision", "recovered"]
    sequence: int
    time: str
    previous: str
    request_id: str = ""
    address: str = ""
    principal: str = ""
    credential: str = ""
    method: str = ""
    path: str = ""
    operation: str = ""
    decision: Literal["", "allow", "deny"] = ""
    status: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ChainState:
    """How far a chain goes: the number of lines, and the digest of the last."""

    count: int = 0
    digest: str = GENESIS


def seal(record: AuditRecord, state: ChainState) -> tuple[bytes, ChainState]:
    """Put ``record`` at the end of the chain; returns its line and the new state."""
    line = msgspec.json.encode(msgspec.structs.replace(record, sequence=state.count + 1, previous=state.digest))
    return line + b"\n", ChainState(state.count + 1, digest_of(line))


def digest_of(line: bytes) -> str:
    """SHA-256 of a line without its newline, in hexadecimal."""
    return hashlib.sha256(line).hexdigest()


def verify(lines: Iterable[bytes]) -> ChainState:
    """Check a whole log; raises :class:`AuditLogError` naming the first line that does not fit.

    A damaged line is accepted in one case only: the next one is a ``recovered`` record that chains over
    exactly its bytes, as the writer leaves it after a crash.
    """
    state = ChainState()
    torn = False
    for number, raw in enumerate(lines, start=1):
        line = raw.removesuffix(b"\n")
        try:
            record = msgspec.json.decode(line, type=AuditRecord)
        except msgspec.MsgspecError as error:
            if torn:
                raise AuditLogError(f"audit log line {number - 1} is damaged") from error
            torn = True
        else:
            if torn and record.event != "recovered":
                raise AuditLogError(f"audit log line {number - 1} is damaged")
            if record.previous != state.digest:
                raise AuditLogError(
                    f"audit log line {number} does not follow the line before it",
                    "a line was removed, changed, inserted or moved",
                )
            if record.sequence != number:
                raise AuditLogError(f"audit log line {number} has sequence number {record.sequence}")
            torn = False
        state = ChainState(number, digest_of(line))
    if torn:
        raise AuditLogError(f"audit log line {state.count} is damaged")
    return state
