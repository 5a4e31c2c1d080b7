"""Requests that callers have begun before they sign in: bounded in total and for each address. No I/O.

Anybody can begin one, so anybody could fill all places. A limit for each address makes that expensive. When all places
are taken, new requests are refused; pending ones, whose users may be entering a code, are never dropped for them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

from sluice.pki.tls import network_of

_T = TypeVar("_T")


class TooManyPending(Exception):  # answered with 429
    """No place is free for another request; ``retry_after`` is in seconds."""

    def __init__(self, what: str, retry_after: float) -> None:
        super().__init__(what)
        self.retry_after = retry_after


class PendingRequests(Generic[_T]):
    """Pending requests by key; each expires after its lifetime.

    Args:
        lifetime: in seconds.
        limit: of all together.
        limit_per_address: of one address (IPv6: of one /64 network).
    """

    def __init__(self, lifetime: float, limit: int, limit_per_address: int) -> None:
        self._lifetime = lifetime
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._open: OrderedDict[str, tuple[_T, str, float]] = OrderedDict()
        self._per_network: Counter[str] = Counter()

    def add(self, key: str, one: _T, address: str, now: float) -> None:
        """Add a request that was begun from ``address``; raises :class:`TooManyPending`."""
        self._expire(now)
        network = network_of(address)
        if self._per_network[network] >= self._limit_per_address:
            mine = next(began for _, each, began in self._open.values() if each == network)
            raise TooManyPending(f"{self._limit_per_address} of {network} are under way already", self._left(mine, now))
        if len(self._open) >= self._limit:
            _, _, began = next(iter(self._open.values()))
            raise TooManyPending(f"{self._limit} are under way already", self._left(began, now))
        self._open[key] = one, network, now
        self._per_network[network] += 1

    def get(self, key: str, now: float) -> _T | None:
        """The request with this key, unless it has expired."""
        self._expire(now)
        found = self._open.get(key)
        return None if found is None else found[0]

    def pop(self, key: str, now: float) -> _T | None:
        """Remove and return the request with this key, unless it has expired."""
        self._expire(now)
        return self._remove(key)

    def all(self, now: float) -> list[_T]:
        """All pending requests, the oldest first."""
        self._expire(now)
        return [one for one, _, _ in self._open.values()]

    def _left(self, began: float, now: float) -> float:
        return max(1.0, began + self._lifetime - now)

    def _expire(self, now: float) -> None:
        while self._open:
            key, (_, _, began) = next(iter(self._open.items()))
            if now - began <= self._lifetime:
                return
            self._remove(key)

    def _remove(self, key: str) -> _T | None:
        found = self._open.pop(key, None)
        if found is None:
            return None
        one, network, _ = found
        self._per_network[network] -= 1
        if not self._per_network[network]:
            del self._per_network[network]
        return one
