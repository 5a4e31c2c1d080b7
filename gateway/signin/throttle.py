"""Throttles guessing: after a few failures, a key must wait, with exponential backoff. Times are passed in.

Failures are in the store that all auth services share, so trying another auth service does not allow more guesses.
"""

from __future__ import annotations

import hashlib

import msgspec

from sluice.gateway.errors import SharedStoreError
from sluice.gateway.shared_store import Entry, SharedStore

FREE_FAILURES = 5
MAX_WAIT_SECONDS = 300.0
FORGET_SECONDS = 900.0
MAX_KEYS = 10_000
_MAX_COUNT = 1000
"""Higher counts make no difference."""


class Throttle:
    """Failures by key (for example a name and an address); the oldest are dropped when there are too many.

    ``space`` is the name of their space in the store. The store contains only digests of keys, because a user may have
    typed a password instead of a name.
    """

    def __init__(self, store: SharedStore, space: str, free: int = FREE_FAILURES) -> None:
        self._store = store
        self._space = space
        self._free = free

    def wait(self, key: str, now: float) -> float:
        """Seconds until the next attempt is allowed; 0 when it is allowed now."""
        with self._store.transaction(self._space, now) as entries:
            entry = entries.get(_digest(key))
        if entry is None or (count := _count(entry)) < self._free:
            return 0.0
        return max(0.0, entry.since + min(MAX_WAIT_SECONDS, 2.0 ** (count - self._free)) - now)

    def failed(self, key: str, now: float) -> None:
        """Record a failed attempt."""
        with self._store.transaction(self._space, now) as entries:
            known = entries.get(_digest(key))
            count = min(_MAX_COUNT, 1 + (0 if known is None else _count(known)))
            value = msgspec.json.encode(count)
            entries.put(Entry(_digest(key), value, since=now, until=now + FORGET_SECONDS))
            surplus = entries.count() - MAX_KEYS
            while surplus > 0 and (oldest := entries.oldest()) is not None:
                entries.remove(oldest.key)
                surplus -= 1

    def succeeded(self, key: str, now: float) -> None:
        """Clear the failures after a successful attempt."""
        with self._store.transaction(self._space, now) as entries:
            entries.remove(_digest(key))


def _count(entry: Entry) -> int:
    try:
        return msgspec.json.decode(entry.value, type=int)
    except msgspec.MsgspecError as error:
        raise SharedStoreError("a number of failures in the shared store is damaged") from error


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
