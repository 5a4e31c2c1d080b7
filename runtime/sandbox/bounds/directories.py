"""What the directories of a job hold: bytes and files, measured from outside while the job writes in them.

The walk goes down by descriptors, follows no link, stays on the file system on which it began, opens nothing but
directories, and is bounded in entries and depth. What it cannot see is an excess by itself: a job could hide its data
there otherwise.
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
"""Most directories within each other; the walk holds a descriptor for each."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_MAY_ALL = 0o700
_BLOCK = 512
"""The unit of ``st_blocks``, whatever the file system."""


@dataclass(slots=True)
class DiskUsage:
    """What was found. ``hidden`` says why there may be more; empty: nothing kept the walk from going on."""

    bytes: int = 0
    entries: int = 0
    hidden: str = ""


def measure_directories(directories: Sequence[Path], *, max_entries: int) -> DiskUsage:
    """All that is in ``directories``, each of which the job can fill but not replace.

    A file with several names counts once, one with holes by the blocks that it has. Directories that their owner has
    closed are opened again. Stops behind ``max_entries``.
    """
    walk = _Walk(max_entries)
    for directory in directories:
        with contextlib.suppress(FileNotFoundError):
            walk.go(os.open(directory, _DIRECTORY))
    return walk.found


def devices_of(directories: Sequence[Path]) -> frozenset[int]:
    """On which file systems ``directories`` are."""
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
        """Walk through ``root``, a descriptor that is closed in the end."""
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
        """Count what is in ``directory``; returns the directories in it."""
        below = []
        with os.scandir(directory) as entries:
            for each in itertools.islice(entries, max(0, self._max_entries + 1 - self.found.entries)):
                try:
                    info = each.stat(follow_symlinks=False)
                except OSError:
                    continue  # it has gone meanwhile
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
        """A descriptor of a directory; None when it has gone, or is something else by now."""
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
