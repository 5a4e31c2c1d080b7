"""Data files of shuffles that are over, kept for a while: the next shuffle of the same job writes over one of them.

The pages of such a file are in memory already. A file that is new has to be given some, which costs more than the copy
itself; in a virtual machine that gives free memory back to its host, ten times more. Nothing of an old file is ever
read: an index names what was written since, and every segment is checked under a key and its place. A file never
goes from one job to another, and is gone when its job is.
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
"""Of a job on each disk."""


@dataclass(frozen=True, slots=True)
class _Spare:
    job_id: str
    disk: Path
    path: Path
    size: int


class SpareFiles:
    """Those of all jobs of a worker; safe for use by many threads.

    Args:
        most_bytes: of all of them, and of those that are written over now, together; 0: none is kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._spares: list[_Spare] = []
        self._lent: dict[Path, int] = {}
        self._numbers = itertools.count()

    def keep(self, job_id: str, disk: Path, data: Path) -> None:
        """Take over the file ``data`` of a shuffle that is over, or remove it when there are enough."""
        with self._lock:
            self._lent.pop(data, None)
            try:
                size = data.stat().st_size
                if 0 < size <= self._most:
                    spare = make_private_directory(disk / job_id / DIRECTORY) / str(next(self._numbers))
                    data.rename(spare)
                    self._spares.append(_Spare(job_id, disk, spare, size))
            except (OSError, StoreError):  # it goes with its folder then
                return
            while self._spares and self._bytes() > self._most:
                self._remove(self._spares.pop(0))

    def lend(self, job_id: str, disk: Path, data: Path) -> bool:
        """Make one of the job's files on that disk the file ``data``; False when there is none."""
        with self._lock:
            mine = [spare for spare in self._spares if (spare.job_id, spare.disk) == (job_id, disk)]
            for spare in reversed(mine):  # the one that was used last is in memory most likely
                self._spares.remove(spare)
                with contextlib.suppress(OSError):
                    spare.path.rename(data)
                    self._lent[data] = spare.size
                    return True
            return False

    def forget(self, data: Path) -> None:
        """A file that was lent is gone."""
        with self._lock:
            self._lent.pop(data, None)

    def drop(self, disk: Path | None = None, *, job_id: str | None = None) -> bool:
        """Remove those of a disk, or of a job; whether there were any."""
        with self._lock:
            mine = [each for each in self._spares if disk in {None, each.disk} and job_id in {None, each.job_id}]
            for spare in mine:
                self._spares.remove(spare)
                self._remove(spare)
            if job_id is not None:
                self._lent = {data: size for data, size in self._lent.items() if data.parent.parent.name != job_id}
            return bool(mine)

    def _bytes(self) -> int:
        return sum(spare.size for spare in self._spares) + sum(self._lent.values())

    def _remove(self, spare: _Spare) -> None:
        with contextlib.suppress(OSError):
            spare.path.unlink()


def remove_left_over(job: Path) -> None:
    """What an earlier process kept in a job's folder, which it alone knew the use of."""
    shutil.rmtree(job / DIRECTORY, ignore_errors=True)
