"""Appending to the hash-chained logs: the CA's ledger, and the gateway's audit log.

Each line has the digest of what is before it. No log may keep a part of a line. Formats and writers differ: the ledger
is one file with one writer, and a record is flushed before its certificate leaves; the audit log has segments, signed
checkpoints, and as many writers as there are processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sluice.core.errors import SluiceError

GENESIS = "0" * 64
"""The digest before the first record."""


@dataclass(frozen=True, slots=True)
class ChainState:
    """The state of a chain: the number of records, and the digest of the last."""

    count: int = 0
    digest: str = GENESIS

    def __str__(self) -> str:
        return f"{self.count}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> ChainState:
        """The inverse of ``str``; raises ``ValueError``."""
        count, _, digest = text.partition(":")
        if not (count.isascii() and count.isdigit() and len(count) <= 12) or len(digest) != len(GENESIS):
            raise ValueError("not COUNT:DIGEST")
        return cls(int(count), digest)


class Disk:
    """The file system: every step after which a crash could leave something behind. Tests crash in each of them."""

    def write(self, descriptor: int, data: bytes) -> int:
        """Append; returns how many bytes were taken (write(2))."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Return when everything written is on the disk (fsync(2))."""
        os.fsync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut the file to ``size`` bytes (ftruncate(2))."""
        os.ftruncate(descriptor, size)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name (rename(2))."""
        old.rename(new)


class NotAppended(SluiceError):
    """The data is not in the file.

    Attributes:
        repaired: whether the part that was written was removed. If not, the file may end in the middle of a line.
    """

    def __init__(self, why: str, *, repaired: bool) -> None:
        super().__init__(why)
        self.repaired = repaired


def append_whole(disk: Disk, descriptor: int, data: bytes, *, end: int) -> None:
    """Append ``data`` at ``end``, the size of the file: all of it or nothing. Raises :class:`NotAppended`."""
    try:
        written = disk.write(descriptor, data)
        problem = "no space for a whole record" if written != len(data) else ""
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        try:
            disk.truncate(descriptor, end)
        except OSError:
            raise NotAppended(problem, repaired=False) from None
        raise NotAppended(problem, repaired=True)
