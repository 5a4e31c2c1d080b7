"""REST over mutual TLS on a real JobManager, for gateways, in addition to the Unix socket."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from sluice.core.errors import StoreError
from sluice.core.home import Home
from sluice.pki.channels import Channel, server_policy
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.config import JobManagerConfig, RuntimeConfig
from sluice.runtime.ha.config import HaConfig
from sluice.runtime.node.addresses import JobManagerAddress, read_jobmanager
from sluice.runtime.processes.jobmanager import jobmanager
from tests.assertions import AssertingGateway
from tests.hostile import HOSTILE_CLIENTS, TRUST_DOMAIN, Hostile, TestPki, assert_refused
from tests.integration.runtime.conftest import JOBMANAGER

GATEWAY = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy")
STANDBY = "jm-2"
CONFIG = RuntimeConfig(
    trust_domain=TRUST_DOMAIN,
    jobmanager=JobManagerConfig(rest_host="127.0.0.1", rest_port=0),
    ha=HaConfig(jobmanagers=(JOBMANAGER, STANDBY)),
)


@dataclasses.dataclass
class Served:
    """A running JobManager."""

    pki: TestPki
    home: Home
    address: JobManagerAddress

    @property
    def rest(self) -> tuple[str, int]:
        assert self.address.rest_tls is not None
        return self.address.rest_tls

    async def get(self, path: str, identity: TlsIdentity) -> Any:
        context = identity.client_context(server_policy(Channel.REST, TRUST_DOMAIN), alpn=["http/1.1"])
        host, port = self.rest
        headers = AssertingGateway(self.home).headers("GET", path, "ada", "viewer")
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"https://{host}:{port}{path}", ssl=context, server_hostname="") as answer,
        ):
            assert answer.status == 200
            return await answer.json()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    pki = TestPki(tmp_path)
    identity = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, JOBMANAGER)
    pki.issuer.issue_to(pki.home.identity(Role.JOBMANAGER, JOBMANAGER), identity, ips=["127.0.0.1"])
    issuer = LocalIssuer(pki.home, pki.config)
    async with jobmanager(pki.home, CONFIG, pki.config, JOBMANAGER, issuer=issuer) as node:
        yield Served(pki, pki.home, node.address)


@pytest.mark.parametrize(("offered", "admitted"), [([], True), (["http/1.1"], True), (["h2"], False)])
async def test_a_gateway_may_offer_no_alpn_protocol_but_not_a_wrong_one(
    served: Served, offered: list[str], admitted: bool
) -> None:
    """nginx offers none to its upstreams."""
    policy = server_policy(Channel.REST, TRUST_DOMAIN)
    context = served.pki.identity(GATEWAY).client_context(policy, alpn=offered)
    if not admitted:
        await assert_refused(*served.rest, context)
        return
    reader, writer = await asyncio.open_connection(*served.rest, ssl=context, server_hostname="")
    writer.write(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 ")
    writer.close()
    await writer.wait_closed()


async def test_a_gateway_is_served_and_its_connection_is_listed(served: Served) -> None:
    gateway = served.pki.identity(GATEWAY)
    assert read_jobmanager(served.home).rest_tls == served.rest
    connections = (await served.get("/v1/connections", gateway))["connections"]
    (mine,) = (each for each in connections if each["channel"] == "rest")
    assert (mine["peer"], mine["direction"]) == (str(GATEWAY), "accepted")
    assert (served.home.sockets / "rest.sock").is_socket()


@pytest.mark.parametrize("case", HOSTILE_CLIENTS)
async def test_hostile_client_is_refused(served: Served, case: Hostile) -> None:
    context = served.pki.hostile(case, pretending=GATEWAY).client_context(alpn=["http/1.1"])
    await assert_refused(*served.rest, context)


async def test_older_tls_and_other_roles_are_refused(served: Served) -> None:
    old = served.pki.hostile(Hostile.NO_CERTIFICATE, pretending=GATEWAY).client_context(tls12=True)
    await assert_refused(*served.rest, old)
    policy = server_policy(Channel.REST, TRUST_DOMAIN)
    for role in (Role.TASKMANAGER, Role.CA, Role.ZOOKEEPER):
        await assert_refused(*served.rest, served.pki.process(role).client_context(policy, alpn=["http/1.1"]))


async def test_only_jobmanagers_of_this_cluster_may_forward_requests(served: Served) -> None:
    """Another's has a good certificate of the same role and trust domain, and even a gateway's assertion."""
    assert "jobs" in await served.get("/v1/jobs", served.pki.process(Role.JOBMANAGER, STANDBY))
    policy = server_policy(Channel.REST, TRUST_DOMAIN)
    foreign = served.pki.process(Role.JOBMANAGER, "of-another-cluster")
    await assert_refused(*served.rest, foreign.client_context(policy, alpn=["http/1.1"]))


async def test_taken_port_is_an_error_and_nothing_is_announced(served: Served, tmp_path: Path) -> None:
    other = TestPki(tmp_path / "other")
    identity = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, JOBMANAGER)
    other.issuer.issue_to(other.home.identity(Role.JOBMANAGER, JOBMANAGER), identity)
    settings = msgspec.structs.replace(CONFIG.jobmanager, rest_port=served.rest[1])
    config = msgspec.structs.replace(CONFIG, jobmanager=settings)
    with pytest.raises(StoreError, match=r"cannot listen on .* for rest"):
        async with asyncio.timeout(30), jobmanager(other.home, config, other.config, JOBMANAGER):
            pass
    assert not (other.home.run / "endpoints" / "jobmanager.json").exists()
