"""Names of destinations to addresses, by c-ares as in Envoy, without blocking and within a bounded time."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import aiodns
from aiodns.error import DNSError

from sluice.core import SluiceError

QUERY_SECONDS = 2.0
"""Before a server is asked again, or the next one."""
TRIES = 2
MAX_ADDRESSES = 32


class NameUnresolved(SluiceError):
    """A name that does not exist, or that no server tells."""


class Resolver(Protocol):
    """Whoever knows the addresses of names."""

    async def addresses(self, name: str) -> tuple[str, ...]:
        """All of them, IPv4 first; raises :class:`NameUnresolved`."""
        ...


class DnsResolver:
    """Asks DNS servers; those of this machine, and its hosts file, unless others are given.

    Args:
        nameservers: addresses, each with a port if it is not 53.
    """

    def __init__(self, nameservers: Sequence[str] = ()) -> None:
        self._resolver = aiodns.DNSResolver(list(nameservers) or None, timeout=QUERY_SECONDS, tries=TRIES, domains=[])

    async def addresses(self, name: str) -> tuple[str, ...]:
        """All of them, IPv4 first; raises :class:`NameUnresolved`."""
        try:
            # The dot at the end: a name is never completed by a domain of this machine.
            found = await self._resolver.getaddrinfo(f"{name}.", family=socket.AF_UNSPEC, type=socket.SOCK_STREAM)
        except DNSError as error:
            reason = str(error.args[1]) if len(error.args) > 1 else str(error)
            raise NameUnresolved(f"{name} is not resolved: {reason}") from error
        by_family = sorted(found.nodes, key=lambda node: node.family != socket.AF_INET)
        addresses = tuple(dict.fromkeys(_text(node.addr[0]) for node in by_family))
        if not addresses:
            raise NameUnresolved(f"{name} has no address")
        return addresses[:MAX_ADDRESSES]

    async def close(self) -> None:
        """Give up what is under way."""
        await self._resolver.close()


@contextlib.asynccontextmanager
async def resolving(nameservers: Sequence[str]) -> AsyncIterator[DnsResolver]:
    """A resolver that is closed at the end."""
    resolver = DnsResolver(nameservers)
    try:
        yield resolver
    finally:
        await resolver.close()


def _text(address: bytes | str) -> str:
    return address.decode("ascii", "replace") if isinstance(address, bytes) else address
