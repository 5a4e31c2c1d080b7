"""Closing a listener, whatever state its connections are in."""

from __future__ import annotations

import asyncio

from sluice.pki.channels import Channel, server_policy
from sluice.pki.spiffe_id import Role
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.pki.conftest import StartServer
from tests.waiting import until


async def test_a_connection_that_was_closed_twice_does_not_keep_its_listener_from_closing(
    pki: TestPki, start_server: StartServer
) -> None:
    server = await start_server()
    client = pki.process(Role.TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    _, writer = await asyncio.open_connection(server.host, server.port, ssl=client)
    await until(lambda: bool(server.protocol.connections), "the connection is admitted")

    # As web servers do: once at the end of a request, once at their own.
    server.protocol.connections[0].close()
    server.protocol.connections[0].close()
    await server.listener.close()

    writer.close()
