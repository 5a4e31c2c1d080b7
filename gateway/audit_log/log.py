"""Writes the audit log. Several processes append to the same log, each before it answers its caller.

The writers are the auth service and every `sluice` command that performs an act worth recording. A writer locks the
log's directory, reads what others have written since, and continues the chain. When :meth:`AuditLog.append` returns,
the record is in the kernel, so killing the process loses nothing. :meth:`AuditLog.maintain` flushes it to disk and
stores the last signed checkpoint in a file.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.core import (
    ChainState,
    Clock,
    Disk,
    Home,
    NotAppended,
    append_whole,
    make_private_directory,
    rfc3339,
    sync_directory,
    utc_now,
)
from sluice.gateway.audit_log.chain import (
    CHECKPOINT_EVERY_RECORDS,
    MAX_LINE_BYTES,
    AccessPosition,
    AuditRecord,
    ChainReader,
    Traffic,
    decode,
    digest_of,
    parse_checkpoint,
    seal_checkpoint,
)
from sluice.gateway.audit_log.checkpoint_file import CheckpointFile, last_checkpoint
from sluice.gateway.audit_log.keys import KeyInToken, SigningKey, open_key
from sluice.gateway.audit_log.secret_removal import detail_without_secrets, seal_without_secrets
from sluice.gateway.audit_log.segments import (
    CURRENT,
    LOCK,
    MAX_SEGMENT_BYTES,
    Segment,
    compress,
    open_file,
    segments,
    take_lock,
)
from sluice.gateway.audit_log.traffic import TrafficWriter
from sluice.gateway.errors import AuditLogError

_LOG = logging.getLogger(__name__)

MAX_BATCH_RECORDS = 500
"""Maximum number of records per write. It also limits by how much a checkpoint can be late."""
_READ_BACK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class AuditLogLimits:
    """When to write a checkpoint, and when to close a segment."""

    checkpoint_records: int = CHECKPOINT_EVERY_RECORDS
    checkpoint_age: dt.timedelta = dt.timedelta(seconds=10)
    segment_bytes: int = MAX_SEGMENT_BYTES
    segment_age: dt.timedelta = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SignedRecord:
    """A record and the checkpoint right after it, both as lines of the log without the newline."""

    line: bytes
    checkpoint: bytes


def audit_directory(home: Home) -> Path:
    """The directory of the audit log of ``home``'s cluster."""
    return home.gateway / "audit"


def audit_file(home: Home) -> Path:
    """The segment that is currently written."""
    return audit_directory(home) / CURRENT


class RecordTooLarge(AuditLogError):
    """The record is too large to be written."""


class AuditLog:
    """The end of an audit log, to which records are appended. Safe to use from several threads and processes.

    Raises:
        AuditLogError: the log cannot be continued: its end was changed or removed, its key is missing, or it cannot be
            written.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock = utc_now,
        limits: AuditLogLimits | None = None,
        disk: Disk | None = None,
        key_in: KeyInToken | None = None,
    ) -> None:
        """Open or create the log whose current segment is ``path``, and read the state of its chain.

        ``key_in``: the token in which to generate the key of a new log; by default the key is in a file.
        """
        self._path = path
        self._name = os.fspath(path)
        self._directory = make_private_directory(path.parent)
        self._clock = clock
        self._limits = limits or AuditLogLimits()
        self._disk = disk or Disk()
        self._key_in = key_in
        self._traffic = TrafficWriter(self._directory, self._disk)
        self._mutex = threading.Lock()
        self._descriptor = -1
        self._key: SigningKey | None = None
        self._reader = ChainReader(None)
        self._size = 0
        self._inode = 0
        self._segment_first = 1
        self._segment_since = self._clock()
        self._checkpoint_at = self._clock()
        self._checkpoint_line = b""
        self._settled = (0, 0)
        self._seen = 0
        self._checkpoint_file = CheckpointFile(self._directory)
        self._lock_descriptor = open_file(path.with_name(LOCK), os.O_RDWR | os.O_CREAT)
        try:
            with self._writing():
                pass
        except BaseException:
            self._release()
            raise

    @property
    def state(self) -> ChainState:
        """The last state of the chain that this writer has read or written."""
        return self._reader.state

    def position(self) -> AccessPosition | None:
        """How far any process has read the access log into this log."""
        with self._writing():
            return self._reader.position

    def append(self, record: AuditRecord) -> None:
        """Append ``record``. This method sets ``time``, ``sequence`` and ``previous``.

        Raises :class:`AuditLogError` if the record cannot be written. The caller must then refuse the request.
        """
        self.append_all((record,))

    def append_all(self, records: Sequence[AuditRecord], *, after: AccessPosition | None = None) -> bool:
        """Like :meth:`append`, for up to :data:`MAX_BATCH_RECORDS` records at once.

        With ``after`` the records are only written if that is the current position in the access log. Returns whether
        they were written. So several readers of one access log never write a line twice.
        """
        if len(records) > MAX_BATCH_RECORDS:
            raise AuditLogError(f"{len(records)} records at once are more than {MAX_BATCH_RECORDS}")
        with self._writing():
            if after is not None and after != (self._reader.position or AccessPosition("", 0)):
                return False
            now = self._clock()
            self._write(records, now, checkpoint=self._is_checkpoint_due(len(records), now))
            self._rotate_if_due(now)
        return True

    def append_access_lines(self, lines: bytes, *, after: AccessPosition, position: AccessPosition) -> bool:
        """Store ``lines`` of the access log, which advance its position from ``after`` to ``position``.

        The lines go into a file beside the log, and their digest into one record of the chain. Returns whether they
        were written; False if another process has already copied them.
        """
        digest = digest_of(lines)
        with self._writing():
            if after != (self._reader.position or AccessPosition("", 0)):
                return False
            now = self._clock()
            kept = self._traffic.append(lines, digest, after=self._reader.traffic)
            record = AuditRecord(event="access", position=position, traffic=kept)
            self._write((record,), now, checkpoint=self._is_checkpoint_due(1, now))
            self._rotate_if_due(now)
        return True

    def event(self, kind: str, principal: str, detail: Mapping[str, object] | str = "") -> SignedRecord:
        """Record and sign an administrative act, such as ``token.created``. Returns its line and the checkpoint.

        Args:
            kind: the act, as ``subject.verb``.
            principal: who performed it. Commands use ``local:`` and the operating system's user name.
            detail: public facts: names, ids, counts. Suspected secrets are removed, and long texts are truncated.
        """
        record = AuditRecord(event="act", kind=kind, principal=principal, detail=detail_without_secrets(detail))
        with self._writing():
            now = self._clock()
            line, checkpoint = self._write((record,), now, checkpoint=True)
            self._rotate_if_due(now)
        return SignedRecord(line.removesuffix(b"\n"), checkpoint.removesuffix(b"\n"))

    def maintain(self) -> None:
        """Sign what is unsigned for too long, flush to disk, store the checkpoint, and compress closed segments.

        It waits for the disk. Call it about once per second in a thread beside the event loop.
        """
        self._settle(force=False)
        for segment in segments(self._directory):
            compress(segment.path)
        self._traffic.compress(self._reader.traffic)

    def close(self) -> None:
        """Sign the remaining records, flush to disk, and close the files."""
        try:
            self._settle(force=True)
        finally:
            self._release()

    # --- one writer at a time ------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock. First read what others have written, and repair what a crash left behind."""
        with self._mutex:
            if self._lock_descriptor < 0:
                raise AuditLogError(f"{self._path} was closed")
            take_lock(self._lock_descriptor, fcntl.LOCK_EX, self._directory)
            try:
                self._catch_up()
                yield
                self._seen = max(self._seen, self._reader.state.count)
            finally:
                fcntl.flock(self._lock_descriptor, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        try:
            info = os.stat(self._name)  # noqa: PTH116  runs for every record, and pathlib is slower
        except FileNotFoundError:
            info = None
        except OSError as error:
            raise AuditLogError(f"cannot read {self._path}: {error.strerror}") from error
        if info is None or self._descriptor < 0 or info.st_ino != self._inode:
            self._find_end()
        elif info.st_size < self._size:
            raise AuditLogError(f"{self._path} was cut short while it was written", "see `sluice audit-log verify`")
        elif info.st_size > self._size:
            self._take(os.pread(self._descriptor, info.st_size - self._size, self._size))

    def _find_end(self) -> None:
        """Find the state of the chain by reading back to the last checkpoint, which covers the earlier records."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        earlier = segments(self._directory)
        self._descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        info = os.fstat(self._descriptor)
        # Set again only when all of this has succeeded, so a retry starts from scratch.
        self._inode, self._size = 0, 0
        known = self._checkpoint_file.exists()
        first_use = not earlier and not known and info.st_size == 0
        self._key = open_key(self._directory, first_use=first_use, in_token=self._key_in)
        self._reader = ChainReader(self._key.public.checker())
        if earlier:
            self._continue_after(earlier[-1])
        self._segment_first = self._reader.state.count + 1
        self._segment_since = self._clock()
        if info.st_size:
            self._read_back(info.st_size)
        self._require_checkpoint()
        if self._reader.state.count == 0:
            self._write((), self._clock(), checkpoint=True)
        self._inode = info.st_ino

    def _continue_after(self, segment: Segment) -> None:
        """Continue after a closed segment, which ends with a checkpoint."""
        self._jump_to(segment.last_line())
        if self._reader.state.count != segment.last:
            raise AuditLogError(
                f"audit log segment {segment.path.name} ends with line {self._reader.state.count}",
                "see `sluice audit-log verify`",
            )

    def _jump_to(self, raw: bytes) -> None:
        """Continue after a checkpoint. Its signature covers everything before it."""
        assert self._key is not None  # noqa: S101  set by _find_end
        kept = parse_checkpoint(raw, self._key.public.checker())
        record = msgspec.json.decode(raw, type=AuditRecord)
        self._reader = ChainReader(self._key.public.checker(), ChainState(kept.sequence - 1, record.previous))
        self._reader.take(raw)
        self._checkpoint_line, self._checkpoint_at = raw, dt.datetime.fromisoformat(kept.time)

    def _read_back(self, size: int) -> None:
        """Read the current segment from its last checkpoint, or from its beginning if it has none."""
        length, from_start = _READ_BACK_BYTES, False
        while True:
            start = max(0, size - length)
            data = os.pread(self._descriptor, size - start, start)
            from_start = start == 0
            begin = 0 if from_start else data.find(b"\n") + 1
            place = last_checkpoint(data[begin:])
            if place >= 0 or from_start:
                break
            length *= 4
        first = decode(os.pread(self._descriptor, MAX_LINE_BYTES, 0).partition(b"\n")[0])
        if first is not None:
            self._segment_since = dt.datetime.fromisoformat(first.time)
        if place >= 0:
            rest = data[begin + place :]
            line, _, _ = rest.partition(b"\n")
            self._jump_to(line + b"\n")
            self._size = start + begin + place + len(line) + 1
            self._take(rest[len(line) + 1 :])
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Read lines at the end. Remove a line that a crash truncated, and record that."""
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines(keepends=True):
            record = self._reader.take(line)
            if record.event == "checkpoint":
                self._checkpoint_line, self._checkpoint_at = line, dt.datetime.fromisoformat(record.time)
        self._size += whole
        if torn := data[whole:]:
            self._truncate(self._size)
            detail = {"dropped_bytes": str(len(torn)), "dropped_sha256": digest_of(torn)}
            record = AuditRecord(event="recovered", reason="the line after was cut short", detail=detail)
            self._write((record,), self._clock(), checkpoint=True)

    def _require_checkpoint(self) -> None:
        """Check that the log reaches at least the last line that this writer saw, and the stored checkpoint."""
        assert self._key is not None  # noqa: S101  as above
        if self._reader.state.count < self._seen:
            raise AuditLogError(
                f"the audit log ends at line {self._reader.state.count}, and had {self._seen} lines before",
                "its end was removed while it was written; see `sluice audit-log verify`",
            )
        kept = self._checkpoint_file.read(self._key.public.checker())
        if kept is None:
            return
        if kept.sequence > self._reader.state.count:
            raise AuditLogError(
                f"the audit log ends at line {self._reader.state.count}, but line {kept.sequence} was signed",
                f"its end was removed; see `sluice audit-log verify`, then move {self._directory} elsewhere "
                "so that a new log begins",
            )

    # --- writing -------------------------------------------------------------------------------------

    def _is_checkpoint_due(self, adding: int, now: dt.datetime) -> bool:
        unsigned = self._reader.unsigned + adding
        return unsigned >= self._limits.checkpoint_records or self._is_checkpoint_late(now)

    def _is_checkpoint_late(self, now: dt.datetime) -> bool:
        """Whether the last checkpoint is too old, or from the future: then the clock was set back."""
        return not dt.timedelta() <= now - self._checkpoint_at < self._limits.checkpoint_age

    def _write(self, records: Sequence[AuditRecord], now: dt.datetime, *, checkpoint: bool) -> list[bytes]:
        """Seal ``records`` and write them in one piece, all or none. Returns the lines."""
        assert self._key is not None  # noqa: S101  as above
        stamp, state, lines = rfc3339(now), self._reader.state, []
        position, traffic, unsigned = self._reader.position, self._reader.traffic, self._reader.unsigned
        for record in records:
            line, state = seal_without_secrets(msgspec.structs.replace(record, time=stamp), state)
            if len(line) > MAX_LINE_BYTES:
                raise RecordTooLarge(f"an audit record of {len(line)} bytes is larger than {MAX_LINE_BYTES}")
            lines.append(line)
            unsigned += 1
            position = record.position if isinstance(record.position, AccessPosition) else position
            traffic = record.traffic if isinstance(record.traffic, Traffic) else traffic
        if checkpoint:
            line, state = seal_checkpoint(
                state, time=stamp, key=self._key.id, sign=self._key.sign, position=position, traffic=traffic
            )
            lines.append(line)
            unsigned = 0
        data = b"".join(lines)
        self._put(data)
        self._size += len(data)
        self._reader.state, self._reader.position, self._reader.traffic = state, position, traffic
        self._reader.unsigned = unsigned
        if checkpoint:
            self._checkpoint_line, self._checkpoint_at = lines[-1], now
        return lines

    def _put(self, data: bytes) -> None:
        try:
            append_whole(self._disk, self._descriptor, data, end=self._size)
        except NotAppended as error:
            raise AuditLogError(f"cannot write {self._path}: {error}", "check the space on the disk") from error

    def _truncate(self, size: int) -> None:
        try:
            self._disk.truncate(self._descriptor, size)
        except OSError as error:
            raise AuditLogError(f"cannot repair {self._path}: {error.strerror}") from error

    def _rotate_if_due(self, now: dt.datetime) -> None:
        full = self._size >= self._limits.segment_bytes
        old = now - self._segment_since >= self._limits.segment_age
        if not full and not old:
            return
        # The records are already written, so an error such as a full disk only postpones the rotation.
        try:
            if self._reader.unsigned:
                self._write((), now, checkpoint=True)
            closed = Segment.named(self._directory, self._segment_first, self._reader.state.count)
            self._disk.rename(self._path, closed.path)
        except (AuditLogError, OSError) as error:
            _LOG.warning("cannot close the audit log's segment, will retry: %s", error)
            return
        self._find_end()

    # --- beside the writing --------------------------------------------------------------------------

    def _settle(self, *, force: bool) -> None:
        with self._writing():
            now = self._clock()
            if self._reader.unsigned and (force or self._is_checkpoint_late(now)):
                self._write((), now, checkpoint=True)
            if (self._inode, self._size) == self._settled:
                return
            line, descriptor, settled = self._checkpoint_line, os.dup(self._descriptor), (self._inode, self._size)
            traffic = self._reader.traffic
        try:
            # Without the lock, so no request waits for the disk. Records first, then the checkpoint that covers them.
            self._traffic.sync(traffic)
            self._sync_closed()
            self._disk.sync(descriptor)
            sync_directory(self._directory)
        except OSError as error:
            raise AuditLogError(f"cannot flush {self._path}: {error.strerror}", "check the disk") from error
        finally:
            os.close(descriptor)
        if line:
            self._checkpoint_file.keep(line)
        self._settled = settled

    def _sync_closed(self) -> None:
        """Flush segments that are closed but not compressed yet. Compressed ones are already on disk."""
        for segment in segments(self._directory):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self._disk.sync(descriptor)
                finally:
                    os.close(descriptor)

    def _release(self) -> None:
        for descriptor in (self._descriptor, self._lock_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._lock_descriptor = -1


def record_act(home: Home, kind: str, principal: str, detail: Mapping[str, object] | str = "") -> SignedRecord:
    """Record one administrative act in ``home``'s audit log, for a process that writes no other records."""
    with contextlib.closing(AuditLog(audit_file(home))) as log:
        return log.event(kind, principal, detail)
