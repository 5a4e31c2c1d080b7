"""Who stands by in one home: a file for each, locked by it, so that the kernel forgets it when its process dies."""

from __future__ import annotations

import os
from pathlib import Path

from sluice.core import is_locked, lock_within, make_private_directory


class StandbyFiles:
    """The files of those who stand by, below ``root``. What is in them does not matter, only who has them locked."""

    def __init__(self, root: Path) -> None:
        self._root = make_private_directory(root)

    def show(self, name: str) -> StandbyMark | None:
        """Let others see that ``name`` stands by. None: somebody looks this very moment, or is called the same."""
        path = self._root / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if lock_within(descriptor, 0):
            return StandbyMark(path, descriptor)
        os.close(descriptor)
        return None

    def names(self) -> tuple[str, ...]:
        """The names of the standbys."""
        return tuple(sorted(path.name for path in self._root.iterdir() if is_locked(path)))


class StandbyMark:
    """The sign that a process stands by, until :meth:`remove`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def remove(self) -> None:
        """Remove the mark: this process no longer stands by."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
