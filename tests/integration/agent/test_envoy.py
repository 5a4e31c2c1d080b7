"""An unmodified Envoy gets its certificate and its trust anchors from the agent by SDS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.gateway.proxy.envoy_process import EnvoyProcess
from sluice.pki.agent.policy import IdentityEntry
from sluice.pki.authorities.signing import authority_key_identifier, to_pem
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.identities.directory import read_identity, write_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.keys import generate_key, key_to_pem, signature_hash
from sluice.pki.x509.profiles import AuthorityKind, Purpose, leaf_key_usage
from tests.integration.agent.conftest import BUNDLE, OWN_UID, TRUST_DOMAIN, RunningAgent, StartAgent
from tests.outside import OutsideAuthority
from tests.waiting import DEADLINE_SECONDS, until

SERVER = f"{BUNDLE}/gateway/envoy"
CLIENT = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "client")
ROTATIONS = 5
REQUEST = b"GET / HTTP/1.1\r\nhost: envoy\r\n\r\n"


def _sds(name: str) -> dict[str, Any]:
    back_off = {"base_interval": "0.05s", "max_interval": "0.2s"}
    source = {
        "api_type": "GRPC",
        "transport_api_version": "V3",
        "grpc_services": [{"envoy_grpc": {"cluster_name": "agent", "retry_policy": {"retry_back_off": back_off}}}],
    }
    return {"name": name, "sds_config": {"resource_api_version": "V3", "api_config_source": source}}


def _bootstrap(agent: Path, admin: Path) -> dict[str, Any]:
    """Return Envoy's bootstrap with SDS as its documentation configures it, served on the agent's socket."""
    tls = {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "require_client_certificate": True,
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_3"},
            "tls_certificate_sds_secret_configs": [_sds(SERVER)],
            "combined_validation_context": {
                "default_validation_context": {
                    "match_typed_subject_alt_names": [{"san_type": "URI", "matcher": {"exact": str(CLIENT)}}]
                },
                "validation_context_sds_secret_config": _sds(BUNDLE),
            },
        },
    }
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": "edge",
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}],
                }
            ]
        },
    }
    http2: dict[str, Any] = {"explicit_http_config": {"http2_protocol_options": {}}}
    return {
        "node": {"id": "edge", "cluster": "test"},
        "admin": {"address": {"pipe": {"path": str(admin), "mode": 0o600}}},
        "static_resources": {
            "listeners": [
                {
                    "name": "edge",
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
                    "filter_chains": [
                        {
                            "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
                            "filters": [{"name": "http", "typed_config": manager}],
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "agent",
                    "type": "STATIC",
                    "connect_timeout": "2s",
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                            **http2,
                        }
                    },
                    "load_assignment": {
                        "cluster_name": "agent",
                        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": str(agent)}}}}]}],
                    },
                }
            ],
        },
    }


class Edge:
    """A running Envoy and the agent that serves its certificates."""

    def __init__(self, running: RunningAgent, port: int) -> None:
        self.running = running
        self.port = port

    def client_context(self, issuer: LocalIssuer, name: str = "client") -> ssl.SSLContext:
        """Return a mutual TLS context for ``name`` certified by ``issuer``; trusts the agent's own PKI."""
        directory = self.running.pki.parent / f"as-{name}-{id(issuer)}"
        issuer.issue_to(directory, SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, name))
        return self.context_from(directory)

    def context_from(self, directory: Path) -> ssl.SSLContext:
        """Return a mutual TLS context for the identity in ``directory``; trusts the agent's own PKI."""
        anchors = AuthorityStore(self.running.pki).certificate(AuthorityKind.INTERNAL)
        context = ssl.create_default_context(cadata=to_pem(anchors).decode())
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
        context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
        return context

    async def connect(self, context: ssl.SSLContext) -> Connection:
        """Open a connection and verify that the peer has the identity that the agent serves."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        return Connection(reader, writer)

    async def answers(self, context: ssl.SSLContext) -> bool:
        """Whether Envoy serves a request on a new connection."""
        try:
            connection = await self.connect(context)
        except (ssl.SSLError, OSError):
            return False
        try:
            return await connection.request() == 200
        except (ssl.SSLError, OSError, asyncio.IncompleteReadError):
            return False
        finally:
            await connection.close()

    async def until_answers(self, context: ssl.SSLContext, *, wanted: bool = True) -> None:
        """Wait until Envoy serves requests, or with ``wanted=False`` until it does not."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await self.answers(context) is not wanted:  # noqa: ASYNC110  # Envoy tells nobody
                await asyncio.sleep(0.05)


class Connection:
    """One HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.certificate = x509.load_der_x509_certificate(der)

    async def request(self) -> int:
        """Send one request; returns the status of the response."""
        self._writer.write(REQUEST)
        head = await self._reader.readuntil(b"\r\n\r\n")
        return int(head.split(maxsplit=2)[1])

    async def close(self) -> None:
        """Close the connection in whatever state it is."""
        self._writer.close()
        with contextlib.suppress(ssl.SSLError, OSError):
            await self._writer.wait_closed()


class Load:
    """Sends requests on one open connection and on new ones, and records every failure."""

    def __init__(self, edge: Edge, context: ssl.SSLContext) -> None:
        self._edge = edge
        self._context = context
        self.requests = 0
        self.failures: list[str] = []
        self.serials: list[int] = []

    async def run(self) -> None:
        """Send requests until cancelled."""
        kept = await self._edge.connect(self._context)
        try:
            while True:
                await self._one(kept)
        finally:
            await kept.close()

    async def _one(self, kept: Connection) -> None:
        try:
            fresh = await self._edge.connect(self._context)
            try:
                statuses = [await fresh.request(), await kept.request()]
            finally:
                await fresh.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.failures.append(repr(error))
            return
        self.requests += len(statuses)
        self.failures.extend(str(status) for status in statuses if status != 200)
        if fresh.certificate.serial_number not in self.serials:
            self.serials.append(fresh.certificate.serial_number)


@pytest.fixture
async def edge(start_agent: StartAgent, open_directory: Path) -> AsyncIterator[Edge]:
    """Envoy on a free port, which gets its whole identity from the agent's socket."""
    running = await start_agent(IdentityEntry(id="gateway/envoy", uids=(OWN_UID,)))
    bootstrap, admin = open_directory / "envoy.json", open_directory / "admin.sock"
    bootstrap.write_text(json.dumps(_bootstrap(running.socket, admin)))
    envoy = await EnvoyProcess.start(bootstrap, admin_socket=admin, log=open_directory / "envoy.log")
    try:
        port = await envoy.listening_port()
        started = Edge(running, port)
        context = started.client_context(running.issuer)
        await started.until_answers(context)
        yield started
    finally:
        await envoy.stop()


async def test_envoy_presents_the_agents_identity_through_rotations_without_a_failed_request(edge: Edge) -> None:
    load = Load(edge, edge.client_context(edge.running.issuer))
    directory = edge.running.identities / "gateway" / "envoy"
    task = asyncio.create_task(load.run())
    try:
        await until(lambda: load.requests > 10, f"no requests: {load.failures[:3]}")
        for _ in range(ROTATIONS):
            await edge.running.rotate()
            current = read_identity(directory)[0]
            assert str(current.spiffe_id) == SERVER
            await until(partial(_presented, load, current.leaf.serial_number), "the new one is not presented")
        before = load.requests
        await until(lambda: load.requests > before + 10, "no requests after the last rotation")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert load.failures == []
    assert len(load.serials) == ROTATIONS + 1


def _presented(load: Load, serial: int) -> bool:
    return serial in load.serials


async def test_envoy_keeps_serving_without_the_agent_and_follows_a_restarted_one(
    edge: Edge, start_agent: StartAgent
) -> None:
    load = Load(edge, edge.client_context(edge.running.issuer))
    task = asyncio.create_task(load.run())
    try:
        await edge.running.agent.close()
        await until(lambda: load.requests > 10, f"not served without the agent: {load.failures[:3]}")
        again = await start_agent(IdentityEntry(id="gateway/envoy", uids=(OWN_UID,)))
        await again.rotate()
        current = read_identity(again.identities / "gateway" / "envoy")[0]
        await until(partial(_presented, load, current.leaf.serial_number), "the restarted agent is not followed")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert load.failures == []


async def test_envoy_refuses_a_client_of_another_name_and_one_without_certificate(edge: Edge) -> None:
    anonymous = ssl.create_default_context()
    anonymous.check_hostname = False
    anonymous.verify_mode = ssl.CERT_NONE
    assert await edge.answers(edge.client_context(edge.running.issuer))
    assert not await edge.answers(edge.client_context(edge.running.issuer, "somebody"))
    assert not await edge.answers(anonymous)


async def test_envoy_accepts_a_new_trust_anchor_and_no_longer_a_withdrawn_one(edge: Edge, tmp_path: Path) -> None:
    other = OutsideAuthority(tmp_path / "other")
    stranger = edge.context_from(other.imitate(str(CLIENT)))
    own = edge.client_context(edge.running.issuer)
    assert not await edge.answers(stranger)
    directory = edge.running.identities / "gateway" / "envoy"
    material = read_identity(directory)[0]
    second = other.ca_file.read_bytes()
    for anchors, admitted in ((material.ca_pem + second, True), (material.ca_pem, False)):
        write_identity(directory, key_pem=material.key_pem, chain_pem=material.chain_pem, ca_pem=anchors)
        await edge.running.agent.step()
        await edge.until_answers(stranger, wanted=admitted)
        assert await edge.answers(own)


async def test_envoy_refuses_a_revoked_client_once_the_crl_has_arrived(edge: Edge) -> None:
    revoked, other = edge.client_context(edge.running.issuer), edge.running.pki.parent / "other"
    edge.running.issuer.issue_to(other, CLIENT)
    certificate = read_identity(edge.running.pki.parent / f"as-client-{id(edge.running.issuer)}")[0].leaf
    # A list that names somebody else changes nothing for those who are not on it.
    edge.running.revoke(read_identity(edge.running.identities / "gateway" / "envoy")[0].leaf)
    await edge.running.agent.step()
    assert await edge.answers(revoked)
    edge.running.revoke(certificate)
    await edge.running.agent.step()
    await edge.until_answers(revoked, wanted=False)
    assert await edge.answers(edge.context_from(other)), "the same identity with another certificate"


async def test_envoy_enforces_the_name_constraints_of_its_trust_anchor(edge: Edge, tmp_path: Path) -> None:
    """The identity is the admitted one; only the second name lies outside what the authority may certify."""
    outside, within = x509.RFC822Name("ada@example.org"), x509.DNSName("anything.example.org")
    for number, (name, admitted) in enumerate([(within, True), (outside, False)]):
        directory = tmp_path / f"{number}"
        _write_signed_by_hand(directory, edge.running.pki, name)
        assert await edge.answers(edge.context_from(directory)) is admitted


def _write_signed_by_hand(directory: Path, pki: Path, name: x509.GeneralName) -> None:
    """Write a client identity with ``name`` as a second name, signed without the issuer's checks.

    It stands for what somebody could sign who has the authority's key.
    """
    authority = AuthorityStore(pki).load(AuthorityKind.INTERNAL)
    now = utc_now()
    key = generate_key()
    issuer = authority.certificate
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(CLIENT)), name])
    leaf = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(leaf_key_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([Purpose.CLIENT.oid]), critical=False)
        .add_extension(names, critical=True)
        .add_extension(authority_key_identifier(issuer), critical=False)
        .sign(authority.key, signature_hash(authority.key))
    )
    write_identity(directory, key_pem=key_to_pem(key), chain_pem=to_pem(leaf, issuer), ca_pem=to_pem(issuer))


async def test_the_agent_socket_is_accessible_only_to_its_owner(edge: Edge) -> None:
    assert edge.running.socket.stat().st_mode & 0o777 == 0o600
    assert edge.running.socket.parent.stat().st_mode & 0o777 == 0o700
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.connect(str(edge.running.socket))
