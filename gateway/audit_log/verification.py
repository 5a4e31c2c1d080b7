"""Verifies a whole audit log, even while it is written: chain, signatures, segments and end."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sluice.core import ChainState, read_bounded
from sluice.gateway.audit_log.access_lines import records_of
from sluice.gateway.audit_log.chain import (
    MAX_LINE_BYTES,
    AuditRecord,
    ChainReader,
    Check,
    Checkpoint,
    decode,
    parse_checkpoint,
)
from sluice.gateway.audit_log.keys import VERIFICATION_KEY, VerificationKey
from sluice.gateway.audit_log.segments import CHECKPOINT, CURRENT, LOCK, MAX_READ_BYTES, Segment, segments, take_lock
from sluice.gateway.audit_log.traffic import TrafficCheck, TrafficReader
from sluice.gateway.errors import AuditLogError

PROGRESS_RECORDS = 1000
"""Number of records between two progress reports."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification.

    Attributes:
        state: the state of the chain at the end of the verified log.
        unsigned: number of records at the end that no checkpoint covers yet.
        checkpoint: the last checkpoint.
        key: id of the signing key.
        segments: number of closed segments.
        requests: number of lines of the access log that the log refers to; all are present.
        cut_short: bytes of an incomplete last line (still being written, or left by a crash).
    """

    state: ChainState
    unsigned: int
    checkpoint: Checkpoint | None
    key: str
    segments: int
    requests: int
    cut_short: int


@dataclass(slots=True)
class _Snapshot:
    """A snapshot of a log's files. Later writes are not part of it."""

    closed: list[Segment]
    current: int
    size: int
    kept: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Callbacks:
    """Passes records to the callbacks during verification."""

    visit: Callable[[AuditRecord], None] | None
    progress: Callable[[int, int], None] | None
    total: int

    def take(self, record: AuditRecord, lines: bytes) -> None:
        """Pass on the next record, and the lines of the access log that it refers to."""
        if self.progress is not None and (record.sequence % PROGRESS_RECORDS == 0 or record.sequence == self.total):
            self.progress(record.sequence, self.total)
        if self.visit is None:
            return
        if record.event == "access":
            for each in records_of(lines, record):
                self.visit(each)
        else:
            self.visit(record)


def verify_log(
    directory: Path,
    *,
    key: Path | None = None,
    key_id: str = "",
    checkpoints: Sequence[Path | bytes] = (),
    visit: Callable[[AuditRecord], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Verify the log in ``directory``.

    Args:
        directory: the directory of the log or of a copy.
        key: the public key to trust; default: the one beside the log.
        key_id: if given, the key must have this id.
        checkpoints: checkpoints stored elsewhere, or files with them. Each must be a line of this log, as must the
            checkpoint beside the log.
        visit: called with each record in order. An ``access`` record is replaced by the records of its lines. Do not
            rely on these records until this function has returned.
        progress: called regularly with the number of lines read and the total number.

    Raises:
        AuditLogError: the message names the first wrong line, segment or checkpoint.
    """
    trusted = VerificationKey.read(key or directory / VERIFICATION_KEY)
    if key_id and trusted.id != key_id.lower():
        raise AuditLogError(f"the key has id {trusted.id}, not {key_id[:64]}", "another key signed this log")
    check = trusted.checker()
    with _take_snapshot(directory) as snapshot, contextlib.closing(TrafficCheck(directory)) as traffic:
        snapshot.kept += [
            each if isinstance(each, bytes) else read_bounded(each, MAX_LINE_BYTES) for each in checkpoints
        ]
        awaited = {one.sequence: one for one in _kept(snapshot.kept, check)}
        reader = ChainReader(check)
        callbacks = _Callbacks(
            visit, progress, _last_sequence(snapshot) or (snapshot.closed[-1].last if snapshot.closed else 0)
        )
        for segment in snapshot.closed:
            _check_segment(segment, reader, awaited, traffic, callbacks)
        cut_short = 0
        for raw in _current_lines(snapshot):
            if not raw.endswith(b"\n"):
                cut_short = len(raw)
                break
            _take(raw, reader, awaited, traffic, callbacks)
    if awaited:
        farthest = max(awaited)
        raise AuditLogError(
            f"the audit log ends at line {reader.state.count}, but line {farthest} was signed at "
            f"{awaited[farthest].time}",
            "its end was removed",
        )
    if reader.state.count and reader.checkpoint is None:
        raise AuditLogError("the audit log has no checkpoint", "checkpoints were removed")
    return Verified(
        reader.state, reader.unsigned, reader.checkpoint, trusted.id, len(snapshot.closed), traffic.lines, cut_short
    )


def read_records(directory: Path, *, last: int | None = None) -> Iterator[AuditRecord]:
    """The records of a log from the beginning. Each is checked against the chain, but signatures are not verified.

    An ``access`` record is replaced by the records of its lines. With ``last``, at least that many records from the
    end, without reading earlier segments.
    """
    with _take_snapshot(directory) as snapshot, contextlib.closing(TrafficReader(directory)) as traffic:
        closed = snapshot.closed
        if last is not None:
            end = _last_sequence(snapshot) or (closed[-1].last if closed else 0)
            closed = [segment for segment in closed if segment.last > end - last]
        lines = itertools.chain(*(segment.lines() for segment in closed), _current_lines(snapshot))
        whole = (raw for raw in lines if raw.endswith(b"\n"))
        reader: ChainReader | None = None
        for raw in whole:
            if reader is None:
                reader = ChainReader(None, _state_before(raw) if len(closed) < len(snapshot.closed) else None)
            yield from expand_access_record(reader.take(raw), traffic)


def expand_access_record(record: AuditRecord, traffic: TrafficReader) -> Iterator[AuditRecord]:
    """``record`` itself, or the records of the access log lines that it stands for."""
    if record.event == "access":
        yield from records_of(traffic.read(record), record)
    else:
        yield record


def _state_before(raw: bytes) -> ChainState:
    """The state of the chain before the first line, taken from that line. Later lines are checked from there."""
    record = decode(raw.removesuffix(b"\n")) if len(raw) <= MAX_LINE_BYTES else None
    if record is None:
        raise AuditLogError("the first line of an audit log segment is damaged")
    return ChainState(record.sequence - 1, record.previous)


def _last_sequence(snapshot: _Snapshot) -> int:
    """Sequence number of the last complete line in the current segment; 0 if there is none."""
    if snapshot.current < 0:
        return 0
    start = max(0, snapshot.size - 2 * MAX_LINE_BYTES)
    data = os.pread(snapshot.current, snapshot.size - start, start)
    record = decode(data[: data.rfind(b"\n") + 1].rstrip(b"\n").rpartition(b"\n")[2])
    return 0 if record is None else record.sequence


@contextlib.contextmanager
def _take_snapshot(directory: Path) -> Iterator[_Snapshot]:
    """A snapshot of the files between two writes. Takes the writers' lock if it exists and may be opened."""
    lock = -1
    current = -1
    try:
        with contextlib.suppress(OSError):
            lock = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        if lock >= 0:
            take_lock(lock, fcntl.LOCK_SH, directory)
        try:
            closed = segments(directory)
            with contextlib.suppress(FileNotFoundError):
                current = os.open(directory / CURRENT, os.O_RDONLY | os.O_CLOEXEC)
            snapshot = _Snapshot(closed, current, os.fstat(current).st_size if current >= 0 else 0)
            with contextlib.suppress(FileNotFoundError):
                snapshot.kept.append((directory / CHECKPOINT).read_bytes()[: MAX_LINE_BYTES + 1])
        except OSError as error:
            raise AuditLogError(f"cannot read the audit log in {directory}: {error.strerror}") from error
        finally:
            if lock >= 0:
                os.close(lock)
        if current < 0 and not closed and not snapshot.kept:
            raise AuditLogError(f"there is no audit log in {directory}", "check that an auth service has run here")
        yield snapshot
    finally:
        if current >= 0:
            os.close(current)


def _kept(lines: Sequence[bytes], check: Check) -> Iterator[Checkpoint]:
    for line in lines:
        yield parse_checkpoint(line, check)


def _check_segment(
    segment: Segment, reader: ChainReader, awaited: dict[int, Checkpoint], traffic: TrafficCheck, callbacks: _Callbacks
) -> None:
    expected = reader.state.count + 1
    if segment.first > expected:
        raise AuditLogError(
            f"audit log lines {expected} to {segment.first - 1} are missing", "a whole segment was removed"
        )
    if segment.first < expected:
        raise AuditLogError(f"audit log segment {segment.path.name} begins before line {expected}", "it was added")
    for raw in segment.lines():
        _take(raw, reader, awaited, traffic, callbacks)
    if reader.state.count != segment.last:
        raise AuditLogError(
            f"audit log segment {segment.path.name} ends with line {reader.state.count}", "its end was removed"
        )
    if reader.unsigned:
        raise AuditLogError(f"audit log segment {segment.path.name} does not end with a checkpoint")


def _take(
    raw: bytes, reader: ChainReader, awaited: dict[int, Checkpoint], traffic: TrafficCheck, callbacks: _Callbacks
) -> None:
    record = reader.take(raw)
    callbacks.take(record, traffic.take(record))
    kept = awaited.pop(reader.state.count, None)
    if kept is not None and kept.digest != reader.state.digest:
        raise AuditLogError(
            f"audit log line {kept.sequence} is not the checkpoint that was kept", "the log was rewritten"
        )


def _current_lines(snapshot: _Snapshot) -> Iterator[bytes]:
    if snapshot.current < 0:
        return
    if snapshot.size > MAX_READ_BYTES:
        raise AuditLogError(f"the audit log's current segment is larger than {MAX_READ_BYTES} bytes")
    left = snapshot.size
    with os.fdopen(os.dup(snapshot.current), "rb") as file:
        while left > 0 and (line := file.readline(min(left, MAX_LINE_BYTES + 1))):
            left -= len(line)
            yield line
