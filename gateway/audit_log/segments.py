"""The segment files of an audit log: the current one, and closed ones, which are compressed.

Lines are appended to ``current.jsonl``. A full segment is renamed to ``audit-FIRST-LAST.jsonl`` (sequence numbers), and
later compressed to ``….jsonl.gz``. The chain continues across segments.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sluice.core import SECRET_MODE, lock_within, write_secret
from sluice.gateway.audit_log.chain import MAX_LINE_BYTES
from sluice.gateway.errors import AuditLogError

CURRENT = "current.jsonl"
CHECKPOINT = "checkpoint.json"
"""The last checkpoint whose records are safely on disk. With it, truncation before it is detected."""
LOCK = "lock"
"""A writer holds a lock on this file (flock(2)); it is never renamed."""
LOCK_TIMEOUT_SECONDS = 5.0
"""How long a record waits for another writer. After that it counts as not written."""
MAX_SEGMENT_BYTES = 32 << 20
"""A segment of this size is closed, and the next one begins."""
MAX_READ_BYTES = 4 * MAX_SEGMENT_BYTES
"""Upper limit for reading a segment, also after decompression. Writers never exceed it."""
_LOCK_POLL_SECONDS = 0.0005
_NAME = re.compile(r"audit-(\d{12,18})-(\d{12,18})\.jsonl(?:\.gz)?")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A closed segment: the sequence numbers of its first and last record, and its uncompressed name."""

    first: int
    last: int
    path: Path

    @classmethod
    def named(cls, directory: Path, first: int, last: int) -> Segment:
        """The segment with the records ``first`` to ``last``."""
        return cls(first, last, directory / f"audit-{first:012}-{last:012}.jsonl")

    @property
    def compressed(self) -> Path:
        """The path after compression."""
        return self.path.with_name(self.path.name + ".gz")

    def lines(self) -> Iterator[bytes]:
        """The lines of the segment, compressed or not. It may be compressed at the same time."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as plain:
            yield from _bounded(plain, self.path.name)
            return
        try:
            with gzip.open(self.compressed, "rb") as packed:
                yield from _bounded(packed, self.compressed.name)
        except (OSError, EOFError, zlib.error) as error:
            raise AuditLogError(f"audit log segment {self.compressed.name} is damaged: {error}") from error

    def last_line(self) -> bytes:
        """The last line; empty if there is none."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as plain:
            plain.seek(max(0, plain.seek(0, os.SEEK_END) - 2 * MAX_LINE_BYTES))
            return plain.read().rstrip(b"\n").rpartition(b"\n")[2] + b"\n"
        last = b""
        for last in self.lines():  # noqa: B007  the last one is used after the loop
            pass
        return last


def segments(directory: Path) -> list[Segment]:
    """The closed segments, in order."""
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for entry in directory.iterdir():
            if match := _NAME.fullmatch(entry.name):
                found.add(Segment.named(directory, int(match[1]), int(match[2])))
    return sorted(found)


def compress(path: Path) -> None:
    """Compress a closed file of the log, and delete the plain copy. A crash loses neither."""
    with contextlib.suppress(FileNotFoundError):  # another process has already compressed it
        if path.stat().st_size > MAX_READ_BYTES:
            raise AuditLogError(f"{path} is larger than {MAX_READ_BYTES} bytes", "no writer left it so")
        # mtime 0 makes the output reproducible. Level 1 takes half the time of level 6 for a tenth more bytes, on cores
        # that the gateway needs.
        write_secret(path.with_name(path.name + ".gz"), gzip.compress(path.read_bytes(), compresslevel=1, mtime=0))
        path.unlink()


def _bounded(file: IO[bytes] | gzip.GzipFile, name: str) -> Iterator[bytes]:
    left = MAX_READ_BYTES
    while line := file.readline(MAX_LINE_BYTES + 1):
        left -= len(line)
        if left < 0:
            raise AuditLogError(f"audit log segment {name} is larger than {MAX_READ_BYTES} bytes")
        yield line


def take_lock(descriptor: int, kind: int, directory: Path) -> None:
    """Take the lock of the log in ``directory``. Raises :class:`AuditLogError` if another process keeps it."""
    if not lock_within(descriptor, LOCK_TIMEOUT_SECONDS, kind=kind, poll_seconds=_LOCK_POLL_SECONDS):
        raise AuditLogError(
            f"another process has been writing {directory} for {LOCK_TIMEOUT_SECONDS:.0f} s",
            "check with `sluice status` whether a process is stopped",
        )


def open_file(path: Path, flags: int) -> int:
    """Open a file of the log without following links; returns the descriptor. Raises :class:`AuditLogError`."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, SECRET_MODE)
    except OSError as error:
        raise AuditLogError(f"cannot open {path}: {error.strerror}") from error
