"""REST and the auth service on other machines: mutual TLS through every rotation, and no impostors."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from sluice.core.errors import AssertionRefused
from sluice.core.home import Home
from sluice.gateway.audit_log.log import audit_directory
from sluice.gateway.audit_log.verification import read_records
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.principal import AccessRole
from sluice.gateway.upstreams import CERTIFICATE_SECRET, TRUST_SECRET
from sluice.pki.assertions.keys import assertion_keys_file
from sluice.pki.assertions.open_streams import StreamHolder
from sluice.pki.assertions.principal import CertificateId, Jti
from sluice.pki.attestations.audit_proof import RECEIPT_ISSUED, ProofOrder, check_proof
from sluice.pki.channels import MAY_CONNECT, Channel, server_policy
from sluice.pki.jwt.token_query import TokenQuery
from sluice.pki.spiffe_id import NAMED_ROLES, Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.rest.auth_service.assertion_keys import JWKS_PATH, fetch_forever
from sluice.runtime.rest.auth_service.audit_events import remote_record
from sluice.runtime.rest.auth_service.client import AuthService
from sluice.runtime.rest.auth_service.job_tokens import remote_ask_for_token
from sluice.runtime.rest.auth_service.receipt_proof import remote_prove
from sluice.runtime.rest.auth_service.stream_validity import remote_check_holders
from tests.integration.gateway.conftest import (
    DEADLINE_SECONDS,
    TRUST_DOMAIN,
    BackgroundLoop,
    EdgeAuthority,
    eventually,
)
from tests.integration.gateway.network import (
    ENVOY,
    JOBMANAGER,
    Generation,
    NetworkGateway,
    Stream,
    install,
    publish_lists,
    trust,
)


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> tuple[Generation, Generation]:
    """The present and the next generation of authorities."""
    return Generation(tmp_path_factory.mktemp("a")), Generation(tmp_path_factory.mktemp("b"))


@pytest.fixture
def network(
    edge_authority: EdgeAuthority, background: BackgroundLoop, generations: tuple[Generation, Generation]
) -> Iterator[NetworkGateway]:
    with network_of(edge_authority, background, generations[0]) as gateway:
        yield gateway


@contextlib.contextmanager
def network_of(
    edge_authority: EdgeAuthority, background: BackgroundLoop, generation: Generation
) -> Iterator[NetworkGateway]:
    """Run a network gateway in a home of its own."""
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    gateway = NetworkGateway(Home.at(directory), edge_authority, background, generation)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
        shutil.rmtree(directory)


def test_a_request_reaches_rest_over_mutual_tls_with_both_identities_known(network: NetworkGateway) -> None:
    reply = network.send("GET", "/v1/jobs", token=network.token(AccessRole.VIEWER))
    assert reply.status == 200
    (connection,) = network.rest.connections.snapshot()
    assert (connection.channel, connection.local, connection.peer) == ("rest", str(JOBMANAGER), str(ENVOY))
    assert connection.protocol == "TLSv1.3"


def test_no_request_fails_through_all_phases_of_a_rotation(
    network: NetworkGateway, generations: tuple[Generation, Generation]
) -> None:
    old, new = generations

    def renew(signer: Generation, trusted: Sequence[Generation]) -> None:
        for spiffe_id, directory in network.identities.items():
            install(directory, spiffe_id, signer, trusted)
        chain = (network.envoy_identity / "chain.pem").read_text()
        eventually(lambda: network.loaded(CERTIFICATE_SECRET, "certificate_chain") == chain, "Envoy keeps its leaf")
        fresh()

    def rely_on(*trusted: Generation) -> None:
        for directory in network.identities.values():
            trust(directory, trusted)
        anchors = (network.envoy_identity / "ca.pem").read_text()
        eventually(lambda: network.loaded(TRUST_SECRET, "trusted_ca") == anchors, "Envoy keeps its anchors")
        fresh()

    def fresh() -> None:
        """Wait until both upstreams have new connections and the request stream continues."""
        before = network.handshakes()
        assert len(before) == 2
        eventually(
            lambda: all(now > before[upstream] for upstream, now in network.handshakes().items()), "no new connections"
        )
        stream.more()

    with Stream(network).running() as stream:
        stream.more()
        renew(old, [old])
        rely_on(old, new)
        renew(new, [new, old])
        rely_on(new)
        new.revoke(1)
        for directory in network.identities.values():
            publish_lists(directory, [new])
        eventually(lambda: network.loaded(TRUST_SECRET, "crl") == new.crl.decode(), "Envoy keeps its list")
        fresh()
    assert stream.failures == []


@pytest.fixture(scope="module")
def shared(
    edge_authority: EdgeAuthority, background: BackgroundLoop, generations: tuple[Generation, Generation]
) -> Iterator[NetworkGateway]:
    """A network gateway shared by tests that do not change it."""
    with network_of(edge_authority, background, generations[0]) as gateway:
        yield gateway


def listeners(gateway: NetworkGateway) -> dict[Channel, tuple[str, int]]:
    assert gateway.rest.address is not None
    return {Channel.REST: gateway.rest.address, Channel.AUTH: gateway.auth_address}


@pytest.mark.parametrize(
    ("channel", "role"),
    [
        (channel, role)
        for channel in (Channel.REST, Channel.AUTH)
        for role in sorted(NAMED_ROLES - MAY_CONNECT[channel])
    ],
)
async def test_an_upstream_refuses_roles_that_may_not_connect_to_it(
    shared: NetworkGateway, generations: tuple[Generation, Generation], tmp_path: Path, channel: Channel, role: Role
) -> None:
    install(tmp_path / "x", SpiffeId.process(TRUST_DOMAIN, role, "x"), generations[0], [generations[0]])
    await refused(shared, channel, tmp_path / "x")


@pytest.mark.parametrize("channel", [Channel.REST, Channel.AUTH])
async def test_a_certificate_of_the_previous_authority_is_refused_after_a_rotation(
    network: NetworkGateway, generations: tuple[Generation, Generation], tmp_path: Path, channel: Channel
) -> None:
    old, new = generations
    install(tmp_path / "old", ENVOY, old, [old, new])
    await admitted(network, channel, tmp_path / "old")
    for spiffe_id, directory in network.identities.items():
        install(directory, spiffe_id, new, [new])
    await refused(network, channel, tmp_path / "old")
    install(tmp_path / "new", ENVOY, new, [new])
    await admitted(network, channel, tmp_path / "new")


@pytest.mark.parametrize("channel", [Channel.REST, Channel.AUTH])
async def test_an_upstream_does_not_answer_plaintext(shared: NetworkGateway, channel: Channel) -> None:
    reader, writer = await asyncio.open_connection(*listeners(shared)[channel])
    writer.write(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nx-sluice-principal: root\r\nx-sluice-roles: admin\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        answer = await asyncio.wait_for(reader.read(), DEADLINE_SECONDS)
        assert not answer.startswith(b"HTTP")
    writer.close()


async def test_the_jobmanager_gets_only_the_public_keys_from_the_auth_service(shared: NetworkGateway) -> None:
    directory = shared.rest_identity
    status = await attempt(shared, Channel.AUTH, directory)
    assert status.split()[1] == b"404"
    path = shared.home.gateway / "fetched.json"
    fetching = asyncio.create_task(fetch_forever(AuthService(TlsIdentity(directory), [shared.auth_address]), path))
    await asyncio.to_thread(eventually, path.exists, "the keys are not fetched")
    fetching.cancel()
    assert path.read_bytes() == assertion_keys_file(shared.home).read_bytes()
    # They are public, so a gateway may fetch them for others; everything else it sends is a question about a request.
    fetched = await attempt(shared, Channel.AUTH, shared.envoy_identity, path=JWKS_PATH)
    assert fetched.split()[1] == b"200"


async def test_the_jobmanager_asks_the_auth_service_whose_streams_may_continue(shared: NetworkGateway) -> None:
    check = remote_check_holders(AuthService(TlsIdentity(shared.rest_identity), [shared.auth_address]))
    ada = StreamHolder(principal="ada", kind="certificate", credential="c-ada", id=Jti("p-1"))
    eve = StreamHolder(principal="eve", kind="certificate", credential="c-eve", id=Jti("p-2"))
    unknown = StreamHolder(principal="mallory", kind="token", credential="no-such-token", id=Jti("p-3"))
    Revocations.of(shared.home).revoke(("certificate", CertificateId("c-eve")))
    assert await check({ada, eve, unknown}) == {ada}
    dead = (shared.auth_address[0], 1)
    other = AuthService(TlsIdentity(shared.rest_identity), [dead, shared.auth_address])
    assert await remote_check_holders(other)({ada}) == {ada}, "of several, one that answers is enough"
    nobody = remote_check_holders(AuthService(TlsIdentity(shared.rest_identity), [dead]))
    with pytest.raises(AssertionRefused):
        await nobody({ada})


async def test_the_jobmanager_can_have_only_uses_of_secrets_recorded(shared: NetworkGateway) -> None:
    record = remote_record(AuthService(TlsIdentity(shared.rest_identity), [shared.auth_address]))
    await record("secret.used", "ada", {"secret": "db", "job": "a" * 32})
    found = [
        each
        for each in await asyncio.to_thread(lambda: list(read_records(audit_directory(shared.home))))
        if each.kind == "secret.used"
    ]
    assert [each.principal for each in found] == ["ada"]
    assert found[0].detail == {"secret": "db", "job": "a" * 32, "by": str(TlsIdentity(shared.rest_identity).spiffe_id)}
    for kind, principal, detail in (
        ("policy.changed", "ada", {}),
        ("secret.used", "", {}),
        ("secret.used", "ada", {str(number): "x" for number in range(20)}),
        ("secret.used", "ada", {"x": "y" * 20_000}),
    ):
        with pytest.raises(AssertionRefused):
            await record(kind, principal, detail)
    gateway = remote_record(AuthService(TlsIdentity(shared.envoy_identity), [shared.auth_address]))
    with pytest.raises(AssertionRefused):
        await gateway("secret.used", "ada", {})
    nobody = remote_record(AuthService(TlsIdentity(shared.rest_identity), [(shared.auth_address[0], 1)]))
    with pytest.raises(AssertionRefused):
        await nobody("secret.used", "ada", {})


async def test_the_jobmanager_gets_a_proof_for_each_recorded_receipt(shared: NetworkGateway) -> None:
    identity = TlsIdentity(shared.rest_identity)
    prove = remote_prove(AuthService(identity, [shared.auth_address]))
    order = ProofOrder("a" * 32, "ada", "b" * 64)
    proven = check_proof(await prove(order, "whoever it says"), anchors=identity.material.anchors)
    # It says who asked by the certificate, not by what was asked.
    assert proven.detail == {
        "kind": RECEIPT_ISSUED,
        "principal": "ada",
        "job": order.job,
        "sha256": order.sha256,
        "by": str(identity.spiffe_id),
    }
    lines = await asyncio.to_thread(lambda: list(read_records(audit_directory(shared.home))))
    assert [each.sequence for each in lines if each.kind == RECEIPT_ISSUED] == [proven.record]
    for wrong in (
        ProofOrder("a" * 31, "ada", "b" * 64),
        ProofOrder("a" * 32, "", "b" * 64),
        ProofOrder("a" * 32, "ada", "B" * 64),
        ProofOrder("a" * 32, "x" * 5000, "b" * 64),
    ):
        with pytest.raises(AssertionRefused):
            await prove(wrong, "")
    gateway = remote_prove(AuthService(TlsIdentity(shared.envoy_identity), [shared.auth_address]))
    with pytest.raises(AssertionRefused):
        await gateway(order, "")


async def test_the_jobmanager_asks_the_auth_service_which_tokens_jobs_get(shared: NetworkGateway) -> None:
    ask = remote_ask_for_token(AuthService(TlsIdentity(shared.rest_identity), [shared.auth_address]))
    subject = f"spiffe://{TRUST_DOMAIN}/job/{'a' * 32}/driver"
    query = TokenQuery(
        job_id="a" * 32, job_name="j", subject=subject, owner="ada", roles=("admin",), groups=(), audience=("vault",)
    )
    verdict = await ask(query)
    assert (verdict.allowed, verdict.reason) == (False, "no rule gives it 'vault'"), "the default policy gives none"
    with pytest.raises(AssertionRefused, match="status 400"):
        await ask(msgspec.structs.replace(query, owner="a" * 2000))
    others = remote_ask_for_token(AuthService(TlsIdentity(shared.envoy_identity), [shared.auth_address]))
    with pytest.raises(AssertionRefused):
        await others(query)


async def attempt(gateway: NetworkGateway, channel: Channel, directory: Path, path: str = "/v1/jobs") -> bytes:
    """Connect to an upstream with the identity in ``directory``, send a request, return the status line."""
    context = TlsIdentity(directory).client_context(server_policy(channel, TRUST_DOMAIN), alpn=["http/1.1"])
    reader, writer = await asyncio.open_connection(*listeners(gateway)[channel], ssl=context)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return await asyncio.wait_for(reader.readline(), DEADLINE_SECONDS)
    finally:
        writer.transport.abort()


def test_a_revoked_jobmanager_gets_no_more_requests_within_seconds(
    network: NetworkGateway, generations: tuple[Generation, Generation]
) -> None:
    """Connections that are open at the time are no longer used."""
    token = network.token(AccessRole.VIEWER)
    assert network.send("GET", "/v1/jobs", token=token).status == 200
    generations[0].revoke(TlsIdentity(network.rest_identity).material.leaf.serial_number)
    publish_lists(network.envoy_identity, [generations[0]])
    eventually(lambda: network.loaded(TRUST_SECRET, "crl") == generations[0].crl.decode(), "Envoy keeps its list")
    eventually(
        lambda: network.open_connections()["cluster.rest.upstream_cx_active"] == 0, "Envoy keeps its connections"
    )
    served = network.rest.served
    assert network.send("GET", "/v1/jobs", token=token).status == 503
    assert network.rest.served == served
    install(network.rest_identity, JOBMANAGER, generations[0], [generations[0]])
    eventually(lambda: network.send("GET", "/v1/jobs", token=token).status == 200, "its new certificate does not help")


def test_a_revoked_gateway_is_refused_within_seconds(
    network: NetworkGateway, generations: tuple[Generation, Generation]
) -> None:
    token = network.token(AccessRole.VIEWER)
    assert network.send("GET", "/v1/jobs", token=token).status == 200
    generations[0].revoke(TlsIdentity(network.envoy_identity).material.leaf.serial_number)
    publish_lists(network.rest_identity, [generations[0]])
    eventually(lambda: network.send("GET", "/v1/jobs", token=token).status == 503, "REST goes on serving it")


def test_the_public_certificate_changes_to_another_authority_without_a_failed_request(
    network: NetworkGateway, tmp_path: Path
) -> None:
    following = EdgeAuthority(tmp_path / "next")
    both = ssl.create_default_context(
        cadata=network.authority.certificate_file.read_text() + following.certificate_file.read_text()
    )
    both.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    both.set_alpn_protocols(["http/1.1"])
    with Stream(network, both).running() as stream:
        stream.more()
        serial = following.issue(network.identity)
        eventually(lambda: served_serial(network, both) == serial, "the old certificate is served")
        stream.more()
        serial = following.issue(network.identity)
        eventually(lambda: served_serial(network, both) == serial, "the renewed certificate is not served")
        stream.more()
    assert stream.failures == []
    with pytest.raises(ssl.SSLCertVerificationError), network.connect():
        pass


def served_serial(gateway: NetworkGateway, context: ssl.SSLContext) -> int:
    with gateway.connect(context) as connection:
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


async def admitted(gateway: NetworkGateway, channel: Channel, directory: Path) -> None:
    assert (await attempt(gateway, channel, directory)).startswith(b"HTTP/1.1 ")


async def refused(gateway: NetworkGateway, channel: Channel, directory: Path) -> None:
    """Check that the upstream refuses the client.

    The client itself accepts the server, so the refusal comes from the server.
    """
    answer = b""
    with contextlib.suppress(OSError):
        answer = await attempt(gateway, channel, directory)
    assert answer == b""
