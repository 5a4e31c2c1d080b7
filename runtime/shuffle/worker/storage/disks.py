"""The disks of a worker: which one takes new data, and which is left alone because it failed or is full."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.core.files import make_private_directory
from sluice.runtime.shuffle.data_plane.errors import DiskFailed

_LOG = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Disk:
    """One directory of the worker's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.excluded_until = 0.0
        self.failures = 0

    def free_bytes(self) -> int:
        """Free for us; 0 when the disk does not even say."""
        try:
            info = os.statvfs(self.path)
        except OSError:
            return 0
        return info.f_bavail * info.f_frsize


class Disks:
    """All disks of a worker.

    Args:
        directories: one on each.
        reserved_bytes: a disk with less free space takes nothing new.
        retry_seconds: for how long a disk that failed is left alone.
        clock: monotonic.
        free_bytes: asks a disk.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        reserved_bytes: int,
        retry_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        free_bytes: Callable[[Disk], int] = Disk.free_bytes,
    ) -> None:
        self.all = tuple(Disk(make_private_directory(directory)) for directory in directories)
        self._reserved = reserved_bytes
        self._retry = retry_seconds
        self._clock = clock
        self._free_bytes = free_bytes
        self._lock = threading.Lock()

    def choose(self) -> Disk:
        """The disk with the most free space of those that work.

        Raises:
            DiskFailed: there is none.
        """
        with self._lock:
            now = self._clock()
            working = [disk for disk in self.all if disk.excluded_until <= now]
        free = [(self._free_bytes(disk), disk) for disk in working]
        room = [(size, disk) for size, disk in free if size > self._reserved]
        if not room:
            raise DiskFailed(
                f"no disk takes data: of {len(self.all)}, {len(self.all) - len(working)} failed, {len(free)} are full",
                "free some space, or add a directory",
            )
        return max(room, key=lambda pair: pair[0])[1]

    def usable(self, disk: Disk) -> bool:
        """Whether ``disk`` still takes data."""
        return disk.excluded_until <= self._clock() and self._free_bytes(disk) > self._reserved

    def exclude(self, disk: Disk, error: OSError) -> None:
        """``disk`` failed: leave it alone for a while."""
        with self._lock:
            disk.excluded_until = self._clock() + self._retry
            disk.failures += 1
        what = "is full" if error.errno in FULL else "failed"
        _LOG.error("disk %s %s: %s; not used for %.0f s", disk.path, what, error.strerror or error, self._retry)

    def states(self) -> list[tuple[Path, bool, int]]:
        """Of each disk: where, whether it takes data, and its free bytes."""
        return [(disk.path, self.usable(disk), self._free_bytes(disk)) for disk in self.all]
