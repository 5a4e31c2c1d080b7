"""Where a job's processes and shuffle workers listen. The JobMaster is asked when a sandbox connects to a port.

An answer is cached for seconds. While no JobMaster answers, as between two leaders, it is used for minutes, so that
executors can still talk to each other.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sluice.core import ANY_PORT, SluiceError, is_ip_address

FRESH_SECONDS = 5.0
NOBODY_SECONDS = 0.5
"""How long an answer that nobody listens on a port is cached."""
STALE_SECONDS = 600.0
"""How long an answer is used while the JobMaster gives no new one."""
MAX_PORTS = 4096
MAX_NAMES = 4096
RESOLVED_SECONDS = 30.0

_LOG = logging.getLogger(__name__)
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
AskHosts = Callable[[int], Awaitable[tuple[str, ...]]]


@dataclass(slots=True)
class _Answer:
    hosts: frozenset[str]
    at: float


async def _resolve(host: str) -> frozenset[Address]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return frozenset(ipaddress.ip_address(each[4][0]) for each in found)


def asked_in(loop: asyncio.AbstractEventLoop, ask: AskHosts) -> AskHosts:
    """A function for another event loop that runs ``ask`` in ``loop``."""

    async def here(port: int) -> tuple[str, ...]:
        async def asked() -> tuple[str, ...]:
            return await ask(port)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked(), loop))

    return here


class KnownListeners:
    """Where the processes of a job listen, according to its JobMaster. For one event loop.


    Args:
        ask: returns the hosts on which processes of the job listen on a port; raises :class:`SluiceError` or OSError.
        resolve: returns the addresses of a host name; raises OSError.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self,
        ask: AskHosts,
        *,
        resolve: Callable[[str], Awaitable[frozenset[Address]]] = _resolve,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._resolve_host = resolve
        self._clock = clock
        self._answers: dict[int, _Answer] = {}
        self._asked: dict[int, asyncio.Task[frozenset[str]]] = {}
        self._resolved: dict[str, tuple[frozenset[Address], float]] = {}

    async def find(self, host: Address | str, port: int) -> Address | None:
        """The address of the job's process that listens on ``port`` of ``host``; None if there is none.


        Args:
            host: a name, as the program gave it, or an address.
            port: a TCP port.
        """
        hosts = await self._hosts(port)
        if isinstance(host, str):
            return min(await self._addresses(host), key=_rank, default=None) if host.lower() in hosts else None
        literal, names = str(host), [each for each in hosts if not is_ip_address(each)]
        if literal in hosts:
            return host
        for name in names:
            if host in await self._addresses(name):
                return host
        return None

    async def has_host(self, name: str) -> bool:
        """Whether a process of the job listens on the host ``name``."""
        return name.lower() in await self._hosts(ANY_PORT, expected=name.lower())

    async def _hosts(self, port: int, *, expected: str = "") -> frozenset[str]:
        """The hosts for ``port``. A cached answer without ``expected`` expires sooner: that host may be new."""
        known, now = self._answers.get(port), self._clock()
        if known is not None:
            found = expected in known.hosts if expected else bool(known.hosts)
            if now - known.at < (FRESH_SECONDS if found else NOBODY_SECONDS):
                return known.hosts
        asking = self._asked.get(port)
        if asking is None:
            asking = self._asked[port] = asyncio.ensure_future(self._answer(port))
            asking.add_done_callback(lambda _: self._asked.pop(port, None))
        return await asyncio.shield(asking)

    async def _answer(self, port: int) -> frozenset[str]:
        try:
            hosts = frozenset(each.lower() for each in await self._ask(port))
        except (SluiceError, OSError, TimeoutError) as error:
            known = self._answers.get(port)
            _LOG.info("cannot ask the JobMaster who listens on port %d: %s", port, error)
            return known.hosts if known is not None and self._clock() - known.at < STALE_SECONDS else frozenset()
        self._answers.pop(port, None)  # keeps the oldest answer first
        self._answers[port] = _Answer(hosts, self._clock())
        while len(self._answers) > MAX_PORTS:
            del self._answers[next(iter(self._answers))]
        return hosts

    async def _addresses(self, host: str) -> frozenset[Address]:
        if is_ip_address(host):
            return frozenset({ipaddress.ip_address(host)})
        known = self._resolved.get(host)
        if known is not None and self._clock() - known[1] < RESOLVED_SECONDS:
            return known[0]
        try:
            found = await self._resolve_host(host)
        except (OSError, UnicodeError):
            return known[0] if known is not None else frozenset()
        if len(self._resolved) >= MAX_NAMES:
            self._resolved.clear()
        self._resolved[host] = (found, self._clock())
        return found


def _rank(address: Address) -> tuple[int, int]:
    return address.version, int(address)
