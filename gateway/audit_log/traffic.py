"""The proxy's access log as the audit log keeps it: its lines in files of their own, their digests in the chain.

A busy proxy writes thousands of lines a second. They are kept as they came, in ``traffic-NUMBER.jsonl`` beside the
log's segments, and one record of the chain vouches for all that were read at once: what a line costs is reading,
hashing and writing its bytes. Only who reads the log looks into them.

The bytes are in the kernel before their record is, so a record always has its bytes. What a crash leaves after the last
record's bytes is cut off by the next writer, which reads the same lines from the access log again.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zlib
from pathlib import Path
from typing import IO

from sluice.core import SECRET_MODE, Disk
from sluice.gateway.audit_log.chain import AuditRecord, Traffic, digest_of
from sluice.gateway.audit_log.segments import MAX_READ_BYTES, MAX_SEGMENT_BYTES, compress
from sluice.gateway.errors import AuditLogError

MAX_TRAFFIC_BYTES = 2 << 20
"""Largest number of bytes that one record refers to."""

_NAME = re.compile(r"traffic-(\d{9,12})\.jsonl(?:\.gz)?")


def traffic_file(directory: Path, number: int) -> Path:
    """The file with this number; compressed, it has ``.gz`` after its name."""
    return directory / f"traffic-{number:09}.jsonl"


def traffic_files(directory: Path) -> list[Path]:
    """The files that are there, in their order, by the names that they have before they are compressed."""
    numbers = {int(match[1]) for entry in directory.iterdir() if (match := _NAME.fullmatch(entry.name))}
    return [traffic_file(directory, number) for number in sorted(numbers)]


class TrafficWriter:
    """Writes the files and flushes them to disk; callers of :meth:`keep` hold the log's lock."""

    def __init__(self, directory: Path, disk: Disk, *, file_bytes: int = MAX_SEGMENT_BYTES) -> None:
        self._directory = directory
        self._disk = disk
        self._file_bytes = file_bytes
        self._synced = 0
        """Files before this one are on the disk."""

    def keep(self, data: bytes, digest: str, *, after: Traffic | None) -> Traffic:
        """Write ``data`` after what was kept last; nothing counts until a record names it.

        Raises :class:`AuditLogError`: it cannot be written, or what was kept before is not whole.
        """
        if not 0 < len(data) <= MAX_TRAFFIC_BYTES:
            raise AuditLogError(f"{len(data)} bytes of the access log at once are not 1 to {MAX_TRAFFIC_BYTES}")
        number, offset = (1, 0) if after is None else (after.file, after.end)
        try:
            if offset >= self._file_bytes:
                # What a crash left at its end goes before it is closed.
                os.close(self._open_at(number, offset))
                number, offset = number + 1, 0
            descriptor = self._open_at(number, offset)
            try:
                if self._disk.write(descriptor, data) != len(data):
                    self._disk.truncate(descriptor, offset)
                    raise AuditLogError(f"no space for {len(data)} bytes in {traffic_file(self._directory, number)}")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise AuditLogError(
                f"cannot write {traffic_file(self._directory, number)}: {error.strerror}", "check the space on the disk"
            ) from error
        return Traffic(number, offset, len(data), data.count(b"\n"), digest)

    def _open_at(self, number: int, offset: int) -> int:
        """Open a file that must reach ``offset``; what is after it was left by a crash and is cut off."""
        path = traffic_file(self._directory, number)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | (0 if offset else os.O_CREAT)
        descriptor = os.open(path, flags, SECRET_MODE)
        try:
            self._end_at(path, descriptor, offset)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _end_at(self, path: Path, descriptor: int, offset: int) -> None:
        size = os.fstat(descriptor).st_size
        if size < offset:
            raise AuditLogError(
                f"{path} has {size} bytes, and {offset} were written",
                "its end was removed: see `sluice audit-log verify`",
            )
        if size > offset:
            self._disk.truncate(descriptor, offset)

    def sync(self, last: Traffic | None) -> None:
        """Put on the disk what was kept up to ``last``; raises :class:`OSError`."""
        for number in range(max(1, self._synced), last.file + 1) if last is not None else ():
            with contextlib.suppress(FileNotFoundError):  # compressed, and so on the disk
                descriptor = os.open(traffic_file(self._directory, number), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self._disk.sync(descriptor)
                finally:
                    os.close(descriptor)
            self._synced = number

    def compress(self, last: Traffic | None) -> None:
        """Compress the files that are full."""
        if last is None:
            return
        for entry in self._directory.glob("traffic-*.jsonl"):
            match = _NAME.fullmatch(entry.name)
            if match and int(match[1]) < last.file:
                compress(entry)


class TrafficReader:
    """Reads the bytes that records stand for; best in their order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        self._file: IO[bytes] | gzip.GzipFile | None = None

    def read(self, record: AuditRecord) -> bytes:
        """The lines that ``record`` refers to; raises :class:`AuditLogError` when they are missing or changed."""
        traffic = record.traffic
        where = f"audit log line {record.sequence}"
        if not isinstance(traffic, Traffic):
            raise AuditLogError(f"{where} does not say where the lines of the access log are")
        path = traffic_file(self._directory, traffic.file)
        if not 0 < traffic.size <= MAX_TRAFFIC_BYTES or not 0 <= traffic.offset <= MAX_READ_BYTES:
            raise AuditLogError(f"{where} stands for {traffic.size} bytes at {traffic.offset}", "no writer left it so")
        try:
            data = self._read(traffic)
        except FileNotFoundError as error:
            raise AuditLogError(f"{path.name} is missing: {where} stands for lines in it", "it was removed") from error
        except (OSError, EOFError, zlib.error) as error:
            raise AuditLogError(f"{path.name} is damaged: {error}") from error
        if len(data) != traffic.size:
            raise AuditLogError(f"{path.name} ends before what {where} stands for", "its end was removed")
        if digest_of(data) != traffic.sha256:
            raise AuditLogError(
                f"{path.name} has other bytes at {traffic.offset} than {where} stands for",
                "a line of the access log was removed, changed, inserted or moved",
            )
        return data

    def has_more(self) -> bool:
        """Whether there is anything after what was read last."""
        return self._file is not None and bool(self._file.read(1))

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._number = None, 0

    def _read(self, traffic: Traffic) -> bytes:
        if traffic.file != self._number or self._file is None:
            self.close()
            path = traffic_file(self._directory, traffic.file)
            packed = path.with_name(path.name + ".gz")
            # Compressed just now, perhaps; kept open for what comes next.
            self._file = path.open("rb") if path.exists() else gzip.GzipFile(packed, "rb")
            self._number = traffic.file
        self._file.seek(traffic.offset)
        return self._file.read(traffic.size)


class TrafficCheck:
    """Whether all that records stand for is there: every byte, in order, and nothing between.

    Attributes:
        lines: of the access log, so far.
    """

    def __init__(self, directory: Path) -> None:
        self._reader = TrafficReader(directory)
        self._last: Traffic | None = None
        self.lines = 0

    def take(self, record: AuditRecord) -> bytes:
        """The next record of the chain; returns the lines that it stands for. Raises :class:`AuditLogError`."""
        if record.event != "access":
            return b""
        last, traffic = self._last, record.traffic
        if isinstance(traffic, Traffic):
            number, end = (1, 0) if last is None else (last.file, last.end)
            if (traffic.file, traffic.offset) == (number + 1, 0) and last is not None:
                if self._reader.has_more():
                    raise AuditLogError(f"traffic-{number:09}.jsonl goes on after its last line", "it was added to")
            elif (traffic.file, traffic.offset) != (number, end):
                raise AuditLogError(f"audit log line {record.sequence} does not go on where the access log was")
            self._last = traffic
            self.lines += traffic.lines
        return self._reader.read(record)

    def close(self) -> None:
        """Let go of the files."""
        self._reader.close()
