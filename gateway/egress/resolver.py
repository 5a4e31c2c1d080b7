"""Resolves host names with c-ares, like Envoy does, without blocking and with a time limit."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import aiodns
from aiodns.error import DNSError

from sluice.core import SluiceError

QUERY_SECONDS = 2.0
"""Timeout of a query, before the server is asked again or the next one is tried."""
TRIES = 2
MAX_ADDRESSES = 32


class NameUnresolved(SluiceError):
    """The name does not exist, or no server answers."""


class Resolver(Protocol):
    """Resolves host names."""

    async def addresses(self, name: str) -> tuple[str, ...]:
        """All addresses, IPv4 first. Raises :class:`NameUnresolved`."""
        ...


class DnsResolver:
    """Uses DNS servers. By default it uses the system's servers and hosts file.

    Args:
        nameservers: addresses of DNS servers, with a port if it is not 53.
    """

    def __init__(self, nameservers: Sequence[str] = ()) -> None:
        self._resolver = aiodns.DNSResolver(list(nameservers) or None, timeout=QUERY_SECONDS, tries=TRIES, domains=[])

    async def addresses(self, name: str) -> tuple[str, ...]:
        """All addresses, IPv4 first. Raises :class:`NameUnresolved`."""
        try:
            # The trailing dot keeps the system's search domains from being appended.
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
        """Cancel pending queries."""
        await self._resolver.close()


@contextlib.asynccontextmanager
async def resolving(nameservers: Sequence[str]) -> AsyncIterator[DnsResolver]:
    """A resolver that is closed at the end of the context."""
    resolver = DnsResolver(nameservers)
    try:
        yield resolver
    finally:
        await resolver.close()


def _text(address: bytes | str) -> str:
    return address.decode("ascii", "replace") if isinstance(address, bytes) else address
