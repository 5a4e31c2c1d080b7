"""What happens when the network or the other process dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sluice.runtime.rpc import PeerUnreachable, StreamTimeouts
from tests.integration.rpc.relay import Relay
from tests.integration.rpc.world import Echo, EchoGateway, World, jobmanager, taskmanager
from tests.waiting import until

PATIENT = StreamTimeouts(ping_interval=0.05, goodbye=0.2)
IMPATIENT = StreamTimeouts(hello=20.0, ping_interval=0.05, ping_timeout=2.0, goodbye=0.2)


class Relayed:
    """A server and a client with a relay between them."""

    def __init__(self, world: World, timeouts: StreamTimeouts) -> None:
        self.echo = Echo()
        self.server = world.service(jobmanager(), timeouts)
        self.client = world.service(taskmanager(), timeouts)
        self.relay: Relay

    async def start(self) -> None:
        await self.server.start(self.echo)
        self.relay = Relay(*await self.server.listen("127.0.0.1", 0))
        self.peer = await self.client.connect(*await self.relay.start())
        self.gateway = self.peer.gateway(EchoGateway, "echo")


@pytest_asyncio.fixture
async def relayed(world: World, request: pytest.FixtureRequest) -> AsyncIterator[Relayed]:
    made = Relayed(world, getattr(request, "param", PATIENT))
    await made.start()
    yield made
    await made.relay.close()


async def test_a_cut_connection_fails_pending_asks_at_once(relayed: Relayed) -> None:
    asking = asyncio.create_task(relayed.gateway.hang())
    await until(relayed.echo.hanging.is_set)
    relayed.relay.cut()
    with pytest.raises(PeerUnreachable, match="jobmanager/jm ended"):
        await asking
    await until(lambda: relayed.server.peers() == ())


@pytest.mark.parametrize("relayed", [IMPATIENT], indirect=True, ids=["impatient"])
async def test_a_half_open_connection_is_noticed_on_both_sides_by_missing_pongs(relayed: Relayed) -> None:
    """Nothing is reset and nothing arrives; only the missing answers to pings show it."""
    asking = asyncio.create_task(relayed.gateway.hang())
    await until(relayed.echo.hanging.is_set)
    relayed.relay.freeze()
    with pytest.raises(PeerUnreachable, match="no sign of life"):
        await asking
    await until(lambda: relayed.server.peers() == ())


@pytest.mark.parametrize("relayed", [IMPATIENT], indirect=True, ids=["impatient"])
async def test_an_idle_connection_is_kept_alive_by_pings(relayed: Relayed) -> None:
    heard = [asyncio.create_task(relayed.peer.wait_closed())]
    await asyncio.wait(heard, timeout=1.5 * IMPATIENT.ping_timeout)
    assert not relayed.peer.closed
    assert await relayed.gateway.add(1) == 2
    heard[0].cancel()


async def test_a_client_reconnects_after_a_cut_and_calls_again(relayed: Relayed) -> None:
    relayed.relay.cut()
    await relayed.peer.wait_closed()
    again = await relayed.client.connect(*relayed.relay.address)
    assert await again.gateway(EchoGateway, "echo").add(1) == 2
