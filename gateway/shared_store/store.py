"""Short-lived state that several auth services share: entries with an end, changed in transactions.

An entry is in a *space* (one for each purpose) under a key, and may belong to a group (a network, say) of which there
may be only so many. Callers keep their decisions apart from the storage: they read, decide and write within one
transaction, and no other process sees or changes the space meanwhile.

Everything here waits for a disk, and is for threads beside the event loop. Times are seconds since the epoch.
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
        since: when it began; entries are ordered by it.
        until: when it ends; the store then forgets it.
        group: what it is counted under.
    """

    key: str
    value: bytes
    since: float
    until: float
    group: str = ""


class Transaction(Protocol):
    """One space, for one caller at a time. What has ended is not there any more."""

    def get(self, key: str) -> Entry | None:
        """The entry with this key."""

    def put(self, entry: Entry) -> None:
        """Add ``entry``, in place of one with the same key."""

    def remove(self, key: str) -> None:
        """Remove an entry; one that is not there is no error."""

    def count(self, group: str | None = None) -> int:
        """How many there are, of one group or in all."""

    def oldest(self, group: str | None = None) -> Entry | None:
        """The one that began first, of one group or of all."""

    def entries(self, group: str | None = None) -> list[Entry]:
        """All of one group or of all, the oldest first."""


class SharedStore(Protocol):
    """Where auth services that answer for each other keep what one of them must know of the other."""

    def transaction(self, space: str, now: float) -> AbstractContextManager[Transaction]:
        """Have ``space`` to oneself. What was written counts for everybody once the block has been left without error.

        Raises:
            SharedStoreError: the store cannot be used, on entry or on exit: then nothing was written, and the caller
                must refuse what it was asked.
        """

    def close(self) -> None:
        """Let go of the store."""
