"""A client of Envoy's admin interface on a Unix socket."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import aiohttp

from sluice.core import BodyTooLarge, read_body
from sluice.gateway.errors import EnvoyFailed

EDGE_LISTENER = "edge"
POLL_SECONDS = 0.2
MAX_ANSWER_BYTES = 64 << 20
"""A dump of the whole configuration grows with the number of routes and revoked ids."""
GONE_AFTER = 5
"""Number of consecutive unanswered requests after which an externally started Envoy counts as ended."""


class EnvoyAdmin:
    """The admin interface of one Envoy.

    Attributes:
        pid: the process under whose pid the loaded certificates are reported.
    """

    def __init__(self, socket: Path, pid: int) -> None:
        """``socket`` is the Unix socket of the admin interface."""
        self._socket = socket
        self.pid = pid

    async def ask(self, query: str) -> object:
        """Send a query and decode its JSON response; raises :class:`EnvoyFailed`."""
        try:
            async with self._session() as session, session.get(f"http://admin/{query}") as answer:
                return json.loads(await read_body(answer.content, MAX_ANSWER_BYTES))
        except (aiohttp.ClientError, OSError, TimeoutError, BodyTooLarge, ValueError) as error:
            raise EnvoyFailed(f"Envoy does not answer to {query}: {error or type(error).__name__}") from error

    async def reopen_logs(self) -> None:
        """Make Envoy reopen its log files, after they were rotated; raises :class:`EnvoyFailed`."""
        try:
            async with self._session() as session, session.post("http://admin/reopen_logs") as answer:
                if answer.status != 200:
                    raise EnvoyFailed(f"Envoy does not reopen its logs: status {answer.status}")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EnvoyFailed(f"Envoy does not reopen its logs: {error or type(error).__name__}") from error

    async def until_listening(self, listener: str) -> int:
        """Wait until all workers have this ``listener``, then return its port."""
        while True:
            if port := await self.serving_port(listener):
                return port
            await asyncio.sleep(POLL_SECONDS)

    async def serving_port(self, wanted: str = EDGE_LISTENER) -> int:
        """The port of a listener when all workers have it, otherwise 0."""
        try:
            async with self._session() as session:
                async with session.get("http://admin/ready") as answer:
                    if answer.status != 200:
                        return 0
                async with session.get("http://admin/listeners?format=json") as answer:
                    document = json.loads(await read_body(answer.content, MAX_ANSWER_BYTES))
        except (aiohttp.ClientError, OSError, TimeoutError, BodyTooLarge, ValueError):
            return 0
        for listener in document.get("listener_statuses", []):
            if listener.get("name") == wanted:
                return int(listener["local_address"]["socket_address"]["port_value"])
        return 0

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.UnixConnector(str(self._socket))
        return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=2))


class ExternalEnvoy(EnvoyAdmin):
    """An Envoy that this process does not start, for example in another container."""

    def __init__(self, socket: Path) -> None:
        """``socket`` of the admin interface is in a directory that both processes share."""
        super().__init__(socket, os.getpid())

    async def until_serving(self) -> int:
        """Wait without a timeout until Envoy serves, then return its port."""
        while True:
            if port := await self.serving_port():
                return port
            await asyncio.sleep(POLL_SECONDS)

    async def until_gone(self) -> None:
        """Wait until Envoy stops answering."""
        missed = 0
        while missed < GONE_AFTER:
            await asyncio.sleep(POLL_SECONDS)
            missed = 0 if await self.serving_port() else missed + 1
