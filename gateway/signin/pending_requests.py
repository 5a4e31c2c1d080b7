"""Pending requests of callers that have not signed in yet, bounded in total and per address.

Any client can begin a request, so a client could exhaust the total limit; the limit per address makes this expensive.
When a limit is reached, new requests are refused. Pending requests, whose users may be entering a code, are never
dropped.

The requests are in the store that all auth services share, so any auth service can complete a request that another one
began, and each is completed once. All methods wait for a disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from sluice.gateway.errors import SharedStoreError
from sluice.gateway.shared_store import Entry, SharedStore
from sluice.pki.tls import network_of

_T = TypeVar("_T", bound=msgspec.Struct)


class TooManyPending(Exception):  # answered with 429
    """A limit of pending requests is reached; ``retry_after`` is in seconds."""

    def __init__(self, what: str, retry_after: float) -> None:
        super().__init__(what)
        self.retry_after = retry_after


class PendingRequests(Generic[_T]):
    """Pending requests by key; each expires after its lifetime. The store contains only digests of keys.

    Args:
        store: the shared store.
        space: the name of their space in the store.
        kind: their type.
        lifetime: in seconds.
        limit: maximum number in total.
        limit_per_address: maximum number per address (IPv6: per /64 network).
    """

    def __init__(
        self, store: SharedStore, space: str, kind: type[_T], *, lifetime: float, limit: int, limit_per_address: int
    ) -> None:
        self._store = store
        self._space = space
        self._kind = kind
        self._lifetime = lifetime
        self._limit = limit
        self._limit_per_address = limit_per_address

    def add(self, key: str, one: _T, address: str, now: float) -> None:
        """Add a request from ``address``; raises :class:`TooManyPending`."""
        network = network_of(address)
        with self._store.transaction(self._space, now) as entries:
            if entries.count(network) >= self._limit_per_address:
                raise TooManyPending(
                    f"{self._limit_per_address} requests of {network} are pending already",
                    self._left(entries.oldest(network), now),
                )
            if entries.count() >= self._limit:
                raise TooManyPending(f"{self._limit} requests are pending already", self._left(entries.oldest(), now))
            value = msgspec.json.encode(one)
            entries.put(Entry(_digest(key), value, since=now, until=now + self._lifetime, group=network))

    def get(self, key: str, now: float) -> _T | None:
        """The request with this key, unless it has expired."""
        with self._store.transaction(self._space, now) as entries:
            found = entries.get(_digest(key))
        return None if found is None else self._decode(found)

    def pop(self, key: str, now: float) -> _T | None:
        """Remove and return the request with this key, unless it has expired. Only one of several callers gets it."""
        with self._store.transaction(self._space, now) as entries:
            found = entries.get(_digest(key))
            entries.remove(_digest(key))
        return None if found is None else self._decode(found)

    def change(self, key: str, change: Callable[[_T], _T | None], now: float) -> _T | None:
        """Replace the request with this key by the result of ``change`` (None removes it); returns the old one."""
        with self._store.transaction(self._space, now) as entries:
            found = entries.get(_digest(key))
            if found is None:
                return None
            before = self._decode(found)
            self._replace(entries.put, entries.remove, found, change(before))
        return before

    def change_first(self, wanted: Callable[[_T], bool], change: Callable[[_T], _T | None], now: float) -> _T | None:
        """Like :meth:`change`, for the oldest request for which ``wanted`` is true; returns the old one, or None."""
        with self._store.transaction(self._space, now) as entries:
            for found in entries.entries():
                before = self._decode(found)
                if wanted(before):
                    self._replace(entries.put, entries.remove, found, change(before))
                    return before
        return None

    def all(self, now: float) -> list[_T]:
        """All pending requests, the oldest first."""
        with self._store.transaction(self._space, now) as entries:
            return [self._decode(each) for each in entries.entries()]

    @staticmethod
    def _replace(
        put: Callable[[Entry], None], remove: Callable[[str], None], found: Entry, changed: msgspec.Struct | None
    ) -> None:
        if changed is None:
            remove(found.key)
        else:
            value = msgspec.json.encode(changed)
            put(Entry(found.key, value, since=found.since, until=found.until, group=found.group))

    def _decode(self, entry: Entry) -> _T:
        try:
            return msgspec.json.decode(entry.value, type=self._kind)
        except msgspec.MsgspecError as error:
            raise SharedStoreError(
                f"an entry of {self._space} in the shared store is damaged: {error}", "it expires within minutes"
            ) from error

    def _left(self, oldest: Entry | None, now: float) -> float:
        return max(1.0, (now if oldest is None else oldest.until) - now)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
