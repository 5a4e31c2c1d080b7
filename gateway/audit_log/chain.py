"""The audit log as data: each record carries the SHA-256 of the line before it, and checkpoints are signed. No I/O.

A line that was removed, changed, inserted or moved breaks the chain at the next one. A *checkpoint* is a record whose
signature says how far the chain went: nobody without the key writes a chain anew, and whoever keeps a checkpoint
elsewhere finds an end that was cut off.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from sluice.core import ChainState
from sluice.gateway.errors import AuditLogError

MAX_LINE_BYTES = 16 << 10
CHECKPOINT_EVERY_RECORDS = 1000
MAX_UNSIGNED_RECORDS = 4 * CHECKPOINT_EVERY_RECORDS
"""No writer leaves more records than this without a checkpoint; more mean that checkpoints were removed."""

Sign = Callable[[bytes], bytes]
"""Makes a signature."""
Check = Callable[[str, bytes, bytes], bool]
"""Whether (key id, signature, data) belong together."""

_SIGNATURE = b',"signature":"'
_PREFIX = b"sluice audit checkpoint\n"
"""Prefix of the data that a checkpoint signs, so that no other signature of the key is valid for one."""


class AccessPosition(msgspec.Struct, frozen=True):
    """How far the proxy's access log has been taken over: the file, and the byte after the last line."""

    file: str
    offset: int


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of the access log, kept in a file beside the log: ``size`` bytes from ``offset`` on, and their digest."""

    file: int
    offset: int
    size: int
    lines: int
    sha256: str

    @property
    def end(self) -> int:
        """The byte after them."""
        return self.offset + self.size


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the log. There is no secret in a record.

    ``event`` is ``decision`` (of the auth service, written before it answers), ``access`` (lines of the proxy's access
    log were taken over; ``traffic`` says where they are kept), ``act`` (an administrative one, named by ``kind``),
    ``checkpoint`` (signed), ``recovered`` (the log was continued after a line that a crash cut short), ``gap``
    (lines of the access log are missing, or rows about connections of jobs), or ``egress`` (a connection of a job to
    the outside, as the process beside its box saw it). Readers make a ``traffic`` record of each line that an
    ``access`` record stands for. ``time`` is UTC in RFC 3339, when the record was written; ``at`` is when a request of
    the access log, or a connection of a job, began. ``credential`` is a public id.
    """

    event: Literal["decision", "access", "traffic", "act", "checkpoint", "recovered", "gap", "egress"]
    sequence: int = 0
    time: str = ""
    previous: str = ""
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
    # What only some records have is left out of the others.
    at: str | msgspec.UnsetType = msgspec.UNSET
    kind: str | msgspec.UnsetType = msgspec.UNSET
    detail: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    pass_id: str | msgspec.UnsetType = msgspec.UNSET
    roles: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    groups: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    position: AccessPosition | msgspec.UnsetType = msgspec.UNSET
    traffic: Traffic | msgspec.UnsetType = msgspec.UNSET
    part: int | msgspec.UnsetType = msgspec.UNSET
    """Readers number the records that one line stands for, from 1 on."""
    key: str | msgspec.UnsetType = msgspec.UNSET
    # The last one: it signs the bytes before it.
    signature: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def number(self) -> str:
        """The line, and which of the records that it stands for; no two records have the same."""
        return f"{self.sequence}.{self.part}" if isinstance(self.part, int) else str(self.sequence)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A signed checkpoint that was kept: its line, whose digest the chain must have at ``sequence``."""

    sequence: int
    digest: str
    time: str
    key: str


def seal(record: AuditRecord, state: ChainState) -> tuple[bytes, ChainState]:
    """Put ``record`` at the end of the chain; returns its line and the new state."""
    line = msgspec.json.encode(msgspec.structs.replace(record, sequence=state.count + 1, previous=state.digest))
    return line + b"\n", ChainState(state.count + 1, digest_of(line))


def seal_checkpoint(
    state: ChainState,
    *,
    time: str,
    key: str,
    sign: Sign,
    position: AccessPosition | None = None,
    traffic: Traffic | None = None,
) -> tuple[bytes, ChainState]:
    """A checkpoint at the end of the chain: it signs all that is before it in its own line, ``previous`` included."""
    record = AuditRecord(
        event="checkpoint",
        time=time,
        key=key,
        position=position or msgspec.UNSET,
        traffic=traffic or msgspec.UNSET,
    )
    unsigned = seal(record, state)[0][: -len(b"}\n")]
    line = unsigned + _SIGNATURE + base64.b64encode(sign(_PREFIX + unsigned)) + b'"}'
    return line + b"\n", ChainState(state.count + 1, digest_of(line))


def digest_of(line: bytes) -> str:
    """SHA-256 of a line without its newline, in hexadecimal."""
    return hashlib.sha256(line).hexdigest()


def decode(line: bytes) -> AuditRecord | None:
    """The record of a line without its newline; None when it is none."""
    try:
        return msgspec.json.decode(line, type=AuditRecord)
    except msgspec.MsgspecError:
        return None


def is_signed(line: bytes, record: AuditRecord, check: Check) -> bool:
    """Whether ``record``, read from ``line``, is a checkpoint with a signature that ``check`` accepts."""
    unsigned, mark, encoded = line.rpartition(_SIGNATURE)
    if not mark or not isinstance(record.key, str) or not encoded.endswith(b'"}'):
        return False
    try:
        signature = base64.b64decode(encoded[:-2], validate=True)
    except binascii.Error:
        return False
    return check(record.key, signature, _PREFIX + unsigned)


def kept_checkpoint(line: bytes, check: Check) -> Checkpoint:
    """A checkpoint that was kept elsewhere; raises :class:`AuditLogError` when it is not a good one."""
    stripped = line.removesuffix(b"\n")
    record = decode(stripped) if len(line) <= MAX_LINE_BYTES else None
    if record is None or record.event != "checkpoint" or not is_signed(stripped, record, check):
        raise AuditLogError("the kept checkpoint is not one that this log's key has signed", "was it changed?")
    return Checkpoint(record.sequence, digest_of(stripped), record.time, str(record.key))


class ChainReader:
    """Checks a log line by line, starting from a given state of the chain.

    Attributes:
        state: how far the chain goes.
        position: how far the access log had been taken over.
        traffic: the last lines of it that were kept.
        unsigned: records since the last checkpoint.
        checkpoint: the last checkpoint.
        last_line: the last line, without its newline.
    """

    def __init__(self, check: Check | None, state: ChainState | None = None) -> None:
        """``check`` None: signatures are not looked at, and checkpoints need not be there."""
        self._check = check
        self.state = state or ChainState()
        self.position: AccessPosition | None = None
        self.traffic: Traffic | None = None
        self.unsigned = 0
        self.checkpoint: Checkpoint | None = None
        self.last_line = b""

    def take(self, raw: bytes) -> AuditRecord:
        """The record of the next line; raises :class:`AuditLogError` naming the line when it does not fit."""
        number = self.state.count + 1
        line = raw.removesuffix(b"\n")
        record = decode(line) if len(raw) <= MAX_LINE_BYTES else None
        if record is None:
            raise AuditLogError(f"audit log line {number} is damaged")
        if record.previous != self.state.digest:
            missing = f"it calls itself line {record.sequence}: lines before it were removed"
            raise AuditLogError(
                f"audit log line {number} does not follow the line before it",
                missing
                if record.sequence > number
                else "a line was removed, changed, inserted or moved, here or just before",
            )
        if record.sequence != number:
            raise AuditLogError(f"audit log line {number} has sequence number {record.sequence}")
        self.state = ChainState(number, digest_of(line))
        self.last_line = line
        self._note(line, record, number)
        return record

    def _note(self, line: bytes, record: AuditRecord, number: int) -> None:
        if isinstance(record.position, AccessPosition):
            self.position = record.position
        if isinstance(record.traffic, Traffic):
            self.traffic = record.traffic
        if record.event != "checkpoint":
            self.unsigned += 1
            if self._check is not None and self.unsigned > MAX_UNSIGNED_RECORDS:
                raise AuditLogError(
                    f"audit log line {number} is more than {MAX_UNSIGNED_RECORDS} lines after the last checkpoint",
                    "checkpoints were removed",
                )
            return
        if self._check is not None and not is_signed(line, record, self._check):
            raise AuditLogError(
                f"audit log line {number} is a checkpoint that this log's key has not signed",
                "it is forged, or the log is of another home: compare key ids",
            )
        self.unsigned = 0
        self.checkpoint = Checkpoint(number, self.state.digest, record.time, str(record.key))


def verify(lines: Iterable[bytes], check: Check | None = None) -> ChainState:
    """Check a whole log; raises :class:`AuditLogError` naming the first line that does not fit."""
    reader = ChainReader(check)
    for raw in lines:
        reader.take(raw)
    return reader.state
