"""Idle connections end when others need their places, and delay nobody."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import pytest

from sluice.pki.ca.enrolment_listener import EnrolmentListener
from sluice.pki.channels import Channel, server_policy
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import unverified_client_context
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.pki.conftest import Echo, StartServer
from tests.waiting import until

PLACES = 8
FOREVER_SECONDS = 3600.0
DEADLINE_SECONDS = 20.0


@contextlib.asynccontextmanager
async def idle(
    host: str, port: int, count: int, context: ssl.SSLContext | None = None
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Open ``count`` connections that send nothing but a TLS handshake if ``context`` is given."""
    opened = [await asyncio.open_connection(host, port, ssl=context) for _ in range(count)]
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the peer closes the connection."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        with contextlib.suppress(ConnectionError):
            return not await reader.read(1)
    return True


async def test_idle_connections_do_not_keep_a_peer_from_its_handshake(
    start_server: StartServer, pki: TestPki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.pki.tls.listener.MAX_CONCURRENT_HANDSHAKES", PLACES)
    server = await start_server(handshake_timeout=FOREVER_SECONDS)
    client = pki.process(Role.TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    async with idle(server.host, server.port, 3 * PLACES) as strangers:
        async with asyncio.timeout(DEADLINE_SECONDS):
            reader, writer = await asyncio.open_connection(server.host, server.port, ssl=client)
            writer.write(b"here")
            assert await reader.readexactly(4) == b"here"
        for stranger, _ in strangers[: 2 * PLACES]:
            assert await ended(stranger)
        await until(lambda: server.listener.refused >= 2 * PLACES, "the refusals were not counted")
        # Who is admitted gives way to nobody.
        async with idle(server.host, server.port, 3 * PLACES):
            await until(lambda: server.listener.refused >= 4 * PLACES, "strangers are displaced")
            writer.write(b"still")
            assert await reader.readexactly(5) == b"still"
        writer.close()


async def test_idle_strangers_at_the_enrolment_listener_give_way_to_others(pki: TestPki) -> None:
    """A handshake at this listener needs no certificate."""
    identity = pki.process(Role.CA)
    listener = EnrolmentListener(
        identity,
        type("EchoOfThisTest", (Echo,), {}),
        alpn=("http/1.1",),
        connection_seconds=FOREVER_SECONDS,
        max_connections=PLACES,
    )
    host, port = await listener.start("127.0.0.1", 0)
    context = unverified_client_context()
    context.set_alpn_protocols(["http/1.1"])
    try:
        async with idle(host, port, 2 * PLACES, context) as strangers, asyncio.timeout(DEADLINE_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.write(b"here")
            assert await reader.readexactly(4) == b"here"
            assert await ended(strangers[0][0])
            writer.close()
    finally:
        await listener.close()
