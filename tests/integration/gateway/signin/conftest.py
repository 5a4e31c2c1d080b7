"""The auth service on a socket, an identity provider, and browsers that keep cookies."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.config import GatewayConfig, IssuerConfig, OidcConfig
from sluice.gateway.service.assembly import auth_service, route_file
from sluice.gateway.service.auth_process import MAX_CHECK_LINE_BYTES
from sluice.gateway.service.ext_authz import AuthService
from tests.identity_provider import CLIENT_ID, IdentityProvider, identity_provider, provider_tls

TRUST_DOMAIN = "signin.test"
ORIGIN = "https://sluice.test"
ROUTES = [
    {"method": "GET", "path": "/v1/jobs", "operation": "jobs.list"},
    {"method": "POST", "path": "/v1/jobs", "operation": "jobs.submit"},
]
POLICY = """
version = 1
[roles.viewer]
allow = ["jobs.list"]
[roles.submitter]
includes = ["viewer"]
allow = ["jobs.submit"]
[groups]
staff = ["submitter"]
[users]
"cert-user" = ["viewer"]
"""


@dataclass
class Reply:
    """One HTTP response."""

    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def location(self) -> str:
        return str(self.headers["location"])


@dataclass
class Browser:
    """Keeps cookies as one person's browser does; does not follow redirects by itself."""

    base: str
    session: aiohttp.ClientSession
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, target: str, **headers: str) -> Reply:
        return await self._ask("GET", target, headers, None)

    async def post(self, target: str, form: dict[str, str] | None = None, **headers: str) -> Reply:
        return await self._ask("POST", target, headers, form or {})

    async def _ask(self, method: str, target: str, headers: dict[str, str], form: dict[str, str] | None) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent.setdefault("cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        url = target if target.startswith("https:") else self.base + target.removeprefix(ORIGIN)
        async with self.session.request(method, url, headers=sent, data=form, allow_redirects=False, ssl=False) as got:
            for line in got.headers.getall("set-cookie", ()):
                for name, morsel in SimpleCookie(line).items():
                    self.cookies[name] = morsel.value
                    if morsel["max-age"] == "0":
                        del self.cookies[name]
            return Reply(got.status, got.headers, await got.text())

    async def sign_in(self, return_to: str = "/") -> Reply:
        """Run the whole authorization code flow, and return the reply to the callback."""
        away = await self.get(f"/auth/login?with=provider&return_to={return_to}")
        assert away.status == 303, away.text
        return await self.get((await self.outside(away.location)).location.removeprefix(ORIGIN))

    async def outside(self, url: str) -> Reply:
        """Send a GET request to another server, without our cookies."""
        async with self.session.get(url, allow_redirects=False, ssl=False) as got:
            return Reply(got.status, got.headers, await got.text())

    async def submit_password(self, name: str, password: str, return_to: str = "/") -> Reply:
        form = await self.get(f"/auth/login?return_to={return_to}")
        token = hidden(form.text, "token")
        return await self.post(
            "/auth/login", {"token": token, "return_to": return_to, "name": name, "password": password}
        )


def hidden(html: str, name: str) -> str:
    """The value of a form's hidden field."""
    match = re.search(rf'name="{name}" value="([^"]*)"', html)
    assert match is not None, html
    return match[1]


@dataclass
class House:
    """A running auth service."""

    home: Home
    config: GatewayConfig
    service: AuthService
    base: str
    client: aiohttp.ClientSession
    provider: IdentityProvider

    def browser(self) -> Browser:
        return Browser(self.base, self.client)

    async def check(self, method: str = "GET", target: str = "/v1/jobs", **headers: str) -> Reply:
        """Send an authorization check as Envoy sends it."""
        return await Browser(self.base, self.client)._ask(method, target, headers, None)

    async def bearer(self, credential: str, method: str = "GET") -> int:
        return (await self.check(method, authorization=f"Bearer {credential}")).status

    def audited(self) -> list[dict[str, Any]]:
        """The decisions in the audit log, in their order."""
        records = [json.loads(line) for line in audit_file(self.home).read_text().splitlines()]
        return [record for record in records if record["event"] == "decision"]


@pytest.fixture(scope="session")
def tls_of_provider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provider_tls(tmp_path_factory.mktemp("provider"))


@pytest.fixture
async def provider(tls_of_provider: Path) -> AsyncIterator[IdentityProvider]:
    async with identity_provider(tls_of_provider) as running:
        yield running


Start = Callable[..., Awaitable[House]]


@pytest.fixture
async def start(tmp_path: Path, provider: IdentityProvider) -> AsyncIterator[Start]:
    """Starts the auth service of the test's home; keyword arguments are settings."""
    async with contextlib.AsyncExitStack() as stack:

        async def begin(**settings: Any) -> House:
            home = Home.at(tmp_path / "home").create()
            write_secret(route_file(home), json.dumps(ROUTES).encode())
            write_secret(home.gateway / "policy.toml", POLICY.encode())
            ca_file = str(provider.ca_file)
            config = GatewayConfig(
                public_url=ORIGIN,
                oidc=OidcConfig(issuer=provider.issuer, client_id=CLIENT_ID, ca_file=ca_file),
                issuers=(IssuerConfig(issuer=provider.issuer, audience="cluster", ca_file=ca_file, prefix="ci-"),),
            )
            config = msgspec.structs.replace(config, **settings)
            service = await stack.enter_async_context(auth_service(home, config, TRUST_DOMAIN))
            longest = MAX_CHECK_LINE_BYTES
            server = web.Server(service.handle, access_log=None, max_line_size=longest, max_field_size=longest)
            runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            client = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()))
            base = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return House(home, config, service, base, client, provider)

        yield begin


@pytest.fixture
async def house(start: Start) -> House:
    return await start()
