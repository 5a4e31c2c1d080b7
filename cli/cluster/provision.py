"""TaskManagers on demand: start and stop them as the JobManager asks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from sluice.core import Home, SluiceError, read_body

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
MAX_HEALTH_BYTES = 1 << 20


async def read_health(home: Home) -> dict[str, Any]:
    """The health document of this home's leading JobManager.

    Raises ``OSError``, ``ValueError``, ``aiohttp.ClientError`` or :class:`~sluice.core.http_body.BodyTooLarge`.
    """
    connector = aiohttp.UnixConnector(str(home.sockets / "rest.sock"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://rest/v1/health", timeout=aiohttp.ClientTimeout(total=5)) as answer,
    ):
        document: dict[str, Any] = json.loads(await read_body(answer.content, MAX_HEALTH_BYTES))
        return document


def to_start(health: dict[str, Any], running: int) -> int:
    """How many TaskManagers to start when ``running`` of them run."""
    wanted = health.get("taskmanagers_wanted")
    if not isinstance(wanted, int):
        return 0
    return max(0, wanted - max(0, running - int(health.get("taskmanagers_draining", 0))))


def free_names(taken: set[str], count: int) -> list[str]:
    """The first unused names."""
    names: list[str] = []
    number = 1
    while len(names) < count:
        name = f"taskmanager-{number}"
        if name not in taken:
            names.append(name)
        number += 1
    return names


async def provide_forever(home: Home, running: Callable[[], set[str]], start: Callable[[str], Awaitable[None]]) -> None:
    """Start missing TaskManagers until cancelled; surplus ones leave by themselves."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            health = await read_health(home)
            for name in free_names(running(), to_start(health, len(running()))):
                await start(name)
        except (SluiceError, aiohttp.ClientError, OSError, ValueError) as error:
            _LOG.info("cannot look after TaskManagers now: %s", error)
