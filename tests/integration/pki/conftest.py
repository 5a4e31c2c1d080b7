"""A listener that echoes, behind mutual TLS, and the PKI around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sluice.pki.channels import Channel, client_policy
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.connections import ConnectionLog
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.listener import MutualTlsListener
from tests.hostile import TRUST_DOMAIN, TestPki

DEADLINE_SECONDS = 20.0


class Echo(asyncio.Protocol):
    """Sends back what it receives, counts the admitted peers, and keeps the connections."""

    admitted = 0
    connections: tuple[asyncio.Transport, ...] = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record that the listener has admitted a peer."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        type(self).admitted += 1
        type(self).connections += (transport,)

    def data_received(self, data: bytes) -> None:
        """Send the data back."""
        self.transport.write(data)


class Server:
    """A running rpc listener of a JobManager."""

    def __init__(self, pki: TestPki, identity: TlsIdentity, listener: MutualTlsListener, protocol: type[Echo]) -> None:
        self.pki = pki
        self.identity = identity
        self.listener = listener
        self.protocol = protocol
        self.connections = ConnectionLog()
        self.host = ""
        self.port = 0


StartServer = Callable[..., Awaitable[Server]]


@pytest.fixture
def pki(tmp_path: Path) -> TestPki:
    """A PKI of this test's own."""
    return TestPki(tmp_path)


@pytest.fixture
async def start_server(pki: TestPki) -> AsyncIterator[StartServer]:
    """Starts listeners and closes them at the end of the test."""
    running: list[MutualTlsListener] = []

    async def start(
        *, channel: Channel = Channel.RPC, job_id: str = "", alpn: tuple[str, ...] = (), handshake_timeout: float = 10.0
    ) -> Server:
        protocol = type("EchoOfThisTest", (Echo,), {"admitted": 0, "connections": ()})  # Echo itself may have counted
        identity = pki.process(Role.JOBMANAGER)
        connections = ConnectionLog()
        listener = MutualTlsListener(
            identity,
            channel,
            client_policy(channel, TRUST_DOMAIN, job_id=job_id),
            protocol,
            alpn=alpn,
            connections=connections,
            handshake_timeout=handshake_timeout,
        )
        server = Server(pki, identity, listener, protocol)
        server.connections = connections
        server.host, server.port = await listener.start("127.0.0.1", 0)
        running.append(listener)
        return server

    yield start
    for listener in running:
        await listener.close()
