"""Pointers: the small entries that say what counts; what they point to is in the storage directory.

A pointer is written after what it points to, and only by the leader: every implementation refuses the write of a
process that does not lead at that moment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.ha.errors import HaError

MAX_POINTER_BYTES = 64 << 10
"""Largest value of a pointer; ZooKeeper takes up to 1 MiB, a ConfigMap as much for all of its values."""
MAX_POINTERS = 20_000
"""Most pointers of one folder that are read."""

FOLDERS = ("jobs", "attempts", "results", "checkpoints", "history", "shuffles", "secrets", "meta")
"""Where pointers are."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """A value and the version that a change of it must name."""

    value: bytes
    version: int


class PointerStore(Protocol):
    """Pointers in :data:`FOLDERS`; all writes raise ``LeadershipLost`` when the leadership they belong to is over."""

    async def names(self, folder: str) -> list[str]:
        """The names of all pointers of a folder, sorted."""
        ...

    async def get(self, folder: str, name: str) -> Pointer | None:
        """A pointer, None when there is none; raises ``EntryDamaged``."""
        ...

    async def create(self, folder: str, name: str, value: bytes) -> None:
        """Make a pointer; raises ``PointerExists``."""
        ...

    async def replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        """Change a pointer that still has ``version``; raises ``PointerConflict``."""
        ...

    async def remove(self, folder: str, name: str) -> None:
        """Remove a pointer; none is no error."""
        ...


def check_pointer(folder: str, name: str, value: bytes = b"") -> None:
    """Raise :class:`HaError` unless this can be a pointer in any store."""
    if folder not in FOLDERS or not _NAME.fullmatch(name):
        raise HaError(f"{folder[:40]!r}/{name[:80]!r} is not the name of a pointer")
    if len(value) > MAX_POINTER_BYTES:
        raise HaError(f"a pointer of {len(value)} bytes", f"at most {MAX_POINTER_BYTES}")
