"""Stores the proxy's access log within the audit log: the lines in separate files, their digests in the chain.

A busy proxy writes thousands of lines per second. The lines are stored unchanged in ``traffic-NUMBER.jsonl`` beside the
segments, and one record of the chain covers all lines of one read. So a line only costs reading, hashing and writing
its bytes. Lines are parsed only when the log is read.

The bytes are in the kernel before their record is, so a record always has its bytes. Bytes that a crash left after
those of the last record are truncated by the next writer, which reads the same lines from the access log again.
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
"""Maximum number of bytes that one record covers."""

_NAME = re.compile(r"traffic-(\d{9,12})\.jsonl(?:\.gz)?")


def traffic_file(directory: Path, number: int) -> Path:
    """The path of file ``number``. A compressed file has the suffix ``.gz`` in addition."""
    return directory / f"traffic-{number:09}.jsonl"


def traffic_files(directory: Path) -> list[Path]:
    """The existing files in order, by their names before compression."""
    numbers = {int(match[1]) for entry in directory.iterdir() if (match := _NAME.fullmatch(entry.name))}
    return [traffic_file(directory, number) for number in sorted(numbers)]


class TrafficWriter:
    """Writes the files and flushes them to disk. Callers of :meth:`append` must hold the log's lock."""

    def __init__(self, directory: Path, disk: Disk, *, file_bytes: int = MAX_SEGMENT_BYTES) -> None:
        self._directory = directory
        self._disk = disk
        self._file_bytes = file_bytes
        self._synced = 0
        """All files before this one are on disk."""

    def append(self, data: bytes, digest: str, *, after: Traffic | None) -> Traffic:
        """Write ``data`` after what ``after`` refers to. It only counts once a record refers to it.

        Raises :class:`AuditLogError` if it cannot be written, or earlier data are incomplete.
        """
        if not 0 < len(data) <= MAX_TRAFFIC_BYTES:
            raise AuditLogError(f"{len(data)} bytes of the access log at once are not 1 to {MAX_TRAFFIC_BYTES}")
        number, offset = (1, 0) if after is None else (after.file, after.end)
        try:
            if offset >= self._file_bytes:
                # Before the file is closed, remove what a crash left at its end.
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
        """Open a file that must have at least ``offset`` bytes. Truncate what a crash left after that."""
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
        """Flush the files up to ``last`` to disk. Raises :class:`OSError`."""
        for number in range(max(1, self._synced), last.file + 1) if last is not None else ():
            with contextlib.suppress(FileNotFoundError):  # compressed files are already on disk
                descriptor = os.open(traffic_file(self._directory, number), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self._disk.sync(descriptor)
                finally:
                    os.close(descriptor)
            self._synced = number

    def compress(self, last: Traffic | None) -> None:
        """Compress the full files."""
        if last is None:
            return
        for entry in self._directory.glob("traffic-*.jsonl"):
            match = _NAME.fullmatch(entry.name)
            if match and int(match[1]) < last.file:
                compress(entry)


class TrafficReader:
    """Reads the lines that records refer to. Fastest in the order of the records."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        self._file: IO[bytes] | gzip.GzipFile | None = None

    def read(self, record: AuditRecord) -> bytes:
        """The lines that ``record`` refers to. Raises :class:`AuditLogError` if they are missing or changed."""
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
        """Whether there is anything after the last lines that were read."""
        return self._file is not None and bool(self._file.read(1))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._number = None, 0

    def _read(self, traffic: Traffic) -> bytes:
        if traffic.file != self._number or self._file is None:
            self.close()
            path = traffic_file(self._directory, traffic.file)
            packed = path.with_name(path.name + ".gz")
            # The file may be compressed at this moment. It stays open for the next record.
            try:
                self._file = path.open("rb")
            except FileNotFoundError:
                self._file = gzip.GzipFile(packed, "rb")
            self._number = traffic.file
        self._file.seek(traffic.offset)
        return self._file.read(traffic.size)


class TrafficCheck:
    """Verifies that the lines of all records are complete: every byte, in order, with nothing in between.

    Attributes:
        lines: number of lines of the access log so far.
    """

    def __init__(self, directory: Path) -> None:
        self._reader = TrafficReader(directory)
        self._last: Traffic | None = None
        self.lines = 0

    def take(self, record: AuditRecord) -> bytes:
        """Verify the next record of the chain and return its lines. Raises :class:`AuditLogError`."""
        if record.event != "access":
            return b""
        last, traffic = self._last, record.traffic
        if isinstance(traffic, Traffic):
            number, end = (1, 0) if last is None else (last.file, last.end)
            if (traffic.file, traffic.offset) == (number + 1, 0) and last is not None:
                if self._reader.has_more():
                    raise AuditLogError(f"traffic-{number:09}.jsonl continues after its last line", "lines were added")
            elif (traffic.file, traffic.offset) != (number, end):
                raise AuditLogError(f"audit log line {record.sequence} does not continue the lines of the access log")
            self._last = traffic
            self.lines += traffic.lines
        return self._reader.read(record)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()
