"""The ACME server over real TLS; its certificates are worth nothing inside the cluster."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.core.errors import StoreError
from sluice.core.files import write_secret
from sluice.pki.acme.config import AcmeConfig
from sluice.pki.acme.identifiers import Identifier
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.acme_service import name_policy
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.protocol import ALPN
from sluice.pki.channels import Channel, client_policy, server_policy
from sluice.pki.issuing.engine import IssuingEngine
from sluice.pki.issuing.host import HostRequest
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.listener import MutualTlsListener
from sluice.pki.x509.keys import generate_key, key_to_pem
from sluice.pki.x509.profiles import AuthorityKind, HostNames, host_profile
from tests.hostile import TRUST_DOMAIN, TestPki, assert_refused

SETTINGS = AcmeConfig(names=("*.internal.example",))


@pytest.fixture
async def pki(tmp_path: Path) -> TestPki:
    return TestPki(tmp_path)


@pytest.fixture
async def address(pki: TestPki) -> AsyncIterator[CaAddress]:
    async with online_ca(pki.home, pki.config, CaConfig(acme=SETTINGS)) as found:
        yield found


def certificate(pki: TestPki, *names: str) -> tuple[Path, Path]:
    """Write a certificate as the ACME server issues it, and its key, to files."""
    key = generate_key()
    engine = IssuingEngine(pki.home.pki, pki.config)
    names_of = HostNames.checked(names, ["127.0.0.1"])
    profile = host_profile(dt.timedelta(days=90), pki.config)
    issued = engine.issue_host(HostRequest(names_of, profile, key.public_key(), "acme:test"))
    chain_file, key_file = pki.root / "acme-chain.pem", pki.root / "acme-key.pem"
    chain_file.write_bytes(issued.chain_pem)
    write_secret(key_file, key_to_pem(key))
    return chain_file, key_file


async def test_acme_clients_need_only_the_root_certificate_to_reach_the_server(
    pki: TestPki, address: CaAddress
) -> None:
    assert address.acme is not None
    root = AuthorityStore(pki.home.pki).certificate_file(AuthorityKind.ROOT)
    context = ssl.create_default_context(cafile=str(root))
    base = f"https://{address.acme[0]}:{address.acme[1]}"
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{base}/acme/directory", ssl=context) as answer:
            directory = await answer.json()
        assert directory["newOrder"] == f"{base}/acme/new-order"
        assert directory["meta"] == {"externalAccountRequired": True}
        # Neither listener of the authority serves the routes of the other.
        async with session.post(f"{base}/v1/enrol", ssl=context) as answer:
            assert answer.status == 404


async def test_tls_1_2_is_refused(address: CaAddress) -> None:
    assert address.acme is not None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    await assert_refused(*address.acme, context)


async def test_no_acme_server_without_its_section(pki: TestPki) -> None:
    async with online_ca(pki.home, pki.config, CaConfig()) as found:
        assert found.acme is None
    assert not (pki.home.pki / "ca" / "acme.sqlite").exists()


async def test_an_acme_server_on_all_interfaces_needs_a_url(pki: TestPki) -> None:
    config = CaConfig(acme=AcmeConfig(host="0.0.0.0"))  # noqa: S104  refused
    with pytest.raises(StoreError, match="set url"):
        async with online_ca(pki.home, pki.config, config):
            pass


def hostile_client(pki: TestPki, alpn: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(*certificate(pki, "taskmanager.internal.example"))
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


async def test_the_mutual_tls_port_of_the_ca_refuses_an_acme_certificate(pki: TestPki, address: CaAddress) -> None:
    await assert_refused(*address.mutual, hostile_client(pki, ALPN))


@pytest.mark.parametrize(
    ("channel", "role"),
    [
        (Channel.RPC, Role.JOBMANAGER),
        (Channel.DATA, Role.SHUFFLE_WORKER),
        (Channel.BLOB, Role.JOBMANAGER),
        (Channel.REST, Role.JOBMANAGER),
        (Channel.AUTH, Role.AUTH),
        (Channel.CA, Role.CA),
        (Channel.ZOOKEEPER, Role.ZOOKEEPER),
        (Channel.EGRESS, Role.GATEWAY),
    ],
)
async def test_internal_listeners_refuse_an_acme_certificate(pki: TestPki, channel: Channel, role: Role) -> None:
    admitted: list[asyncio.Protocol] = []

    class Admitted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            admitted.append(self)

    listener = MutualTlsListener(pki.process(role), channel, client_policy(channel, TRUST_DOMAIN), Admitted)
    host, port = await listener.start("127.0.0.1", 0)
    try:
        await assert_refused(host, port, hostile_client(pki, ()))
        assert not admitted
    finally:
        await listener.close()


async def test_internal_clients_refuse_a_server_with_an_acme_certificate(pki: TestPki) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*certificate(pki, "jobmanager.internal.example"))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=serving)
    port = server.sockets[0].getsockname()[1]
    context = pki.process(Role.TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    async with server:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def test_an_acme_certificate_has_no_spiffe_id_and_is_for_servers_only(pki: TestPki) -> None:
    """So it would be refused inside even if the trust anchor were the same."""
    chain_file, _ = certificate(pki, "jobmanager.internal.example")
    leaf = x509.load_pem_x509_certificates(chain_file.read_bytes())[0]
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert not names.get_values_for_type(x509.UniformResourceIdentifier)
    assert isinstance(leaf.public_key(), ec.EllipticCurvePublicKey)
    usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [usage.dotted_string for usage in usages] == ["1.3.6.1.5.5.7.3.1"]


async def test_the_acme_server_does_not_certify_names_of_the_gateway_or_its_own(pki: TestPki) -> None:
    config = AcmeConfig(names=("*.internal.example", "127.0.0.0/8"))
    policy = name_policy(pki.home, config, "acme.internal.example")
    name = Identifier("dns", "sluice.internal.example")
    assert policy().refusal(name, None) == ""
    gateway = pki.home.identity(Role.GATEWAY, "edge")
    made = pki.edge_server(dns=[name.value])
    gateway.parent.mkdir(parents=True)
    made.rename(gateway)
    refused = (name, Identifier("dns", "*.internal.example"), Identifier("dns", "acme.internal.example"))
    for each in (*refused, Identifier("ip", "127.0.0.1")):
        assert policy().refusal(each, None), each
    assert policy().refusal(Identifier("ip", "127.0.0.2"), None) == ""
