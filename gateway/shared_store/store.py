"""Short-lived state that several auth services share: entries that expire, changed in transactions.

An entry is stored in a *space* (one per purpose) under a key, and may belong to a group (for example a network) whose
size callers limit. Callers read, decide and write within one transaction; no other process reads or changes the space
at the same time.

All methods wait for a disk: call them in a thread, not on the event loop. Times are seconds since the epoch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

MAX_KEY_CHARACTERS = 128
MAX_VALUE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    Attributes:
        key: unique in its space.
        value: opaque to the store.
        since: when the entry began; entries are ordered by this time.
        until: when the entry expires; the store then removes it.
        group: the group in which the entry is counted.
    """

    key: str
    value: bytes
    since: float
    until: float
    group: str = ""


class Transaction(Protocol):
    """Exclusive access to one space. Expired entries are already removed."""

    def get(self, key: str) -> Entry | None:
        """The entry with this key, if there is one."""

    def put(self, entry: Entry) -> None:
        """Add ``entry``; replaces an entry with the same key."""

    def remove(self, key: str) -> None:
        """Remove an entry; an unknown key is ignored."""

    def count(self, group: str | None = None) -> int:
        """The number of entries, in one group or in total."""

    def oldest(self, group: str | None = None) -> Entry | None:
        """The oldest entry, of one group or of all."""

    def entries(self, group: str | None = None) -> list[Entry]:
        """All entries, or those of one group, the oldest first."""


class SharedStore(Protocol):
    """The store for state that all auth services of a cluster must know."""

    def transaction(self, space: str, now: float) -> AbstractContextManager[Transaction]:
        """Exclusive access to ``space``. Changes are committed when the block ends without an error.

        Raises:
            SharedStoreError: the store is unavailable, on entry or on exit. Nothing was written, and the caller must
                refuse the request.
        """

    def close(self) -> None:
        """Close the store."""
