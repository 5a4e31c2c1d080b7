"""Verifies an audit log as a whole: chain, signatures, segments and end, also while it is written."""

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
    kept_checkpoint,
)
from sluice.gateway.audit_log.keys import VERIFICATION_KEY, VerificationKey
from sluice.gateway.audit_log.segments import CHECKPOINT, CURRENT, LOCK, MAX_READ_BYTES, Segment, segments, take_lock
from sluice.gateway.audit_log.traffic import TrafficCheck, TrafficReader
from sluice.gateway.errors import AuditLogError

PROGRESS_RECORDS = 1000
"""Between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification.

    Attributes:
        state: how far the chain goes; all of it holds.
        unsigned: records at the end that no checkpoint vouches for yet.
        checkpoint: the last checkpoint.
        key: id of the key that signed.
        segments: closed segments.
        requests: lines of the access log that the log stands for; all are there.
        cut_short: bytes of a line that was not complete when this looked (being written, or left by a crash).
    """

    state: ChainState
    unsigned: int
    checkpoint: Checkpoint | None
    key: str
    segments: int
    requests: int
    cut_short: int


@dataclass(slots=True)
class _Look:
    """One look at a log's files: what is written later is not part of it."""

    closed: list[Segment]
    current: int
    size: int
    kept: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _PassOn:
    """Who is told of records while they are verified."""

    visit: Callable[[AuditRecord], None] | None
    progress: Callable[[int, int], None] | None
    total: int

    def take(self, record: AuditRecord, lines: bytes) -> None:
        """The next record, and the lines of the access log that it stands for."""
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
    """Check the log in ``directory``.

    Args:
        directory: where the log is, or a copy of it.
        key: the public key to trust; default: the one beside the log.
        key_id: when given, the key must have this id.
        checkpoints: checkpoints kept elsewhere, or files with them; each must be a line of this log, besides the one
            beside it.
        visit: called with each record in its order, and with those of the lines of the access log instead of the
            records that stand for them. What it was given counts only once this function has returned.
        progress: called now and then with how many lines are read, and how many there are.

    Raises:
        AuditLogError: naming the first line, segment or checkpoint that does not fit.
    """
    trusted = VerificationKey.read(key or directory / VERIFICATION_KEY)
    if key_id and trusted.id != key_id.lower():
        raise AuditLogError(f"the key has id {trusted.id}, not {key_id[:64]}", "another key signed this log")
    check = trusted.checker()
    with _look(directory) as look, contextlib.closing(TrafficCheck(directory)) as traffic:
        look.kept += [each if isinstance(each, bytes) else read_bounded(each, MAX_LINE_BYTES) for each in checkpoints]
        awaited = {one.sequence: one for one in _kept(look.kept, check)}
        reader = ChainReader(check)
        pass_on = _PassOn(visit, progress, _last_sequence(look) or (look.closed[-1].last if look.closed else 0))
        for segment in look.closed:
            _check_segment(segment, reader, awaited, traffic, pass_on)
        cut_short = 0
        for raw in _current_lines(look):
            if not raw.endswith(b"\n"):
                cut_short = len(raw)
                break
            _take(raw, reader, awaited, traffic, pass_on)
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
        reader.state, reader.unsigned, reader.checkpoint, trusted.id, len(look.closed), traffic.lines, cut_short
    )


def read_records(directory: Path, *, last: int | None = None) -> Iterator[AuditRecord]:
    """The records of a log from its beginning, each checked against the chain but for signatures.

    Lines of the access log are records of their own, instead of those that stand for them. With ``last`` at least so
    many of the end, without reading what is in earlier segments.
    """
    with _look(directory) as look, contextlib.closing(TrafficReader(directory)) as traffic:
        closed = look.closed
        if last is not None:
            end = _last_sequence(look) or (closed[-1].last if closed else 0)
            closed = [segment for segment in closed if segment.last > end - last]
        lines = itertools.chain(*(segment.lines() for segment in closed), _current_lines(look))
        whole = (raw for raw in lines if raw.endswith(b"\n"))
        reader: ChainReader | None = None
        for raw in whole:
            if reader is None:
                reader = ChainReader(None, _state_before(raw) if len(closed) < len(look.closed) else None)
            yield from told(reader.take(raw), traffic)


def told(record: AuditRecord, traffic: TrafficReader) -> Iterator[AuditRecord]:
    """``record``, or those of the lines that it stands for."""
    if record.event == "access":
        yield from records_of(traffic.read(record), record)
    else:
        yield record


def _state_before(raw: bytes) -> ChainState:
    """The chain state that the first line states; later lines are checked from there."""
    record = decode(raw.removesuffix(b"\n")) if len(raw) <= MAX_LINE_BYTES else None
    if record is None:
        raise AuditLogError("the first line of an audit log segment is damaged")
    return ChainState(record.sequence - 1, record.previous)


def _last_sequence(look: _Look) -> int:
    """Of the last whole line in the current segment; 0 when there is none."""
    if look.current < 0:
        return 0
    start = max(0, look.size - 2 * MAX_LINE_BYTES)
    data = os.pread(look.current, look.size - start, start)
    record = decode(data[: data.rfind(b"\n") + 1].rstrip(b"\n").rpartition(b"\n")[2])
    return 0 if record is None else record.sequence


@contextlib.contextmanager
def _look(directory: Path) -> Iterator[_Look]:
    """The files at one moment between two writes: with the writers' lock, where there is one that may be taken."""
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
            look = _Look(closed, current, os.fstat(current).st_size if current >= 0 else 0)
            with contextlib.suppress(FileNotFoundError):
                look.kept.append((directory / CHECKPOINT).read_bytes()[: MAX_LINE_BYTES + 1])
        except OSError as error:
            raise AuditLogError(f"cannot read the audit log in {directory}: {error.strerror}") from error
        finally:
            if lock >= 0:
                os.close(lock)
        if current < 0 and not closed and not look.kept:
            raise AuditLogError(f"there is no audit log in {directory}", "has an auth service ever run here?")
        yield look
    finally:
        if current >= 0:
            os.close(current)


def _kept(lines: Sequence[bytes], check: Check) -> Iterator[Checkpoint]:
    for line in lines:
        yield kept_checkpoint(line, check)


def _check_segment(
    segment: Segment, reader: ChainReader, awaited: dict[int, Checkpoint], traffic: TrafficCheck, pass_on: _PassOn
) -> None:
    expected = reader.state.count + 1
    if segment.first > expected:
        raise AuditLogError(
            f"audit log lines {expected} to {segment.first - 1} are missing", "a whole segment was removed"
        )
    if segment.first < expected:
        raise AuditLogError(f"audit log segment {segment.path.name} begins before line {expected}", "it was added")
    for raw in segment.lines():
        _take(raw, reader, awaited, traffic, pass_on)
    if reader.state.count != segment.last:
        raise AuditLogError(
            f"audit log segment {segment.path.name} ends with line {reader.state.count}", "its end was removed"
        )
    if reader.unsigned:
        raise AuditLogError(f"audit log segment {segment.path.name} does not end with a checkpoint")


def _take(
    raw: bytes, reader: ChainReader, awaited: dict[int, Checkpoint], traffic: TrafficCheck, pass_on: _PassOn
) -> None:
    record = reader.take(raw)
    pass_on.take(record, traffic.take(record))
    kept = awaited.pop(reader.state.count, None)
    if kept is not None and kept.digest != reader.state.digest:
        raise AuditLogError(
            f"audit log line {kept.sequence} is not the checkpoint that was kept", "the log was rewritten"
        )


def _current_lines(look: _Look) -> Iterator[bytes]:
    if look.current < 0:
        return
    if look.size > MAX_READ_BYTES:
        raise AuditLogError(f"the audit log's current segment is larger than {MAX_READ_BYTES} bytes")
    left = look.size
    with os.fdopen(os.dup(look.current), "rb") as file:
        while left > 0 and (line := file.readline(min(left, MAX_LINE_BYTES + 1))):
            left -= len(line)
            yield line
