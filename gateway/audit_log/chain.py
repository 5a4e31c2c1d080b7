"""The data format of the audit log: a hash chain of records with signed checkpoints. No I/O.

Each record contains the SHA-256 of the line before it. So a line that was removed, changed, inserted or moved breaks
the chain at the next line. A *checkpoint* is a record with a signature over the chain so far. Nobody can rewrite the
chain without the key. If a checkpoint is stored elsewhere, a truncated log is detected as well.
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
"""No writer leaves more records than this without a checkpoint. More mean that checkpoints were removed."""

Sign = Callable[[bytes], bytes]
"""Signs data."""
Check = Callable[[str, bytes, bytes], bool]
"""Returns whether the signature (key id, signature, data) is valid."""

_SIGNATURE = b',"signature":"'
_PREFIX = b"sluice audit checkpoint\n"
"""Prefix of the signed data, so no other signature made with the key is valid as a checkpoint."""


class AccessPosition(msgspec.Struct, frozen=True):
    """How far the proxy's access log was read: the file, and the offset after the last line."""

    file: str
    offset: int


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of the access log in a file beside the log: ``size`` bytes starting at ``offset``, and their digest."""

    file: int
    offset: int
    size: int
    lines: int
    sha256: str

    @property
    def end(self) -> int:
        """The offset after these lines."""
        return self.offset + self.size


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the log. A record contains no secrets.

    ``event`` is one of:

    - ``decision``: of the auth service, written before it answers.
    - ``access``: lines of the proxy's access log were copied; ``traffic`` says where they are stored.
    - ``traffic``: one such line. Readers create these records from an ``access`` record.
    - ``act``: an administrative act, named by ``kind``.
    - ``checkpoint``: signed.
    - ``recovered``: the log was continued after a line that a crash truncated.
    - ``gap``: lines of the access log, or rows about connections of jobs, are missing.
    - ``egress``: a connection of a job to the outside, as seen by the process beside its sandbox.

    ``time`` is when the record was written (UTC, RFC 3339). ``at`` is when the request of the access log, or the
    connection of the job, began. ``credential`` is a public id.
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
    # Fields of some kinds of records only. They are omitted from the others.
    at: str | msgspec.UnsetType = msgspec.UNSET
    kind: str | msgspec.UnsetType = msgspec.UNSET
    detail: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    pass_id: str | msgspec.UnsetType = msgspec.UNSET
    roles: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    groups: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    position: AccessPosition | msgspec.UnsetType = msgspec.UNSET
    traffic: Traffic | msgspec.UnsetType = msgspec.UNSET
    part: int | msgspec.UnsetType = msgspec.UNSET
    """Number of the record among those that one line stands for, starting at 1. Set by readers."""
    key: str | msgspec.UnsetType = msgspec.UNSET
    # Must be the last field: it signs the bytes before it.
    signature: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def number(self) -> str:
        """Line number and part of the record. It is unique."""
        return f"{self.sequence}.{self.part}" if isinstance(self.part, int) else str(self.sequence)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A signed checkpoint that was stored. The chain must have this ``digest`` at line ``sequence``."""

    sequence: int
    digest: str
    time: str
    key: str


def seal(record: AuditRecord, state: ChainState) -> tuple[bytes, ChainState]:
    """Append ``record`` to the chain. Returns its line and the new state."""
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
    """Append a checkpoint to the chain. It signs its own line up to the signature, including ``previous``."""
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
    """Decode a line without its newline; None if it is not a record."""
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


def parse_checkpoint(line: bytes, check: Check) -> Checkpoint:
    """Decode a checkpoint that was stored elsewhere. Raises :class:`AuditLogError` if it is not valid."""
    stripped = line.removesuffix(b"\n")
    record = decode(stripped) if len(line) <= MAX_LINE_BYTES else None
    if record is None or record.event != "checkpoint" or not is_signed(stripped, record, check):
        raise AuditLogError(
            "the kept checkpoint is not one that this log's key has signed", "check whether it was changed"
        )
    return Checkpoint(record.sequence, digest_of(stripped), record.time, str(record.key))


class ChainReader:
    """Verifies a log line by line, starting from a given state of the chain.

    Attributes:
        state: the state of the chain after the last line.
        position: how far the access log was read.
        traffic: the last lines of the access log that were stored.
        unsigned: number of records since the last checkpoint.
        checkpoint: the last checkpoint.
        last_line: the last line, without its newline.
    """

    def __init__(self, check: Check | None, state: ChainState | None = None) -> None:
        """If ``check`` is None, signatures are not verified and checkpoints are not required."""
        self._check = check
        self.state = state or ChainState()
        self.position: AccessPosition | None = None
        self.traffic: Traffic | None = None
        self.unsigned = 0
        self.checkpoint: Checkpoint | None = None
        self.last_line = b""

    def take(self, raw: bytes) -> AuditRecord:
        """The record of the next line, verified. Raises :class:`AuditLogError` with the line number if it is wrong."""
        number = self.state.count + 1
        line = raw.removesuffix(b"\n")
        record = decode(line) if len(raw) <= MAX_LINE_BYTES else None
        if record is None:
            raise AuditLogError(f"audit log line {number} is damaged")
        if record.previous != self.state.digest:
            missing = f"its sequence number is {record.sequence}: lines before it were removed"
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
    """Verify a whole log. Raises :class:`AuditLogError` with the number of the first wrong line."""
    reader = ChainReader(check)
    for raw in lines:
        reader.take(raw)
    return reader.state
