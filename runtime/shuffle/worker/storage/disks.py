"""The disks of a worker: which one takes new data, and which are excluded because they failed or are full."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.core import make_private_directory
from sluice.runtime.shuffle.control_plane import DiskReport
from sluice.runtime.shuffle.data_plane import DiskFailed

_LOG = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The same in all containers of a machine, and different on every other machine."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Disk:
    """One data directory of the worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.excluded_until = 0.0
        self.failures = 0

    def free_bytes(self) -> int:
        """Free space for unprivileged users, in bytes; 0 if the disk cannot be read."""
        try:
            info = os.statvfs(self.path)
        except OSError:
            return 0
        return info.f_bavail * info.f_frsize


class Disks:
    """All disks of a worker.

    Args:
        directories: the data directories, one on each disk.
        reserved_bytes: a disk with less free space takes no new data.
        retry_seconds: how long a disk that failed is excluded.
        clock: returns monotonic seconds.
        free_bytes: returns the free space of a disk.
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
        """Return the working disk with the most free space.

        Raises:
            DiskFailed: all disks have failed or are full.
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
        """Exclude a disk that failed, for the retry time."""
        with self._lock:
            disk.excluded_until = self._clock() + self._retry
            disk.failures += 1
        what = "is full" if error.errno in FULL else "failed"
        _LOG.error("disk %s %s: %s; not used for %.0f s", disk.path, what, error.strerror or error, self._retry)

    def reports(self) -> tuple[DiskReport, ...]:
        """Return the state of each disk. It asks the file systems, which may block for long."""
        return tuple(self._report(disk) for disk in self.all)

    def _report(self, disk: Disk) -> DiskReport:
        path = str(disk.path)
        try:
            total, device = shutil.disk_usage(path).total, _device(disk.path)
        except OSError as error:
            return DiskReport(path=path, total=0, free=0, usable=False, error=str(error))
        return DiskReport(path=path, total=total, free=self._free_bytes(disk), usable=self.usable(disk), device=device)


def _device(path: Path) -> str:
    """Return an id of a directory's file system that is the same in all containers of this machine."""
    return hashlib.sha256(f"{_BOOT_ID.read_text()}{path.stat().st_dev}".encode()).hexdigest()[:16]
