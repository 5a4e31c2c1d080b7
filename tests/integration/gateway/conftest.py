"""A complete gateway for tests: real Envoy, auth service, and a REST server that records its requests."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import http.client
import json
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.core.tracing import TracingConfig
from sluice.core.unix_socket import listen_unix
from sluice.gateway.config import EDGE_NAME, GatewayConfig
from sluice.gateway.credentials.api_tokens import TokenBook
from sluice.gateway.credentials.token_file import create_token, token_file
from sluice.gateway.principal import AccessRole
from sluice.gateway.service import route_file, run_auth, run_envoy
from sluice.pki.assertions.tokens import HEADER, REST_AUDIENCE
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.edge_client import edge_client_context
from tests.assertions import asserted_by
from tests.waiting import wait_until

TRUST_DOMAIN = "gateway.test"
ROUTES = [
    {"method": "GET", "path": "/v1/overview", "operation": "overview.read"},
    {"method": "GET", "path": "/v1/jobs", "operation": "jobs.list"},
    {"method": "POST", "path": "/v1/jobs", "operation": "jobs.submit"},
    {"method": "GET", "path": "/v1/jobs/{id}", "operation": "jobs.read"},
    {"method": "PATCH", "path": "/v1/jobs/{id}", "operation": "jobs.cancel"},
]
DEADLINE_SECONDS = 20.0


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until ``condition`` holds; fail with ``what`` at the deadline."""
    wait_until(condition, what, DEADLINE_SECONDS)


class EdgeAuthority:
    """The authorities of one trust domain, and the edge identities that they issue."""

    def __init__(self, pki: Path, trust_domain: str = TRUST_DOMAIN) -> None:
        self._trust_domain = trust_domain
        self.config = PkiConfig(trust_domain=trust_domain)
        self._issuer = LocalIssuer(pki, self.config)
        self._issuer.ensure_authorities()
        self.certificate_file = pki / "authorities" / "edge" / "cert.pem"

    def issue(self, directory: Path, *, role: Role = Role.GATEWAY) -> int:
        """Issue an identity directory; returns the leaf's serial number."""
        identity = SpiffeId.process(self._trust_domain, role, "envoy")
        if role is Role.GATEWAY:
            self._issuer.issue_edge_server(directory, identity, dns=["localhost"], ips=["127.0.0.1"])
        else:
            self._issuer.issue_to(directory, identity, dns=["localhost"])
        return read_identity(directory)[0].leaf.serial_number

    def issue_internal(self, directory: Path) -> None:
        """Issue Envoy's identity for internal connections."""
        self._issuer.issue_to(directory, SpiffeId.process(self._trust_domain, Role.GATEWAY, "envoy"))


@dataclasses.dataclass
class Recorded:
    """A request as REST received it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body_bytes: int = 0
    complete: bool = False

    def asserted(self, home: Home) -> tuple[str, tuple[str, ...]]:
        """Return the name and roles that the gateway of ``home`` asserts in this request.

        Fails unless the request has exactly one assertion.
        """
        (text,) = self.values(HEADER)
        who = asserted_by(home, text, method=self.method, target=self.target, audience=REST_AUDIENCE)
        return who.name, who.principal.roles

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


class Upstream:
    """Stands for REST: answers 200 to every request and records it."""

    def __init__(self) -> None:
        self.requests: list[Recorded] = []

    async def serve(self, path: Path) -> None:
        runner = web.ServerRunner(web.Server(self._handle, access_log=None), handle_signals=False)
        await runner.setup()
        try:
            await web.SockSite(runner, listen_unix(path)).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = [(key, value) for key, value in request.headers.items()]
        recorded = Recorded(request.method, request.raw_path, headers)
        self.requests.append(recorded)
        async for chunk in request.content.iter_any():
            recorded.body_bytes += len(chunk)
        recorded.complete = True
        return web.json_response({"served": request.raw_path})


@dataclasses.dataclass(frozen=True)
class Reply:
    """A response of the gateway."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The body as a problem document; fails if it is not one."""
        assert self.headers["content-type"] == "application/problem+json", self.headers["content-type"]
        document: dict[str, Any] = json.loads(self.body)
        assert document["status"] == self.status
        assert document["title"]
        return document


class BackgroundLoop:
    """An event loop in its own thread, for servers that run beside synchronous tests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gateway servers")
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> concurrent.futures.Future[None]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def start_value(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the loop; returns its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_SECONDS)

    def stop(self, future: concurrent.futures.Future[None]) -> None:
        """Cancel the coroutine of ``future``, and wait until its clean-up is complete."""
        finished = asyncio.run_coroutine_threadsafe(self._cancel_all_of(future), self._loop)
        finished.result(DEADLINE_SECONDS)

    async def _cancel_all_of(self, future: concurrent.futures.Future[None]) -> None:
        before = asyncio.all_tasks() - {asyncio.current_task()}
        future.cancel()
        await asyncio.sleep(0)
        ended = [task for task in before if task.cancelling()]
        await asyncio.gather(*ended, return_exceptions=True)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Gateway:
    """A running gateway, and methods to send requests to it."""

    def __init__(self, home: Home, authority: EdgeAuthority, loop: BackgroundLoop, config: GatewayConfig) -> None:
        self.home = home
        self.authority = authority
        self.upstream = Upstream()
        self.port = 0
        self.host = "127.0.0.1"
        self.tracing: TracingConfig | None = None
        self._config = config
        self._loop = loop
        self._auth: concurrent.futures.Future[None] | None = None
        self._others: list[concurrent.futures.Future[None]] = []

    def start(self) -> None:
        self.home.create()
        self.authority.issue(self.identity)
        self.publish()
        self._others.append(self._loop.start(self.upstream.serve(self.home.sockets / "rest.sock")))
        self.start_auth()
        envoy = self._loop.start(run_envoy(self.home, self._config, TRUST_DOMAIN))
        self._others.append(envoy)
        endpoint = self.home.run / "endpoints" / "envoy.json"
        eventually(lambda: endpoint.exists() or envoy.done(), "Envoy does not come up")
        if envoy.done():
            envoy.result()
        self.port = json.loads(endpoint.read_bytes())["port"]

    def publish(self) -> None:
        """Publish the route table."""
        write_secret(route_file(self.home), json.dumps(ROUTES).encode())

    def start_auth(self) -> None:
        auth = self._auth = self._loop.start(run_auth(self.home, self._config, TRUST_DOMAIN, tracing=self.tracing))
        socket_path = self.home.sockets / "auth.sock"
        eventually(lambda: auth.done() or socket_path.exists(), "the auth service does not come up")
        if auth.done():
            auth.result()

    def stop_auth(self) -> None:
        if self._auth is not None:
            self._loop.stop(self._auth)
            self._auth = None

    def stop(self) -> None:
        self.stop_auth()
        while self._others:
            self._loop.stop(self._others.pop())

    @property
    def identity(self) -> Path:
        """The directory of the gateway's public certificate."""
        return self.home.identity(Role.GATEWAY, EDGE_NAME)

    def token(self, role: AccessRole, name: str = "ada") -> str:
        """Create a token that is valid for one hour."""
        return create_token(self.home, name=name, role=role, lifetime=dt.timedelta(hours=1))

    def expired_token(self) -> str:
        """Create a token that expired a minute ago."""
        store, then = token_file(self.home), time.time() - 120
        book = TokenBook.decode(store.read_bytes()) if store.exists() else TokenBook()
        book, _, token = book.mint("ada", AccessRole.ADMIN, ttl=dt.timedelta(seconds=60), now=then)
        write_secret(store, book.encode())
        return token

    def tls(self, *, alpn: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
        context = edge_client_context(self.authority.certificate_file)
        context.set_alpn_protocols(list(alpn))
        return context

    @contextlib.contextmanager
    def connect(self, context: ssl.SSLContext | None = None) -> Iterator[ssl.SSLSocket]:
        with (
            socket.create_connection((self.host, self.port), timeout=DEADLINE_SECONDS) as plain,
            (context or self.tls()).wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            yield connection

    def raw(self, request: bytes) -> Reply:
        """Send exactly these bytes; returns the reply to the first request in them."""
        with self.connect() as connection:
            connection.sendall(request)
            return self.read(connection, request.split(b" ", 1)[0].decode("latin-1"))

    @staticmethod
    def read(connection: ssl.SSLSocket, method: str = "GET") -> Reply:
        """Read one HTTP/1.1 response."""
        with contextlib.closing(http.client.HTTPResponse(connection, method=method)) as response:
            response.begin()
            return Reply(response.status, response.msg, response.read())

    def send(
        self, method: str, target: str, *headers: tuple[str, str], token: str | None = None, body: bytes | None = None
    ) -> Reply:
        """Send one HTTP/1.1 request with only Host, Authorization and Content-Length added; returns the reply."""
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in headers]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return self.raw("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b""))

    def reached(self) -> list[Recorded]:
        """Return the requests that reached REST since the last call."""
        requests, self.upstream.requests = self.upstream.requests, []
        return requests


@pytest.fixture(scope="session")
def background() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def edge_authority(tmp_path_factory: pytest.TempPathFactory) -> EdgeAuthority:
    return EdgeAuthority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="session")
def foreign_authority(tmp_path_factory: pytest.TempPathFactory) -> EdgeAuthority:
    """The authorities of another trust domain."""
    return EdgeAuthority(tmp_path_factory.mktemp("foreign"), "elsewhere.test")


@pytest.fixture
def short_home() -> Iterator[Home]:
    """A separate home, in a directory whose path is short enough for Unix sockets."""
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    yield Home.at(directory).create()
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def running_gateway(edge_authority: EdgeAuthority, background: BackgroundLoop) -> Iterator[Gateway]:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    config = GatewayConfig(
        port=0,
        max_request_bytes=64 << 20,
        authorization_timeout=5.0,
        header_timeout=2.5,
        idle_timeout=5.0,
        address_requests_per_second=1e6,
        principal_requests_per_second=1e6,
    )
    gateway = Gateway(Home.at(directory), edge_authority, background, config)
    gateway.start()
    yield gateway
    gateway.stop()
    shutil.rmtree(directory)


@pytest.fixture
def gateway(running_gateway: Gateway) -> Gateway:
    """The gateway that all tests share, with the record of requests cleared."""
    running_gateway.reached()
    return running_gateway
