"""A gateway with mutual TLS to REST and to the auth service, and generations of authorities for it."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import ClientSession, UnixConnector, web

from sluice.core.clock import utc_now
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.config import AUTH_NAME, ENVOY_NAME, GatewayConfig
from sluice.gateway.principal import AccessRole
from sluice.gateway.proxy.bootstrap import EnvoyPaths
from sluice.gateway.service import route_file, run_auth, run_envoy
from sluice.pki.authorities.signing import to_pem
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_identity, write_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.connections import ConnectionLog
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.rest_server.server import RestServer
from tests.integration.gateway.conftest import (
    DEADLINE_SECONDS,
    ROUTES,
    TRUST_DOMAIN,
    BackgroundLoop,
    EdgeAuthority,
    Gateway,
    eventually,
)

LOOPBACK = "127.0.0.1"
ENVOY = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, ENVOY_NAME)
AUTH = SpiffeId.process(TRUST_DOMAIN, Role.AUTH, AUTH_NAME)
JOBMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jm-1")


class Generation:
    """One generation of authorities; several share a trust domain, as during a rotation."""

    def __init__(self, pki: Path) -> None:
        self.pki = pki
        self.issuer = LocalIssuer(pki, PkiConfig(trust_domain=TRUST_DOMAIN))
        self.issuer.ensure_authorities()
        self.issuer.revocations.refresh_all()

    def anchor(self, kind: AuthorityKind = AuthorityKind.INTERNAL) -> bytes:
        return to_pem(AuthorityStore(self.pki).certificate(kind))

    @property
    def crl(self) -> bytes:
        """The CRL of the internal authority."""
        found = self.issuer.revocations.current(AuthorityKind.INTERNAL)
        assert found is not None
        return found.pem

    def revoke(self, serial: int) -> None:
        self.issuer.revocations.revoke(AuthorityKind.INTERNAL, [RevocationTarget(serial)], Reason.SUPERSEDED)


def install(
    directory: Path, spiffe_id: SpiffeId, signer: Generation, trusted: Sequence[Generation], *, dns: Sequence[str] = ()
) -> int:
    """Install a new leaf signed by ``signer`` with the anchors and CRLs of ``trusted``; return its serial."""
    scratch = directory.with_name(f"next-{directory.name}")
    signer.issuer.issue_to(scratch, spiffe_id, dns=dns)
    material, _ = read_identity(scratch)
    anchors = b"".join(each.anchor() for each in trusted)
    write_identity(directory, key_pem=material.key_pem, chain_pem=material.chain_pem, ca_pem=anchors)
    publish_lists(directory, trusted)
    return material.leaf.serial_number


def trust(directory: Path, trusted: Sequence[Generation]) -> None:
    """Replace the anchors and CRLs in ``directory``, and keep the leaf."""
    material, _ = read_identity(directory)
    anchors = b"".join(each.anchor() for each in trusted)
    write_identity(directory, key_pem=material.key_pem, chain_pem=material.chain_pem, ca_pem=anchors)
    publish_lists(directory, trusted)


def publish_lists(directory: Path, trusted: Sequence[Generation]) -> None:
    install_crls(directory, b"".join(each.crl for each in trusted), utc_now())


@dataclass
class Rest:
    """The real REST server over mutual TLS, with an application that answers everything."""

    socket: Path
    identity: Path
    connections: ConnectionLog = field(default_factory=ConnectionLog)
    address: tuple[str, int] | None = None
    served: int = 0

    async def serve(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", self._answer)
        server = RestServer(application, self.socket)
        await server.start()
        try:
            self.address = await server.listen(TlsIdentity(self.identity), LOOPBACK, 0, connections=self.connections)
            await asyncio.Event().wait()
        finally:
            await server.close()

    async def _answer(self, request: web.Request) -> web.Response:
        self.served += 1
        return web.json_response({"principal": request.headers.get("x-sluice-principal", "")})


class NetworkGateway(Gateway):
    """Envoy, the auth service and REST, each with its own identity, connected over ports of this machine."""

    def __init__(
        self,
        home: Home,
        authority: EdgeAuthority,
        loop: BackgroundLoop,
        generation: Generation,
        elsewhere: tuple[str, int] | None = None,
    ) -> None:
        """Create the gateway; ``elsewhere`` is the address of a server that takes REST's place."""
        config = GatewayConfig(
            port=0,
            auth_host=LOOPBACK,
            auth_port=0,
            authorization_timeout=DEADLINE_SECONDS,
            max_upstream_seconds=0.2,
        )
        super().__init__(home, authority, loop, config)
        self.generation = generation
        self.envoy_identity = home.identity(Role.GATEWAY, ENVOY_NAME)
        self.auth_identity = home.identity(Role.AUTH, AUTH_NAME)
        self.rest_identity = home.identity(Role.JOBMANAGER, JOBMANAGER.name)
        self.rest = Rest(home.sockets / "rest.sock", self.rest_identity, address=elsewhere)
        self.auth_address = (LOOPBACK, 0)

    @property
    def identities(self) -> dict[SpiffeId, Path]:
        return {ENVOY: self.envoy_identity, AUTH: self.auth_identity, JOBMANAGER: self.rest_identity}

    def start(self) -> None:
        self.home.create()
        self.authority.issue(self.identity)
        for spiffe_id, directory in self.identities.items():
            install(directory, spiffe_id, self.generation, [self.generation])
        write_secret(route_file(self.home), json.dumps(ROUTES).encode())
        if self.rest.address is None:
            serving = self._loop.start(self.rest.serve())
            self._others.append(serving)
            self._await(serving, lambda: self.rest.address)
        self._auth = self._loop.start(run_auth(self.home, self._config, TRUST_DOMAIN, rest=self.rest.address))
        announced = self.home.run / "endpoints" / "auth.json"
        self._await(self._auth, announced.exists)
        document = json.loads(announced.read_bytes())
        self.auth_address = (document["host"], document["port"])
        config = msgspec.structs.replace(self._config, auth_port=self.auth_address[1])
        envoy = self._loop.start(run_envoy(self.home, config, TRUST_DOMAIN, rest=self.rest.address))
        self._others.append(envoy)
        endpoint = self.home.run / "endpoints" / "envoy.json"
        self._await(envoy, endpoint.exists)
        self.port = json.loads(endpoint.read_bytes())["port"]

    @staticmethod
    def _await(running: concurrent.futures.Future[None], ready: Callable[[], object]) -> None:
        eventually(lambda: ready() or running.done(), "it does not come up")
        if running.done():
            running.result()

    def loaded(self, name: str, part: str) -> str:
        """Return the PEM that Envoy has loaded for a part of the secret ``name``; empty if there is none."""
        for entry in self._admin("config_dump?resource=dynamic_active_secrets").get("configs", []):
            if entry["name"] == name:
                secret = entry["secret"].get("tls_certificate") or entry["secret"]["validation_context"]
                source = secret.get(part, {})
                inline: str = source.get("inline_string", "")
                return inline or base64.b64decode(source.get("inline_bytes", "")).decode()
        return ""

    def handshakes(self) -> dict[str, int]:
        """How many handshakes Envoy has done with each upstream."""
        return self._stats("ssl.handshake")

    def open_connections(self) -> dict[str, int]:
        """How many connections Envoy has with each upstream."""
        return self._stats("upstream_cx_active")

    def _stats(self, name: str) -> dict[str, int]:
        stats = self._admin(f"stats?format=json&filter=^cluster.(rest|auth).{name}$")["stats"]
        return {each["name"]: each["value"] for each in stats if "name" in each}

    def _admin(self, query: str) -> Any:
        return self._loop.start_value(self._ask(query))

    async def _ask(self, query: str) -> Any:
        connector = UnixConnector(str(EnvoyPaths.of(self.home).admin_socket))
        async with ClientSession(connector=connector) as session, session.get(f"http://admin/{query}") as answer:
            return json.loads(await answer.read())


class Stream:
    """Sends requests continuously, on a kept connection and on new ones, and records failures."""

    def __init__(self, gateway: Gateway, context: ssl.SSLContext | None = None) -> None:
        self._gateway = gateway
        self._token = gateway.token(AccessRole.VIEWER)
        self._context = context or gateway.tls()
        self._stop = threading.Event()
        self.answered = 0
        self.failures: list[str] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[Stream]:
        threads = [threading.Thread(target=self._run, args=(kept,)) for kept in (True, False)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def more(self, requests: int = 20) -> None:
        """Wait until ``requests`` more requests have been answered."""
        goal = self.answered + requests
        eventually(lambda: self.answered >= goal or self.failures, "the stream stands still")

    def _run(self, kept: bool) -> None:
        while not self._stop.is_set():
            try:
                with self._gateway.connect(self._context) as connection:
                    self._converse(connection, 1_000_000 if kept else 1)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))

    def _converse(self, connection: ssl.SSLSocket, requests: int) -> None:
        line = f"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._token}\r\n\r\n"
        for _ in range(requests):
            connection.sendall(line.encode())
            reply = self._gateway.read(connection)
            if reply.status != 200:
                self.failures.append(f"{reply.status} {reply.body[:200]!r}")
            self.answered += 1
            if self._stop.wait(0.005):  # a pace, not a wait for something
                return
