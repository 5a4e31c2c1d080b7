"""Envoy sends no byte of a request to a server in REST's place that is not a JobManager."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.gateway.principal import AccessRole
from sluice.gateway.upstreams import TRUST_SECRET
from sluice.pki.channels import Channel, client_policy
from sluice.pki.config import PkiConfig
from sluice.pki.spiffe_id import NAMED_ROLES, Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from tests.hostile import HOSTILE_SERVERS, Hostile, TestPki
from tests.integration.gateway.conftest import TRUST_DOMAIN, BackgroundLoop, EdgeAuthority, eventually
from tests.integration.gateway.network import JOBMANAGER, LOOPBACK, Generation, NetworkGateway, publish_lists

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
LENIENT = frozenset({Hostile.NO_EKU, Hostile.TWO_SPIFFE_IDS, Hostile.AUTHORITY_AS_LEAF})
"""What Envoy lets pass where Python does not: see the threat model. Our authorities never sign either."""


class Impostor:
    """A server in REST's place, with whatever certificate a test gives it."""

    def __init__(self) -> None:
        self.address: tuple[str, int] | None = None
        self.context: ssl.SSLContext | None = None
        self.attempts = 0
        self.received = b""

    async def serve(self) -> None:
        server = await asyncio.start_server(self._answer, LOOPBACK, 0)
        self.address = server.sockets[0].getsockname()
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempts += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if self.context is not None:
                await writer.start_tls(self.context)
            received = await reader.read(65536)
            if b"HTTP/1.1\r\n" in received:
                self.received += received
                writer.write(ANSWER)
                await writer.drain()
        writer.close()


@pytest.fixture(scope="module")
def forger(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    return TestPki(tmp_path_factory.mktemp("forger"), PkiConfig(trust_domain=TRUST_DOMAIN))


@pytest.fixture(scope="module")
def gateway_to_impostor(
    edge_authority: EdgeAuthority, background: BackgroundLoop, forger: TestPki
) -> Iterator[tuple[NetworkGateway, Impostor]]:
    impostor = Impostor()
    serving = background.start(impostor.serve())
    eventually(lambda: impostor.address, "the impostor does not come up")
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    generation = Generation(forger.home.pki)
    gateway = NetworkGateway(Home.at(directory), edge_authority, background, generation, impostor.address)
    try:
        gateway.start()
        yield gateway, impostor
    finally:
        gateway.stop()
        background.stop(serving)
        shutil.rmtree(directory)


def reached(gateway: NetworkGateway, impostor: Impostor, context: ssl.SSLContext | None) -> bytes:
    """Return the part of a request that reaches a server with ``context``.

    Checks that Envoy has tried to connect at least once.
    """
    impostor.context, impostor.received, before = context, b"", impostor.attempts
    reply = gateway.send("GET", "/v1/jobs", token=gateway.token(AccessRole.VIEWER))
    assert impostor.attempts > before
    assert reply.status == (200 if impostor.received else 503)
    return impostor.received


def honest(directory: Path) -> ssl.SSLContext:
    policy = client_policy(Channel.REST, TRUST_DOMAIN)
    return TlsIdentity(directory).server_context(policy, alpn=["http/1.1"])


def test_jobmanager_gets_the_request(gateway_to_impostor: tuple[NetworkGateway, Impostor], forger: TestPki) -> None:
    """This shows that the servers of the other tests fail only because of their certificates."""
    assert reached(*gateway_to_impostor, honest(forger.directory(JOBMANAGER))).startswith(b"GET /v1/jobs ")


@pytest.mark.parametrize("case", [case for case in HOSTILE_SERVERS if case not in LENIENT])
def test_a_server_with_a_forged_jobmanager_certificate_gets_no_request(
    gateway_to_impostor: tuple[NetworkGateway, Impostor], forger: TestPki, case: Hostile
) -> None:
    context = forger.hostile(case, pretending=JOBMANAGER).server_context(alpn=["http/1.1"])
    assert reached(*gateway_to_impostor, context) == b""


@pytest.mark.parametrize("role", sorted(NAMED_ROLES - {Role.JOBMANAGER}))
def test_a_server_of_another_role_gets_no_request(
    gateway_to_impostor: tuple[NetworkGateway, Impostor], forger: TestPki, role: Role
) -> None:
    directory = forger.directory(SpiffeId.process(TRUST_DOMAIN, role, JOBMANAGER.name))
    assert reached(*gateway_to_impostor, honest(directory)) == b""


def test_a_server_with_an_older_tls_version_gets_no_request(
    gateway_to_impostor: tuple[NetworkGateway, Impostor], forger: TestPki
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    directory = forger.directory(JOBMANAGER)
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    assert reached(*gateway_to_impostor, context) == b""


def test_a_plaintext_server_gets_no_request(gateway_to_impostor: tuple[NetworkGateway, Impostor]) -> None:
    assert reached(*gateway_to_impostor, None) == b""


def test_a_revoked_jobmanager_gets_no_request(
    gateway_to_impostor: tuple[NetworkGateway, Impostor], forger: TestPki
) -> None:
    gateway, impostor = gateway_to_impostor
    context = honest(directory := forger.directory(JOBMANAGER))
    assert reached(gateway, impostor, context) != b""
    gateway.generation.revoke(TlsIdentity(directory).material.leaf.serial_number)
    publish_lists(gateway.envoy_identity, [gateway.generation])
    eventually(lambda: gateway.loaded(TRUST_SECRET, "crl") == gateway.generation.crl.decode(), "Envoy keeps its list")
    assert reached(gateway, impostor, context) == b""
    assert reached(gateway, impostor, honest(forger.directory(JOBMANAGER))) != b""
