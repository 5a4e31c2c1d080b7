"""Event streams through Envoy outlive its timeouts, and end when their credential is revoked."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from sluice.core.files import write_secret
from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.authn.credential_validity import check_in
from sluice.gateway.config import GatewayConfig, IssuerConfig, OidcConfig
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.credentials.session_store import revoke_sessions
from sluice.gateway.credentials.token_file import TokenStore, create_token
from sluice.gateway.credentials.users import UserStore
from sluice.gateway.principal import AccessRole
from sluice.gateway.service import route_file, run_auth, run_envoy
from sluice.pki.assertions.open_streams import CheckHolders, Holders
from sluice.pki.assertions.principal import CertificateId
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.edge_client import edge_client_context
from sluice.runtime.processes.jobmanager import jobmanager
from sluice.runtime.rest_server.routes import published_routes
from tests.hostile import TRUST_DOMAIN
from tests.identity_provider import CLIENT_ID, IdentityProvider, identity_provider, provider_tls
from tests.integration.gateway.signin.conftest import ORIGIN, Browser, hidden
from tests.integration.rest.events import Events
from tests.integration.runtime.conftest import JOBMANAGER, Cluster, eventually

REQUEST_TIMEOUT = 3.0
PASSWORD = "correct horse battery"  # noqa: S105  of the tests' own user
POLICY = b"""
version = 1
[roles.viewer]
allow = ["*"]
[groups]
staff = ["viewer"]
[users]
by-certificate = ["viewer"]
"""


@dataclass
class Shown:
    """The credentials a client presents: headers, and optionally a certificate."""

    headers: dict[str, str]
    tls: ssl.SSLContext | None = None


@dataclass
class Looks:
    """Counts how often the validity of stream holders was checked."""

    check: CheckHolders
    count: int = 0

    async def __call__(self, everybody: Holders) -> Holders:
        found = await self.check(everybody)
        self.count += 1
        return found


@dataclass
class GatewayClient:
    """A running gateway in front of the cluster's REST server, as its clients use it."""

    cluster: Cluster
    port: int
    tls: ssl.SSLContext
    provider: IdentityProvider
    looks: Looks

    def token(self, name: str) -> str:
        """Create an API token of a viewer."""
        return create_token(self.cluster.home, name=name, role=AccessRole.VIEWER, lifetime=dt.timedelta(hours=1))

    @contextlib.asynccontextmanager
    async def listening(self, path: str, token: str) -> AsyncIterator[Events]:
        """A stream through the gateway, with an API token."""
        async with self.streaming(path, Shown({"authorization": f"Bearer {token}"})) as events:
            yield events

    @contextlib.asynccontextmanager
    async def streaming(self, path: str, shown: Shown) -> AsyncIterator[Events]:
        """A stream through the gateway."""
        url, tls = f"https://localhost:{self.port}{path}", shown.tls or self.tls
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(url, headers=shown.headers, ssl=tls) as response,
        ):
            assert response.status == 200, await response.text()
            yield Events(response)

    @contextlib.asynccontextmanager
    async def browser(self) -> AsyncIterator[Browser]:
        """Open a browser without cookies."""
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            yield Browser(f"https://localhost:{self.port}", session)

    def denials(self) -> list[str]:
        """Return the reasons for which requests have been refused, from the audit log."""
        records = map(json.loads, audit_file(self.cluster.home).read_text().splitlines())
        return [each["reason"] for each in records if each.get("decision") == "deny"]


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[IdentityProvider]:
    async with identity_provider(provider_tls(tmp_path / "provider")) as running:
        yield running


@pytest.fixture
async def gateway(
    request: pytest.FixtureRequest, cluster: Cluster, provider: IdentityProvider
) -> AsyncIterator[GatewayClient]:
    """Envoy and the auth service in this process. A fixture parameter is the request timeout in seconds."""
    home, ca_file = cluster.home, str(provider.ca_file)
    config = GatewayConfig(
        port=0,
        authorization_timeout=5.0,
        request_timeout=getattr(request, "param", 60.0),
        public_url=ORIGIN,
        oidc=OidcConfig(issuer=provider.issuer, client_id=CLIENT_ID, ca_file=ca_file),
        issuers=(IssuerConfig(issuer=provider.issuer, audience="cluster", ca_file=ca_file, prefix="ci-"),),
    )
    write_secret(home.gateway / "policy.toml", POLICY)
    looks = Looks(check_in(home, config))
    await cluster.master.aclose()  # again, with who says whose streams may stay
    node = await cluster.master.enter_async_context(
        jobmanager(
            home,
            cluster.config,
            cluster.pki.config,
            JOBMANAGER,
            issuer=LocalIssuer(home, cluster.pki.config),
            check_streams=looks,
        )
    )
    cluster.address = node.address
    cluster.pki.issuer.issue_edge_server(
        home.identity(Role.GATEWAY, "edge"),
        SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy"),
        dns=["localhost"],
        ips=["127.0.0.1"],
    )
    write_secret(route_file(home), json.dumps(published_routes()).encode())
    auth = asyncio.create_task(run_auth(home, config, TRUST_DOMAIN))
    await _there(home.sockets / "auth.sock", auth)
    envoy = asyncio.create_task(run_envoy(home, config, TRUST_DOMAIN))
    endpoint = home.run / "endpoints" / "envoy.json"
    await _there(endpoint, envoy)
    authority = home.pki / "authorities" / "edge" / "cert.pem"
    yield GatewayClient(
        cluster, json.loads(endpoint.read_bytes())["port"], edge_client_context(authority), provider, looks
    )
    for task in (envoy, auth):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _there(path: Path, task: asyncio.Task[None]) -> None:
    async def exists() -> bool:
        assert not task.done(), task.exception()
        return await asyncio.to_thread(path.exists)

    await eventually(exists, f"{path.name} is there")


def _revoke_token(gateway: GatewayClient) -> None:
    (record,) = [each for each in TokenStore(gateway.cluster.home).read().records if each.name == "eve"]
    TokenStore(gateway.cluster.home).revoke(record.id)


def _lock_user(gateway: GatewayClient) -> None:
    Revocations.of(gateway.cluster.home).revoke(("user", "eve"))


REVOCATIONS: dict[str, Callable[[GatewayClient], None]] = {"token": _revoke_token, "user": _lock_user}


@pytest.mark.parametrize("gateway", [REQUEST_TIMEOUT], indirect=True, ids=["short timeout"])
@pytest.mark.parametrize("kind", list(REVOCATIONS))
async def test_a_stream_outlives_the_request_timeout_and_ends_when_its_credential_is_revoked(
    gateway: GatewayClient, kind: str
) -> None:
    async with (
        gateway.listening("/v1/events", gateway.token("eve")) as hers,
        gateway.listening("/v1/events", gateway.token("ada")) as others,
    ):
        assert (await hers.until("overview")).data["taskmanagers"] == 0
        await others.until("overview")
        opened = time.monotonic()
        await gateway.cluster.start_taskmanager("tm-1")

        async def long_enough() -> bool:
            return time.monotonic() - opened > 1.5 * REQUEST_TIMEOUT

        await eventually(long_enough, "a request would have timed out")
        await gateway.cluster.start_taskmanager("tm-2")
        for stream in (hers, others):
            while (await stream.until("overview")).data["taskmanagers"] != 2:
                pass
        await asyncio.to_thread(REVOCATIONS[kind], gateway)
        last = (await hers.rest())[-1]
        assert (last.name, last.data["type"]) == ("problem", "urn:sluice:problem:NotAsserted")
        await gateway.cluster.stop_taskmanager("tm-2")
        await others.until("overview")


async def _by_token(gateway: GatewayClient) -> Shown:
    return Shown({"authorization": f"Bearer {gateway.token('by-token')}"})


async def _by_session_of_token(gateway: GatewayClient) -> Shown:
    async with gateway.browser() as browser:
        form = await browser.get("/auth/login?with=token")
        token = hidden(form.text, "token")
        reply = await browser.post("/auth/login", {"token": token, "api_token": gateway.token("by-session-of-token")})
        assert reply.status == 303, reply.text
        return _cookies(browser)


async def _by_password(gateway: GatewayClient) -> Shown:
    UserStore(gateway.cluster.home).add("by-password", PASSWORD, roles=("viewer",), groups=())
    async with gateway.browser() as browser:
        form = await browser.get("/auth/login?with=password")
        fields = {"token": hidden(form.text, "token"), "name": "by-password", "password": PASSWORD}
        reply = await browser.post("/auth/login", fields)
        assert reply.status == 303, reply.text
        return _cookies(browser)


async def _by_provider(gateway: GatewayClient) -> Shown:
    gateway.provider.user = "by-provider"
    async with gateway.browser() as browser:
        reply = await browser.sign_in()
        assert reply.status == 303, reply.text
        return _cookies(browser)


async def _by_certificate(gateway: GatewayClient) -> Shown:
    directory = gateway.cluster.tmp / "by-certificate"
    user = SpiffeId.process(TRUST_DOMAIN, Role.USER, "by-certificate")
    gateway.cluster.pki.issuer.issue_to(directory, user)
    tls = edge_client_context(gateway.cluster.home.pki / "authorities" / "edge" / "cert.pem")
    tls.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    return Shown({}, tls)


async def _by_jwt(gateway: GatewayClient) -> Shown:
    claims = gateway.provider.claims("by-jwt", "cluster", jti="jwt-1")
    return Shown({"authorization": f"Bearer {gateway.provider.signer.sign(claims)}"})


def _cookies(browser: Browser) -> Shown:
    return Shown({"cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())})


def _end_token(gateway: GatewayClient, name: str) -> None:
    (record,) = [each for each in TokenStore(gateway.cluster.home).read().records if each.name == name]
    TokenStore(gateway.cluster.home).revoke(record.id)


def _end_session(gateway: GatewayClient, name: str) -> None:
    assert len(revoke_sessions(gateway.cluster.home, lambda record: record.name == name)) == 1


def _end_certificate(gateway: GatewayClient, name: str) -> None:
    leaf = x509.load_pem_x509_certificate((gateway.cluster.tmp / name / "chain.pem").read_bytes())
    Revocations.of(gateway.cluster.home).revoke(("certificate", CertificateId(leaf.fingerprint(hashes.SHA256()).hex())))


def _end_user(gateway: GatewayClient, name: str) -> None:
    Revocations.of(gateway.cluster.home).revoke(("user", name))


SIGN_INS: dict[str, tuple[Callable[[GatewayClient], Awaitable[Shown]], Callable[[GatewayClient, str], None]]] = {
    "by-token": (_by_token, _end_token),
    "by-session-of-token": (_by_session_of_token, _end_token),
    "by-password": (_by_password, _end_session),
    "by-provider": (_by_provider, _end_session),
    "by-certificate": (_by_certificate, _end_certificate),
    "ci-by-jwt": (_by_jwt, _end_user),
}
"""Name of a user -> how they come in, and what ends that."""


async def test_a_stream_stays_open_until_its_credential_ends_for_each_kind_of_credential(
    gateway: GatewayClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        streams: dict[str, Events] = {}
        for name, (sign_in, _) in SIGN_INS.items():
            streams[name] = await stack.enter_async_context(gateway.streaming("/v1/events", await sign_in(gateway)))
            await streams[name].until("overview")
        # 1. Nobody is cut, however often it is looked at.
        denials, seen = gateway.denials(), gateway.looks.count

        async def looked() -> bool:
            return gateway.looks.count >= seen + 3

        await eventually(looked, "it was looked at who may stay")
        await gateway.cluster.start_taskmanager("tm-1")
        for events in streams.values():
            while (await events.until("overview")).data["taskmanagers"] != 1:
                pass
        assert "streams were cut" not in caplog.text
        assert gateway.denials() == denials
        # 2. Each ends with what it was opened with, and no other does.
        for number, (name, (_, end)) in enumerate(SIGN_INS.items(), 2):
            await asyncio.to_thread(end, gateway, name)
            last = (await streams.pop(name).rest())[-1]
            assert (last.name, last.data["type"]) == ("problem", "urn:sluice:problem:NotAsserted"), name
            await gateway.cluster.start_taskmanager(f"tm-{number}")
            for events in streams.values():
                while (await events.until("overview")).data["taskmanagers"] != number:
                    pass
        assert gateway.denials() == denials
