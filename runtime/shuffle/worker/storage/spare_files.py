"""Keeps data files of ended shuffles for reuse: the next shuffle of the same job overwrites one of them.

The pages of such a file are in the page cache already. Allocating pages for a new file costs more than the copy itself,
and ten times more in a virtual machine that returns free memory to its host. Old contents are never read: the index
names only what was written since, and every segment is verified with its key and place. A file is never reused by
another job, and is deleted with its job.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from sluice.core import StoreError, make_private_directory

DIRECTORY = "spare"
"""The folder for spare files, in the folder of a job on each disk."""


@dataclass(frozen=True, slots=True)
class _Spare:
    job_id: str
    disk: Path
    path: Path
    size: int


class SpareFiles:
    """The spare files of all jobs of a worker; thread-safe.

    Args:
        most_bytes: maximum total size of all spare files and of those that are in use again; 0: none is kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._spares: list[_Spare] = []
        self._reused: dict[Path, int] = {}
        self._numbers = itertools.count()

    def keep(self, job_id: str, disk: Path, data: Path) -> None:
        """Take over the file ``data`` of an ended shuffle; the oldest spare files are removed if there are too many."""
        with self._lock:
            self._reused.pop(data, None)
            try:
                size = data.stat().st_size
                if 0 < size <= self._most:
                    spare = make_private_directory(disk / job_id / DIRECTORY) / str(next(self._numbers))
                    data.rename(spare)
                    self._spares.append(_Spare(job_id, disk, spare, size))
            except (OSError, StoreError):  # the caller removes the file with its folder
                return
            while self._spares and self._bytes() > self._most:
                self._remove(self._spares.pop(0))

    def reuse(self, job_id: str, disk: Path, data: Path) -> bool:
        """Move one of the job's spare files on that disk to ``data``; returns False if there is none."""
        with self._lock:
            mine = [spare for spare in self._spares if (spare.job_id, spare.disk) == (job_id, disk)]
            for spare in reversed(mine):  # the most recently used file is most likely in the page cache
                self._spares.remove(spare)
                with contextlib.suppress(OSError):
                    spare.path.rename(data)
                    self._reused[data] = spare.size
                    return True
            return False

    def forget(self, data: Path) -> None:
        """Forget a file that was reused and no longer exists."""
        with self._lock:
            self._reused.pop(data, None)

    def drop(self, disk: Path | None = None, *, job_id: str | None = None) -> bool:
        """Remove the spare files of a disk or of a job, or all of them; returns whether there were any."""
        with self._lock:
            mine = [each for each in self._spares if disk in {None, each.disk} and job_id in {None, each.job_id}]
            for spare in mine:
                self._spares.remove(spare)
                self._remove(spare)
            if job_id is not None:
                self._reused = {data: size for data, size in self._reused.items() if data.parent.parent.name != job_id}
            return bool(mine)

    def _bytes(self) -> int:
        return sum(spare.size for spare in self._spares) + sum(self._reused.values())

    def _remove(self, spare: _Spare) -> None:
        with contextlib.suppress(OSError):
            spare.path.unlink()


def remove_left_over(job: Path) -> None:
    """Remove the spare files that an earlier process left in a job's folder; their list is lost."""
    shutil.rmtree(job / DIRECTORY, ignore_errors=True)
