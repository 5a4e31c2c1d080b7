"""Reading server-sent events in tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from sluice.core.home import Home
from tests.assertions import AssertingGateway

DEADLINE_SECONDS = 30.0


@dataclass
class Event:
    """One server-sent event."""

    name: str
    data: Any
    id: str


@dataclass
class Events:
    """An open stream of server-sent events."""

    response: aiohttp.ClientResponse

    async def next(self) -> Event | None:
        """The next event; None when the stream has ended."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(DEADLINE_SECONDS):
            while line := await self.response.content.readline():
                text = line.decode().rstrip("\n")
                if text and not text.startswith(":"):
                    name, _, value = text.partition(": ")
                    fields[name] = value
                elif not text and "event" in fields:
                    return Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
        return None

    async def until(self, name: str) -> Event:
        """The next event with this name."""
        while (event := await self.next()) is not None:
            if event.name == name:
                return event
        raise AssertionError(f"the stream ended without {name}")

    async def rest(self) -> list[Event]:
        """Return all events until the stream ends."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


@contextlib.asynccontextmanager
async def listening(home: Home, path: str, *who: str, **headers: str) -> AsyncIterator[Events]:
    """Open the stream ``path`` at the REST socket of ``home``."""
    connector = aiohttp.UnixConnector(str(home.sockets / "rest.sock"))
    signed = AssertingGateway(home).headers("GET", path, *who)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"http://rest{path}", headers=signed | headers) as response,
    ):
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        yield Events(response)
