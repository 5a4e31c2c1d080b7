"""What strangers have begun and not ended: bounded in all and for each address, and nobody's is given up for another's.

Whoever begins one has not signed in yet, so anybody can fill all places. A limit for each address makes that dear, and
when all are taken, new ones are refused: who waits already, perhaps with a code in hand, can go on. No I/O.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

from sluice.pki.tls.pending_peers import network_of

_T = TypeVar("_T")


class TooManyWait(Exception):  # a state of affairs, answered with 429
    """There is no room for another one; ``retry_after`` is in seconds."""

    def __init__(self, what: str, retry_after: float) -> None:
        super().__init__(what)
        self.retry_after = retry_after


class Waiting(Generic[_T]):
    """By key; each is forgotten after its lifetime.

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
        """Take one in that was begun from ``address``; raises :class:`TooManyWait`."""
        self._expire(now)
        network = network_of(address)
        if self._per_network[network] >= self._limit_per_address:
            mine = next(began for _, each, began in self._open.values() if each == network)
            raise TooManyWait(f"{self._limit_per_address} of {network} are under way already", self._left(mine, now))
        if len(self._open) >= self._limit:
            _, _, began = next(iter(self._open.values()))
            raise TooManyWait(f"{self._limit} are under way already", self._left(began, now))
        self._open[key] = one, network, now
        self._per_network[network] += 1

    def get(self, key: str, now: float) -> _T | None:
        """The one with this key, unless it is over."""
        self._expire(now)
        found = self._open.get(key)
        return None if found is None else found[0]

    def pop(self, key: str, now: float) -> _T | None:
        """The same, which ends with it."""
        self._expire(now)
        return self._remove(key)

    def all(self, now: float) -> list[_T]:
        """All that are not over, the oldest first."""
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
