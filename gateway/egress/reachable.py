"""Selects one of several admitted addresses for Envoy: the first one that accepts connections.

Envoy connects to exactly one address (ADR 108). So if a name has several, this module tries them first. It tries one
after the other, and starts with the next one while the previous one has not answered yet (RFC 8305). If none answers,
as in an auth service without external network access, the first address is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from sluice.core import Address

NEXT_SECONDS = 0.25
"""Delay before the next address is tried in parallel."""
TRY_SECONDS = 2.0
"""How long all attempts together may take."""
MAX_TRIED = 8
KEPT_SECONDS = 10.0
"""How long a result is cached."""
MAX_KEPT = 10_000

Probe = Callable[[Address, int], Awaitable[None]]
"""Connects to an address and closes the connection. Raises OSError."""


async def connect_once(address: Address, port: int) -> None:
    """Open and close a TCP connection. Raises OSError."""
    _, writer = await asyncio.open_connection(str(address), port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class Reachable:
    """Selects a reachable address; see the module's documentation. For use in one event loop.

    Args:
        probe: tries one address.
        clock: monotonic clock in seconds.
    """

    def __init__(self, probe: Probe = connect_once, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._probe = probe
        self._clock = clock
        self._known: OrderedDict[tuple[tuple[Address, ...], int], tuple[Address, float]] = OrderedDict()
        self._asked: dict[tuple[tuple[Address, ...], int], asyncio.Task[Address]] = {}

    async def first(self, addresses: Sequence[Address], port: int) -> Address:
        """The first of ``addresses`` (at least one) that accepts connections on ``port``."""
        key = tuple(addresses[:MAX_TRIED]), port
        if len(key[0]) == 1:
            return addresses[0]
        known = self._known.get(key)
        if known is not None and self._clock() < known[1]:
            return known[0]
        asking = self._asked.get(key)
        if asking is None:
            asking = self._asked[key] = asyncio.create_task(self._find(*key))
            asking.add_done_callback(lambda _: self._asked.pop(key, None))
        return await asyncio.shield(asking)

    async def _find(self, addresses: tuple[Address, ...], port: int) -> Address:
        found = await self._race(addresses, port)
        key = addresses, port
        self._known.pop(key, None)
        self._known[key] = found or addresses[0], self._clock() + KEPT_SECONDS
        while len(self._known) > MAX_KEPT:
            self._known.popitem(last=False)
        return found or addresses[0]

    async def _race(self, addresses: Sequence[Address], port: int) -> Address | None:
        tries: dict[asyncio.Future[None], Address] = {}
        left = list(addresses)
        try:
            async with asyncio.timeout(TRY_SECONDS):
                while left or tries:
                    if left:
                        address = left.pop(0)
                        tries[asyncio.ensure_future(self._probe(address, port))] = address
                    done, _ = await asyncio.wait(
                        tries, timeout=NEXT_SECONDS if left else None, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        address = tries.pop(task)
                        if task.exception() is None:
                            return address
        except TimeoutError:
            return None
        finally:
            for task in tries:
                task.cancel()
            await asyncio.gather(*tries, return_exceptions=True)
        return None
