"""Which peers are refused on the RPC channel, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from sluice.core.errors import PeerRefused
from sluice.pki.channels import Channel, server_policy
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.rpc import PeerUnreachable
from sluice.runtime.rpc.transport.grpc_stream import ALPN
from tests.free_ports import free_port
from tests.hostile import HOSTILE_CLIENTS, HOSTILE_SERVERS, TRUST_DOMAIN, Hostile, answer_of, assert_refused
from tests.integration.rpc.world import JOB, Pair, World, jobmanager, taskmanager

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def test_an_admitted_client_is_answered(pair: Pair) -> None:
    context = pair.client.identity.client_context(server_policy(Channel.RPC, TRUST_DOMAIN), alpn=ALPN)
    assert await answer_of(*pair.address, context, hello=PREFACE) != b""


@pytest.mark.parametrize("case", HOSTILE_CLIENTS)
async def test_a_hostile_client_is_refused_and_disturbs_nobody(pair: Pair, case: Hostile) -> None:
    hostile = pair.world.pki.hostile(case, pretending=taskmanager())
    await assert_refused(*pair.address, hostile.client_context(alpn=ALPN), hello=PREFACE)
    assert len(pair.server.peers()) == 1
    assert await pair.gateway.add(1) == 2


async def test_plaintext_is_refused(pair: Pair) -> None:
    answer = await answer_of(*pair.address, None, hello=PREFACE)
    assert answer[:1] in {b"", b"\x15"}, "at most a TLS alert comes back"
    assert b"HTTP" not in answer


async def test_tls_1_2_is_refused(pair: Pair) -> None:
    honest_but_old = pair.world.pki.hostile(Hostile.EXPIRED, pretending=taskmanager())
    await assert_refused(*pair.address, honest_but_old.client_context(alpn=ALPN, tls12=True), hello=PREFACE)


@pytest.mark.parametrize(
    "identity",
    [
        pytest.param(SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy"), id="gateway"),
        pytest.param(SpiffeId.process(TRUST_DOMAIN, Role.AUTH, "auth"), id="auth"),
        pytest.param(SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca"), id="ca"),
        pytest.param(SpiffeId.executor(TRUST_DOMAIN, JOB, 1), id="executor"),
    ],
)
async def test_an_honest_process_of_a_role_that_is_not_allowed_on_rpc_is_refused(
    pair: Pair, identity: SpiffeId
) -> None:
    with pytest.raises(PeerUnreachable):
        await pair.world.service(identity).connect(*pair.address)
    assert len(pair.server.peers()) == 1


@pytest.mark.parametrize("case", HOSTILE_SERVERS)
async def test_a_hostile_server_is_refused(world: World, case: Hostile) -> None:
    hostile = world.pki.hostile(case, pretending=jobmanager())
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1))
        writer.close()

    context = hostile.server_context(alpn=ALPN)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(PeerRefused):
            await world.service(taskmanager()).connect(host, port)
    assert received in ([], [b""]), "not a byte was sent to it"


async def test_a_server_of_another_role_or_name_is_refused(pair: Pair) -> None:
    with pytest.raises(PeerRefused, match="wrong role"):
        await pair.client.connect(*pair.address, role=Role.SHUFFLE_MANAGER)
    with pytest.raises(PeerRefused, match="expected process"):
        await pair.client.connect(*pair.address, name="another")
    assert not (await pair.client.connect(*pair.address, name="jm")).closed


async def test_a_failed_connection_names_the_address_where_nothing_listens(world: World) -> None:
    service = world.service(taskmanager())
    host, port = "127.0.0.1", free_port()
    with pytest.raises(PeerUnreachable, match=f"{host}:{port}"):
        await service.connect(host, port)
