"""The end of a listener, whatever state its connections are in."""

from __future__ import annotations

import asyncio

from pki.channels import Channel, server_policy
from pki.identity import Role
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.pki.conftest import Echo, StartServer, until


async def test_a_connection_that_was_closed_twice_does_not_keep_its_listener_from_closing(
    pki: TestPki, start_server: StartServer
) -> None:
    server = await start_server()
    made: list[asyncio.Transport] = []

    def remember(_: Echo, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        made.append(transport)

    server.protocol.connection_made = remember  # type: ignore[method-assign]  the class is this test's own
    client = pki.process(Role.TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    _, writer = await asyncio.open_connection(server.host, server.port, ssl=client)
    await until(lambda: bool(made), "the connection is admitted")

    # As web servers do: once at the end of a request, once at their own.
    made[0].close()
    made[0].close()
    await server.listener.close()

    writer.close()
