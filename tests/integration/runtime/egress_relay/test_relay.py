"""A TaskManager's egress relay through the real gateway: plain sockets in, outside destinations."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from sluice.audit.discovery import declared
from sluice.audit.model import Kind
from sluice.core.egress import EgressConfig, egress_address
from sluice.core.errors import PeerRefused, SluiceError
from sluice.pki.channels import Channel
from sluice.pki.identities.directory import read_identity
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.egress_relay.preamble import RelayRoute, preamble
from sluice.runtime.egress_relay.relay import EgressRelay
from tests.egress_gateway import (
    DEADLINE_SECONDS,
    HELLO,
    JOB,
    OTHER_JOB,
    TRUST_DOMAIN,
    EgressGateway,
    closed,
    egress_gateway,
    read_hello,
)
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

RULES = """
[[egress]]
to = ["allowed.test:*"]
users = ["ada"]
addresses = ["127.0.0.0/8"]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[EgressGateway]:
    async with egress_gateway() as running:
        running.allow(RULES)
        running.names.names["allowed.test"] = ("127.0.0.9",)
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def relay(gateway: EgressGateway) -> AsyncIterator[EgressRelay]:
    directory = Path(tempfile.mkdtemp(prefix="slr"))
    relay = EgressRelay(directory / "relay", TRUST_DOMAIN, partial(egress_address, EgressConfig(), gateway.home))
    yield relay
    await relay.close()
    shutil.rmtree(directory)


async def opened(route: RelayRoute, authority: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*route.address)
    writer.write(route.preamble(authority))
    return reader, writer


async def hello(gateway: EgressGateway, route: RelayRoute, authority: str) -> bytes:
    return await read_hello(*await opened(route, authority), gateway.upstream_authority, "allowed.test")


async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Return whether the connection ends without delivering a byte."""
    try:
        return await asyncio.wait_for(reader.read(1), DEADLINE_SECONDS) == b""
    except ConnectionError:
        return True
    finally:
        await closed(writer)


async def works_again(gateway: EgressGateway, route: RelayRoute, authority: str) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            with contextlib.suppress(OSError):
                assert await hello(gateway, route, authority) == HELLO
                return


async def works_until_it_ends(gateway: EgressGateway, route: RelayRoute, authority: str) -> None:
    """Connect repeatedly until the route is closed.

    Until then a connection may still be admitted, and then it works completely.
    """
    async with asyncio.timeout(DEADLINE_SECONDS):
        with contextlib.suppress(ConnectionError):
            while True:
                assert await hello(gateway, route, authority) == HELLO


async def keeps_connecting(gateway: EgressGateway, context: ssl.SSLContext, authority: str) -> None:
    while True:
        _, _, _, writer = await gateway.connect(context, authority)
        await closed(writer)


async def test_a_plain_socket_reaches_an_allowed_host_as_the_job(gateway: EgressGateway, relay: EgressRelay) -> None:
    async with gateway.tls_upstream("allowed.test") as port, relay.attempt(gateway.driver()) as route:
        assert await hello(gateway, route, f"allowed.test:{port}") == HELLO
        decision = gateway.decisions()[-1]
        assert (decision["principal"], decision["credential"], decision["path"]) == ("ada", JOB, f"allowed.test:{port}")


async def test_a_refused_connection_is_ended(gateway: EgressGateway, relay: EgressRelay) -> None:
    async with (
        gateway.tls_upstream("allowed.test") as port,
        relay.attempt(gateway.driver()) as mine,
        relay.attempt(gateway.driver(OTHER_JOB)) as other,
    ):
        assert await ends(*await opened(mine, f"denied.test:{port}"))
        assert await ends(*await opened(other, f"allowed.test:{port}"))
        assert gateway.decisions()[-1]["principal"] == "bob"
        assert await hello(gateway, mine, f"allowed.test:{port}") == HELLO


async def test_a_connection_without_the_capability_does_not_reach_the_gateway(
    gateway: EgressGateway, relay: EgressRelay
) -> None:
    async with gateway.tls_upstream("allowed.test") as port, relay.attempt(gateway.driver()) as route:
        before = len(gateway.decisions())
        for first in (
            preamble("0" * 64, f"allowed.test:{port}"),
            b"CONNECT allowed.test:443 HTTP/1.1\r\n\r\n",
            b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n",
            route.preamble(f"allowed.test:{port}").replace(route.capability.encode(), b"x" * 64),
        ):
            reader, writer = await asyncio.open_connection(*route.address)
            writer.write(first)
            assert await ends(reader, writer)
        assert len(gateway.decisions()) == before


async def test_the_route_of_an_attempt_ends_with_the_attempt(gateway: EgressGateway, relay: EgressRelay) -> None:
    async with gateway.tls_upstream("allowed.test") as port, relay.attempt(gateway.driver()) as staying:
        async with relay.attempt(gateway.driver()) as route:
            assert await hello(gateway, route, f"allowed.test:{port}") == HELLO
        await works_until_it_ends(gateway, route, f"allowed.test:{port}")
        assert await ends(*await opened(route, f"allowed.test:{port}"))
        assert await hello(gateway, staying, f"allowed.test:{port}") == HELLO


async def test_the_relay_takes_over_a_renewed_certificate(gateway: EgressGateway, relay: EgressRelay) -> None:
    directory = gateway.driver()
    async with gateway.tls_upstream("allowed.test") as port, relay.attempt(directory) as route:
        assert await hello(gateway, route, f"allowed.test:{port}") == HELLO
        before = read_identity(directory)[0].leaf.serial_number
        shutil.copytree(directory, gateway.home.root / "old")
        gateway.issuer.issue_to(directory, SpiffeId.driver(TRUST_DOMAIN, JOB))
        assert read_identity(directory)[0].leaf.serial_number != before
        gateway.revoke_serial(before)
        # The old one is refused once the list has arrived.
        old = gateway.client_context(gateway.home.root / "old")
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(DEADLINE_SECONDS):
                await keeps_connecting(gateway, old, f"allowed.test:{port}")
        await works_again(gateway, route, f"allowed.test:{port}")


async def test_only_processes_of_jobs_get_a_route(gateway: EgressGateway, relay: EgressRelay) -> None:
    taskmanager = gateway.identity(SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm"))
    with pytest.raises(PeerRefused):
        async with relay.attempt(taskmanager):
            pass
    with pytest.raises(SluiceError):
        async with relay.attempt(gateway.home.root / "nothing"):
            pass


async def test_a_killed_relay_is_started_again(gateway: EgressGateway, relay: EgressRelay) -> None:
    async with gateway.tls_upstream("allowed.test") as port, relay.attempt(gateway.driver()) as route:
        assert await hello(gateway, route, f"allowed.test:{port}") == HELLO
        died = relay._envoy.pid
        os.kill(died, signal.SIGKILL)
        await until(lambda: relay._envoy.pid not in {0, died}, "it is not started again")
        await works_again(gateway, route, f"allowed.test:{port}")


async def test_the_relay_listens_on_loopback_only_and_keeps_its_files_private(
    gateway: EgressGateway, relay: EgressRelay
) -> None:
    async with relay.attempt(gateway.driver()) as route:
        listening = [
            each.laddr for each in psutil.Process(relay._envoy.pid).net_connections("inet") if each.status == "LISTEN"
        ]
        assert {tuple(each) for each in listening} == {route.address}
        for path in relay._socket.parent.iterdir():
            assert path.stat().st_mode & 0o077 == 0
        assert not any(b"PRIVATE" in path.read_bytes() for path in relay._socket.parent.iterdir() if path.is_file())
        assert route.capability not in repr(route)


async def test_the_audit_finds_the_listeners_of_the_gateway_and_the_relay(gateway: EgressGateway) -> None:
    locate = partial(egress_address, EgressConfig(), gateway.home)
    relay = EgressRelay(gateway.home.sockets / "relay-taskmanager-1", TRUST_DOMAIN, locate)
    async with relay.attempt(gateway.driver()) as route:
        found = {each.name: each for each in declared(gateway.home)}
        assert found["egress"].address == gateway.address
        assert (found["egress"].kind, found["egress"].channel) == (Kind.MUTUAL, Channel.EGRESS)
        assert (found["relay-taskmanager-1"].kind, found["relay-taskmanager-1"].address) == (Kind.LOCAL, route.address)
        assert found["relay-taskmanager-1-configuration"].path == str(relay._socket)
    await relay.close()
    assert "relay-taskmanager-1" not in {each.name for each in declared(gateway.home)}
