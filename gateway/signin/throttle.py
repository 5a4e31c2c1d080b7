"""Guessing is slow: after a few failures a key has to wait, longer each time. Times are passed in.

Failures are in the store that all auth services share: asking another one does not give anybody more guesses.
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
"""More make no difference."""


class Throttle:
    """Failures by key (a name and an address, say), the oldest forgotten when there are too many.

    ``space`` is the name of their space in the store, which has only digests of keys: somebody may have typed a
    password where a name belongs.
    """

    def __init__(self, store: SharedStore, space: str, free: int = FREE_FAILURES) -> None:
        self._store = store
        self._space = space
        self._free = free

    def wait(self, key: str, now: float) -> float:
        """Seconds until the next try counts; 0: it may be now."""
        with self._store.transaction(self._space, now) as entries:
            entry = entries.get(_digest(key))
        if entry is None or (count := _count(entry)) < self._free:
            return 0.0
        return max(0.0, entry.since + min(MAX_WAIT_SECONDS, 2.0 ** (count - self._free)) - now)

    def failed(self, key: str, now: float) -> None:
        """A try has failed."""
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
        """A try was right: the slate is clean."""
        with self._store.transaction(self._space, now) as entries:
            entries.remove(_digest(key))


def _count(entry: Entry) -> int:
    try:
        return msgspec.json.decode(entry.value, type=int)
    except msgspec.MsgspecError as error:
        raise SharedStoreError("a number of failures in the shared store is damaged") from error


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
