"""Unauthenticated connections, and which of them to close when there are too many.

No I/O. If new peers had to wait for a free place, strangers could make them wait for ever. So a new connection takes
the place of the oldest one of the network with the most. A flood displaces itself, and a peer that does its handshake
at once is done before its turn comes.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

IPV6_PREFIX_BITS = 64
"""Prefix length of an IPv6 network whose addresses one host can use."""

_T = TypeVar("_T", bound=Hashable)


def network_of(host: str) -> str:
    """The unit that limits apply to: an IPv4 address, or the network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_PREFIX_BITS), strict=False))


class PendingPeers(Generic[_T]):
    """A bounded set of pending peers; not thread-safe.

    Args:
        limit: most at the same time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._networks: dict[_T, str] = {}
        self._by_network: dict[str, dict[_T, int]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._networks)

    def __iter__(self) -> Iterator[_T]:
        return iter(self._networks)

    def add(self, peer: _T, host: str) -> _T | None:
        """Add a peer from ``host``; returns the one to close, if any."""
        network = network_of(host)
        self._networks[peer] = network
        self._by_network.setdefault(network, {})[peer] = next(self._numbers)
        if len(self._networks) <= self._limit:
            return None
        # Of the networks with the most peers, the one whose first peer came first.
        most = max(self._by_network.values(), key=lambda peers: (len(peers), -next(iter(peers.values()))))
        gone = next(iter(most))
        self.discard(gone)
        return gone

    def discard(self, peer: _T) -> None:
        """Remove a peer that is authenticated, or gone."""
        network = self._networks.pop(peer, None)
        if network is not None:
            peers = self._by_network[network]
            del peers[peer]
            if not peers:
                del self._by_network[network]
