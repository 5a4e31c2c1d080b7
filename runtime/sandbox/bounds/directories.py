"""Measures the bytes and files in the directories of a job, from outside and while the job writes to them.

The walk descends by file descriptors, follows no links, stays on one file system, opens only directories, and is
limited in entries and depth. A directory that the walk cannot read counts as an excess, because a job could hide data
there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_DEPTH = 128
"""Maximum nesting of directories; the walk holds one descriptor for each level."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_MAY_ALL = 0o700
_BLOCK = 512
"""The unit of ``st_blocks``, whatever the file system."""


@dataclass(slots=True)
class DiskUsage:
    """The result of a walk. ``hidden`` says why the result may be incomplete; empty: it is complete."""

    bytes: int = 0
    entries: int = 0
    hidden: str = ""


def measure_directories(directories: Sequence[Path], *, max_entries: int) -> DiskUsage:
    """Measure the contents of ``directories``. The job can write to these directories but cannot replace them.

    A file with several hard links counts once, and a sparse file counts by its allocated blocks. If the mode of a
    directory denies access, its owner's rights are restored. Stops once ``max_entries`` is exceeded.
    """
    walk = _Walk(max_entries)
    for directory in directories:
        with contextlib.suppress(FileNotFoundError):
            walk.go(os.open(directory, _DIRECTORY))
    return walk.found


def devices_of(directories: Sequence[Path]) -> frozenset[int]:
    """The device numbers of the file systems that hold ``directories``."""
    found = set()
    for directory in directories:
        with contextlib.suppress(OSError):
            found.add(directory.lstat().st_dev)
    return frozenset(found)


class _Walk:
    def __init__(self, max_entries: int) -> None:
        self.found = DiskUsage()
        self._max_entries = max_entries
        self._linked: set[tuple[int, int]] = set()

    def go(self, root: int) -> None:
        """Walk through the directory of the descriptor ``root``, and close it."""
        way: list[tuple[int, list[str]]] = []
        try:
            device = os.fstat(root).st_dev
            way.append((root, self._list(root, device)))
            while way:
                current, waiting = way[-1]
                if not waiting or self.found.entries > self._max_entries:
                    way.pop()
                    os.close(current)
                    continue
                below = self._open(current, waiting.pop())
                if below is None:
                    continue
                if len(way) >= MAX_DEPTH:
                    self.found.hidden = f"there are more than {MAX_DEPTH} directories within each other"
                    os.close(below)
                    continue
                way.append((below, []))
                way[-1] = (below, self._list(below, device))
        finally:
            for descriptor, _ in way:
                os.close(descriptor)

    def _list(self, directory: int, device: int) -> list[str]:
        """Count the entries of ``directory``; return its subdirectories on the same ``device``."""
        below = []
        with os.scandir(directory) as entries:
            for each in itertools.islice(entries, max(0, self._max_entries + 1 - self.found.entries)):
                try:
                    info = each.stat(follow_symlinks=False)
                except OSError:
                    continue  # deleted meanwhile
                self._count(info)
                if stat.S_ISDIR(info.st_mode) and info.st_dev == device:
                    below.append(each.name)
        return below

    def _count(self, info: os.stat_result) -> None:
        self.found.entries += 1
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            if (info.st_dev, info.st_ino) in self._linked:
                return
            self._linked.add((info.st_dev, info.st_ino))
        self.found.bytes += info.st_blocks * _BLOCK

    def _open(self, parent: int, name: str) -> int | None:
        """Open a subdirectory; None: it was deleted or is no longer a directory."""
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except PermissionError:
            return self._open_closed(parent, name)
        except OSError:
            return None

    def _open_closed(self, parent: int, name: str) -> int | None:
        try:
            handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            return None
        try:
            if os.fstat(handle).st_uid == os.geteuid():
                Path(f"/proc/self/fd/{handle}").chmod(_OWNER_MAY_ALL)
            return os.open(".", _DIRECTORY, dir_fd=handle)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.found.hidden = f"a directory in it cannot be opened ({error.strerror})"
            return None
        finally:
            os.close(handle)
