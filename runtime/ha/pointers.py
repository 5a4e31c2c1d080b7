"""Pointers: small entries that name the valid entries of the HA storage directory.

A pointer is written after the entry it points to, and only by the leader: every implementation refuses the write of a
process that does not lead at that moment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.ha.errors import HaError

MAX_POINTER_BYTES = 64 << 10
"""Largest value of a pointer. ZooKeeper accepts 1 MiB per node, a ConfigMap 1 MiB for all of its values."""
MAX_POINTERS = 20_000
"""Maximum number of pointers that are read from one folder."""

FOLDERS = ("jobs", "attempts", "results", "checkpoints", "history", "shuffles", "secrets", "meta")
"""The folders that hold pointers."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """A value and its version, which the next change must name (optimistic concurrency)."""

    value: bytes
    version: int


class PointerStore(Protocol):
    """Pointers in :data:`FOLDERS`. All writes raise ``LeadershipLost`` once their leadership is over."""

    async def names(self, folder: str) -> list[str]:
        """The names of all pointers in a folder, sorted."""
        ...

    async def get(self, folder: str, name: str) -> Pointer | None:
        """The pointer, or None when it does not exist; raises ``EntryDamaged``."""
        ...

    async def create(self, folder: str, name: str, value: bytes) -> None:
        """Create a pointer; raises ``PointerExists``."""
        ...

    async def replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        """Replace a pointer if it still has ``version``; raises ``PointerConflict`` otherwise."""
        ...

    async def remove(self, folder: str, name: str) -> None:
        """Remove a pointer; do nothing when it does not exist."""
        ...


def check_pointer(folder: str, name: str, value: bytes = b"") -> None:
    """Raise :class:`HaError` unless folder, name and value are valid in every store."""
    if folder not in FOLDERS or not _NAME.fullmatch(name):
        raise HaError(f"{folder[:40]!r}/{name[:80]!r} is not a valid pointer name")
    if len(value) > MAX_POINTER_BYTES:
        raise HaError(f"a pointer of {len(value)} bytes is too large", f"use at most {MAX_POINTER_BYTES} bytes")
