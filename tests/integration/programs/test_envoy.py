"""An unmodified Envoy with the output of `sluice pki export --for envoy` in a plain configuration."""

from __future__ import annotations

import asyncio
import ssl
import textwrap
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.gateway.proxy.envoy_process import EnvoyProcess
from sluice.pki.export.programs.catalogue import Program, export_for
from sluice.pki.identities.directory import read_identity
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from tests.free_ports import free_ports
from tests.hostile import HOSTILE_CLIENTS, TRUST_DOMAIN, Hostile, TestPki
from tests.integration.programs.ports import Listener, client_context, exchange, until

GATEWAY = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy")
TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
PEERS = (f"spiffe://{TRUST_DOMAIN}/taskmanager/*", str(GATEWAY))
UNNOTICED = {Hostile.NO_EKU, Hostile.TWO_SPIFFE_IDS, Hostile.AUTHORITY_AS_LEAF}
"""What Envoy by itself does not mind; our authorities sign none of them."""
HTTP = "type.googleapis.com/envoy.extensions.filters"

FRAME = """\
node: {id: test, cluster: test}
admin: {address: {pipe: {path: "%(admin)s", mode: 384}}}
static_resources:
  listeners:
    - name: edge
      address: {socket_address: {address: 127.0.0.1, port_value: %(edge)d}}
      filter_chains:
        - filters: [%(answers)s]
%(downstream)s
    - name: front
      address: {socket_address: {address: 127.0.0.1, port_value: %(front)d}}
      filter_chains:
        - filters: [%(forwards)s]
  clusters:
%(clusters)s
"""
CLUSTER = """\
- name: %(name)s
  connect_timeout: 5s
  load_assignment:
    cluster_name: %(name)s
    endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %(port)d}}}}]}]
"""


def manager(routes: str) -> str:
    """An HTTP connection manager with these routes, as YAML in one line."""
    router = f'{{name: router, typed_config: {{"@type": {HTTP}.http.router.v3.Router}}}}'
    hosts = f"{{virtual_hosts: [{{name: all, domains: ['*'], routes: [{routes}]}}]}}"
    kind = f"{HTTP}.network.http_connection_manager.v3.HttpConnectionManager"
    return (
        f'{{name: http, typed_config: {{"@type": {kind}, stat_prefix: s, http_filters: [{router}], '
        f"route_config: {hosts}}}}}"
    )


@dataclass(frozen=True)
class Edge:
    """A running Envoy with two listeners.

    ``edge`` requires client certificates. ``front`` connects to the server named by the first part of the
    path.
    """

    pki: TestPki
    identity: Path
    place: Path
    edge: int
    front: int
    impostors: dict[Hostile, Listener]

    async def through(self, server: object) -> bytes:
        """Return the answer of the cluster ``server``, reached through ``front``."""
        return await asyncio.to_thread(exchange, self.front, None, get(f"/{server}"))

    async def asked_by(self, context: ssl.SSLContext) -> bytes:
        """Return the answer of ``edge`` itself."""
        context.check_hostname = False
        return await asyncio.to_thread(exchange, self.edge, context, get("/"))


def get(path: str) -> bytes:
    """Return a GET request for ``path``."""
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    """A running Envoy, and servers that it must not mistake for one of ours."""
    pki = TestPki(tmp_path / "pki")
    identity, place = pki.directory(GATEWAY), tmp_path / "envoy"
    export_for(Program.ENVOY, identity, place, now=utc_now(), peers=PEERS)
    downstream, upstream = ((place / f"{name}.yaml").read_text() for name in ("downstream", "upstream"))
    ports = free_ports(2)
    with ExitStack() as stack:
        impostors = {
            case: stack.enter_context(Listener(pki.hostile(case, pretending=TASKMANAGER).server_context()))
            for case in (Hostile.EDGE_CERTIFICATE, Hostile.FOREIGN_CA, Hostile.WRONG_ROLE, Hostile.EXPIRED)
        }
        targets = {"own": ports[0]} | {case.name.lower(): each.port for case, each in impostors.items()}
        clusters = "".join(
            CLUSTER % {"name": name, "port": port} + textwrap.indent(upstream, "  ") for name, port in targets.items()
        )
        routes = ", ".join(f"{{match: {{prefix: /{name}}}, route: {{cluster: {name}}}}}" for name in targets)
        bootstrap, admin = tmp_path / "envoy.yaml", tmp_path / "admin.sock"
        values = {
            "admin": admin,
            "edge": ports[0],
            "front": ports[1],
            "answers": manager("{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: served}}}"),
            "downstream": textwrap.indent(downstream, " " * 10),
            "forwards": manager(routes),
            "clusters": textwrap.indent(clusters, "    "),
        }
        bootstrap.write_text(FRAME % values)
        envoy = await EnvoyProcess.start(bootstrap, admin_socket=admin, log=tmp_path / "envoy.log")
        try:
            await envoy.listening_port()
            yield Edge(pki, identity, place, ports[0], ports[1], impostors)
        finally:
            await envoy.stop()


async def test_envoy_speaks_mutual_tls_as_client_and_server_with_permitted_peers_only(edge: Edge) -> None:
    assert b"served" in await edge.through("own"), "as client and as server"
    assert b"served" in await edge.asked_by(client_context(edge.pki.directory(TASKMANAGER)))
    for case in HOSTILE_CLIENTS:
        hostile = edge.pki.hostile(case, pretending=TASKMANAGER)
        let_in = b"served" in await edge.asked_by(hostile.client_context())
        assert let_in is (case in UNNOTICED), case
    other = edge.pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jm-1"))
    assert await edge.asked_by(client_context(other)) == b"", "of our authority, but none of the --peer"
    old = client_context(edge.pki.directory(TASKMANAGER))
    old.maximum_version = old.minimum_version
    assert await edge.asked_by(old) == b"", "TLS 1.2"
    assert b"served" not in await asyncio.to_thread(exchange, edge.edge, None, get("/")), "plaintext"
    for faked, impostor in edge.impostors.items():
        answer = await edge.through(faked.name.lower())
        assert answer.startswith(b"HTTP/1.1 503"), faked
        assert impostor.accepted == 0, faked


async def test_envoy_applies_a_renewed_export_without_a_restart(edge: Edge) -> None:
    """A new certificate, and a CRL that lists one of the clients."""
    staying, leaving = (
        edge.pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, name)) for name in ("tm-1", "tm-2")
    )
    assert b"served" in await edge.asked_by(client_context(leaving))
    revoked = read_identity(leaving)[0]
    revocations = RevocationStore(edge.pki.home.pki, edge.pki.config, clock=utc_now)
    revocations.revoke(
        AuthorityKind.INTERNAL, [RevocationTarget.of(revoked.leaf, str(revoked.spiffe_id))], Reason.KEY_COMPROMISE
    )
    edge.pki.issuer.issue_to(edge.identity, GATEWAY, dns=["localhost"])
    assert (edge.identity / "crl.pem").exists()
    export_for(Program.ENVOY, edge.identity, edge.place, now=utc_now(), peers=PEERS)
    await asyncio.to_thread(
        until,
        lambda: not exchange(edge.edge, client_context(leaving), get("/")),
        lambda: "the revoked client is still served",
    )
    assert b"served" in await edge.asked_by(client_context(staying))
    assert b"served" in await edge.through("own")
