"""The standbys of one home: each locks a file of its own, and the kernel releases the lock when its process dies."""

from __future__ import annotations

import os
from pathlib import Path

from sluice.core import is_locked, lock_within, make_private_directory


class StandbyFiles:
    """The standbys' files below ``root``. Their content is irrelevant: a locked file marks a standby."""

    def __init__(self, root: Path) -> None:
        self._root = make_private_directory(root)

    def add_mark(self, name: str) -> StandbyMark | None:
        """Mark ``name`` as a standby, visible to other processes.

        Returns:
            The mark, or None when the file is locked already: by :meth:`names` of another process, or by a standby of
            the same name.
        """
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
    """Marks this process as a standby until :meth:`remove` is called."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def remove(self) -> None:
        """Remove the mark: this process no longer stands by."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
