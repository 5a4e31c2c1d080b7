"""Sessions that outlive their stream: order is kept, nothing is lost, nothing happens twice; and who may not resume."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sluice.pki.channels import Channel, server_policy
from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.rpc import Patience, PeerUnreachable, RemotePeer
from sluice.runtime.rpc import envelope as wire
from sluice.runtime.rpc.line import MAX_SESSIONS_PER_PEER
from sluice.runtime.rpc.transport import ALPN, dial
from tests.hostile import TRUST_DOMAIN
from tests.integration.rpc.relay import Relay
from tests.integration.rpc.test_broken_peers import Raw
from tests.integration.rpc.world import Echo, EchoGateway, World, eventually, jobmanager, taskmanager

LASTING = Patience(hello=5.0, ping_interval=0.2, ping_timeout=1.0, goodbye=0.5, resume=20.0)
SESSION = b"s" * wire.SESSION_BYTES
HELLO = wire.Hello(wire.PROTOCOL_VERSION, SESSION)


class Lasting:
    """A server and a client, both patient, with a relay between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.echo = Echo()
        self.server = world.service(jobmanager(), LASTING)
        self.client = world.service(taskmanager(), LASTING)
        self.relay: Relay
        self.address = ("", 0)
        self.peer: RemotePeer
        self.raws: list[Raw] = []

    async def start(self) -> None:
        await self.server.start(self.echo)
        self.address = await self.server.listen("127.0.0.1", 0)
        self.relay = Relay(*self.address)
        self.peer = await self.client.connect(*await self.relay.start())
        self.gateway = self.peer.gateway(EchoGateway, "echo")

    async def raw(self, *envelopes: wire.Envelope, identity: SpiffeId | None = None) -> Raw:
        """A peer that sends what it likes."""
        context = self.world.pki.identity(identity or taskmanager("raw")).client_context(
            server_policy(Channel.RPC, TRUST_DOMAIN), alpn=ALPN
        )
        stream, _ = await dial(*self.address, context)
        raw = Raw(stream)
        stream.attach(raw)
        self.raws.append(raw)
        await raw.send(*envelopes)
        return raw

    async def close(self) -> None:
        for raw in self.raws:
            raw.stream.abort()
            await raw.stream.gone()
        await self.relay.close()


@pytest_asyncio.fixture
async def lasting(world: World) -> AsyncIterator[Lasting]:
    made = Lasting(world)
    await made.start()
    yield made
    await made.close()


async def test_order_is_kept_and_nothing_happens_twice_however_often_the_network_breaks(lasting: Lasting) -> None:
    dice = random.Random(7)  # noqa: S311  # no secret
    sent = 0
    for _ in range(12):
        asks: list[asyncio.Task[int | None]] = []
        for _ in range(60):  # tasks begin in the order in which they are made
            asks.append(asyncio.create_task(lasting.gateway.note(sent)))
            asks.append(asyncio.create_task(lasting.gateway.record(sent + 1)))
            sent += 2
            if dice.random() < 0.1:
                await asyncio.sleep(0)
        await asyncio.sleep(dice.random() * 0.01)
        lasting.relay.cut()
        assert (await asyncio.gather(*asks))[1::2] == list(range(sent - 119, sent, 2))
    assert await lasting.gateway.notes() == tuple(range(sent))
    assert len(lasting.server.peers()) == 1
    assert not lasting.peer.closed


async def test_a_pending_ask_survives_and_its_cancellation_reaches_the_other_side(lasting: Lasting) -> None:
    asking = asyncio.create_task(lasting.gateway.hang())
    await eventually(lasting.echo.hanging.is_set)
    lasting.relay.cut()
    asking.cancel()
    await eventually(lasting.echo.hang_cancelled.is_set)


async def test_a_half_open_connection_is_replaced(lasting: Lasting) -> None:
    """Nothing is reset and nothing arrives: the client notices first, and comes back while the server still waits."""
    lasting.relay.freeze()
    asking = asyncio.create_task(lasting.gateway.record(1))
    await eventually(lambda: lasting.peer.suspended)
    lasting.relay.thaw()
    assert await asking == 1
    assert await lasting.gateway.notes() == (1,)


async def test_the_session_ends_when_nobody_comes_back_in_time(world: World) -> None:
    server = world.service(jobmanager(), Patience(resume=0.2))
    client = world.service(taskmanager(), Patience(resume=0.2))
    relay = Relay(*await server.listen("127.0.0.1", 0))
    peer = await client.connect(*await relay.start())
    asking = asyncio.create_task(peer.gateway(EchoGateway, "nobody").hang())
    await relay.close()
    await peer.wait_closed()
    with pytest.raises(PeerUnreachable):
        await asking
    await eventually(lambda: server.peers() == ())


async def test_a_server_that_forgot_the_session_ends_it(lasting: Lasting) -> None:
    """As after a restart: going on as if nothing had happened would lose calls."""
    for line in list(lasting.server._sessions._lines[taskmanager()].values()):
        lasting.server._sessions.discard(line)
    lasting.relay.cut()
    await lasting.peer.wait_closed()
    with pytest.raises(PeerUnreachable, match="does not know this session"):
        await lasting.gateway.add(1)


async def test_goodbye_ends_a_session_for_good(lasting: Lasting) -> None:
    await lasting.peer.close()
    await eventually(lambda: lasting.server.peers() == ())
    assert len(lasting.server._sessions) == 0


async def test_one_side_that_does_not_grant_sessions_is_enough_to_have_none(world: World) -> None:
    server = world.service(jobmanager())
    relay = Relay(*await server.listen("127.0.0.1", 0))
    client = world.service(taskmanager(), LASTING)
    peer = await client.connect(*await relay.start())
    relay.cut()
    await peer.wait_closed()
    await eventually(lambda: server.peers() == ())
    await relay.close()


async def test_another_identity_cannot_take_a_session_over(lasting: Lasting) -> None:
    mine = await lasting.raw(HELLO)
    await eventually(lambda: HELLO in mine.received)
    thief = await lasting.raw(wire.Hello(wire.PROTOCOL_VERSION, SESSION, True, 0), identity=taskmanager("thief"))
    await eventually(lambda: thief.ended != [])
    assert thief.received == [wire.Hello(wire.PROTOCOL_VERSION)]  # a greeting without a session
    await mine.send(wire.Ping())
    await eventually(lambda: wire.Pong() in mine.received)


@pytest.mark.parametrize(
    "hello",
    [
        pytest.param(wire.Hello(wire.PROTOCOL_VERSION, SESSION), id="begin-what-exists"),
        pytest.param(wire.Hello(wire.PROTOCOL_VERSION, SESSION, True, 99), id="received-what-was-never-sent"),
        pytest.param(wire.Hello(wire.PROTOCOL_VERSION, b"t" * 16, True, 0), id="resume-what-never-was"),
        pytest.param(wire.Hello(wire.PROTOCOL_VERSION, b"t" * 16, False, 5), id="a-past-without-a-session"),
    ],
)
async def test_a_false_claim_about_the_past_costs_its_own_stream_only(lasting: Lasting, hello: wire.Hello) -> None:
    honest = await lasting.raw(HELLO)
    await eventually(lambda: HELLO in honest.received)
    liar = await lasting.raw(hello)
    await eventually(lambda: liar.ended != [])
    await honest.send(wire.Ping())
    await eventually(lambda: wire.Pong() in honest.received)


async def test_an_acknowledgement_that_goes_back_is_a_violation(lasting: Lasting) -> None:
    """Replayed numbers: what was acknowledged is not kept any more, and cannot be asked for again."""
    raw = await lasting.raw(HELLO)
    await raw.send(*(wire.Call(n, "echo", "record", None, wire_arguments(n)) for n in range(1, 4)))
    await eventually(lambda: sum(isinstance(each, wire.Reply) for each in raw.received) == 3)
    await raw.send(wire.Received(3))
    await raw.send(wire.Received(1))
    await eventually(lambda: raw.ended != [])


async def test_calls_sent_again_after_they_arrived_are_a_violation(lasting: Lasting) -> None:
    """A peer that replays, instead of going on where the other side stopped."""
    first = await lasting.raw(HELLO)
    calls = [wire.Call(n, "echo", "record", None, wire_arguments(n)) for n in range(1, 4)]
    await first.send(*calls)
    await eventually(lambda: lasting.echo.seen == [1, 2, 3])
    first.stream.abort()
    again = await lasting.raw(wire.Hello(wire.PROTOCOL_VERSION, SESSION, True, 0))
    await eventually(lambda: wire.Hello(wire.PROTOCOL_VERSION, SESSION, True, 3) in again.received)
    assert sum(isinstance(each, wire.Reply) for each in again.received) <= 3
    await again.send(*calls)
    await eventually(lambda: again.ended != [])
    assert lasting.echo.seen == [1, 2, 3]


async def test_one_identity_has_a_bounded_number_of_sessions(lasting: Lasting) -> None:
    raws = [
        await lasting.raw(wire.Hello(wire.PROTOCOL_VERSION, bytes([number]) * 16))
        for number in range(MAX_SESSIONS_PER_PEER + 1)
    ]
    await eventually(lambda: all(any(isinstance(e, wire.Hello) for e in raw.received) for raw in raws))
    granted = [next(e for e in raw.received if isinstance(e, wire.Hello)).session != b"" for raw in raws]
    assert granted == [True] * MAX_SESSIONS_PER_PEER + [False]


def wire_arguments(number: int) -> bytes:
    return bytes([0x91, number])
