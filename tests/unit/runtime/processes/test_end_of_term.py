"""The end of a term of a JobManager."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from sluice.runtime.processes import jobmanager_term
from sluice.runtime.rpc import RpcService

PEERS = 50


async def test_all_connections_are_closed_at_the_same_time() -> None:
    """Each that cannot be reached takes a second or two. Here, each waits for all others."""
    together = asyncio.Barrier(PEERS)

    async def close(_reason: str) -> None:
        await together.wait()

    peers: tuple[Any, ...] = tuple(SimpleNamespace(close=close) for _ in range(PEERS))
    async with asyncio.timeout(30):
        await jobmanager_term._close_peers(cast("RpcService", SimpleNamespace(peers=lambda: peers)))
