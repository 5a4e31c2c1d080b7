"""A real gateway with the relay, and fakes of Spark Connect servers that record what reaches them."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import shutil
import ssl
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # the package has no type information
import pytest
from aiohttp import web
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream
from pyspark.sql.connect.proto import base_pb2 as proto, base_pb2_grpc as stubs

from sluice.core.home import Home
from sluice.gateway.config import CONNECT_NAME, GatewayConfig
from sluice.gateway.connect.envoy import connect_socket
from sluice.gateway.connect.messages import METHODS, SERVICE
from sluice.gateway.connect.wire import RawCodec, RawDetails
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.principal import AccessRole
from sluice.gateway.service.connect_relay import run_connect
from sluice.pki.assertions.tokens import HEADER, REST_AUDIENCE
from sluice.pki.channels import Channel, client_policy
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from tests.assertions import asserted_by
from tests.free_ports import free_port
from tests.integration.gateway.conftest import (
    TRUST_DOMAIN,
    BackgroundLoop,
    EdgeAuthority,
    Gateway,
    Upstream,
    eventually,
)

JOBS = {"ada": "a" * 32, "bob": "b" * 32}
DETAILS = b"\x08\x0d\x12\x05Spark"


@dataclass
class FakeSession:
    """Stands for a Spark Connect server: records all messages and answers with fixed responses."""

    identity: Path
    port: int = field(default_factory=free_port)
    """Kept over a restart. In between, another process could get an ephemeral port, but not this one."""
    seen: list[tuple[str, bytes]] = field(default_factory=list)
    metadata: list[Mapping[str, Any]] = field(default_factory=list)
    ended: list[threading.Event] = field(default_factory=list)
    """One for each call, in the order in which they began."""
    transports: set[Any] = field(default_factory=set)
    server: Server | None = None

    def __mapping__(self) -> Mapping[str, Handler]:
        return {
            f"/{SERVICE}/{method}": Handler(partial(self.serve, method), Cardinality.STREAM_STREAM, bytes, bytes)
            for method in METHODS
        }

    async def start(self, *, tls: bool = True) -> None:
        policy = client_policy(Channel.CONNECT, TRUST_DOMAIN)
        context: ssl.SSLContext = TlsIdentity(self.identity).server_context(policy, alpn=["h2"])
        self.server = Server([self], codec=RawCodec(), status_details_codec=RawDetails())
        await self.server.start("127.0.0.1", self.port, ssl=context if tls else None)
        (listening,) = self.server._server.sockets  # type: ignore[union-attr]
        self.port = listening.getsockname()[1]

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
            for transport in self.transports:
                transport.abort()
            self.transports.clear()
            await self.server.wait_closed()
            self.server = None

    async def serve(self, method: str, stream: Stream[bytes, bytes]) -> None:
        self.metadata.append(dict(stream.metadata or {}))
        self.transports.add(stream._stream._transport)
        ended = threading.Event()
        self.ended.append(ended)
        try:
            async for message in stream:
                self.seen.append((method, message))
                if method == "ReleaseExecute":
                    raise GRPCError(Status.INTERNAL, "it went wrong", DETAILS)
                if method != "AddArtifacts":
                    await stream.send_message(proto.ConfigResponse(session_id="s").SerializeToString())
                while method == "ExecutePlan":  # until the client goes
                    await stream.send_message(proto.ExecutePlanResponse(session_id="s").SerializeToString())
                    await asyncio.sleep(0.02)
            if method == "AddArtifacts":  # one answer to them all
                await stream.send_message(proto.AddArtifactsResponse(session_id="s").SerializeToString())
        finally:
            ended.set()

    def users(self) -> list[str]:
        """Return the users of all recorded messages, and clear the record."""
        seen, self.seen = self.seen, []
        return [proto.ConfigRequest.FromString(message).user_context.user_id for _, message in seen]


class SessionRest(Upstream):
    """Stands for REST: gives each principal the address of its session."""

    def __init__(self, home: Home, sessions: Mapping[str, FakeSession]) -> None:
        super().__init__()
        self._home = home
        self._sessions = sessions
        self.asked: collections.Counter[str] = collections.Counter()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        who = asserted_by(
            self._home,
            request.headers[HEADER],
            method=request.method,
            target=request.raw_path,
            audience=REST_AUDIENCE,
        ).name
        self.asked[who] += 1
        session = self._sessions.get(who)
        if session is None:
            return web.json_response({"title": "no"}, status=503)
        document = {"job_id": JOBS[who], "owner": who, "state": "RUNNING", "pending_reason": ""}
        # The first time it is still starting.
        return web.json_response(document | {"host": "127.0.0.1", "port": session.port if self.asked[who] > 1 else 0})


class ConnectGateway(Gateway):
    """Envoy, auth service, relay, and one fake session per principal."""

    def __init__(self, home: Home, authority: EdgeAuthority, pki: Path, loop: BackgroundLoop) -> None:
        super().__init__(home, authority, loop, GatewayConfig(port=0, authorization_timeout=10.0))
        self.issuer = LocalIssuer(pki, authority.config)
        self.roots = (pki / "authorities" / "root" / "cert.pem").read_bytes()
        self.sessions = {name: self.session(home.root / name, JOBS[name]) for name in JOBS}
        self.rest = SessionRest(home, self.sessions)
        self.upstream = self.rest
        self.relay: concurrent.futures.Future[None] | None = None

    def session(self, directory: Path, job_id: str) -> FakeSession:
        """Create a fake server with the identity of a job's driver; it is not started yet."""
        self.issuer.issue_to(directory, SpiffeId.driver(TRUST_DOMAIN, job_id))
        return FakeSession(directory)

    def start(self) -> None:
        self.home.create()
        self.issuer.issue_to(
            self.home.identity(Role.GATEWAY, CONNECT_NAME), SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, CONNECT_NAME)
        )
        for session in self.sessions.values():
            self._loop.start_value(session.start())
        super().start()
        relay = self.relay = self._loop.start(run_connect(self.home, self._config))
        self._others.append(relay)
        eventually(lambda: relay.done() or connect_socket(self.home).exists(), "the relay does not come up")
        if relay.done():
            relay.result()

    def stop(self) -> None:
        super().stop()
        for session in self.sessions.values():
            self._loop.start_value(session.stop())

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine in the event loop of the servers; returns its result."""
        return self._loop.start_value(coroutine)

    @contextlib.contextmanager
    def channel(self) -> Iterator[stubs.SparkConnectServiceStub]:
        """Open a Spark Connect client to the real Envoy within the block."""
        credentials = grpc.ssl_channel_credentials(root_certificates=self.roots)
        with grpc.secure_channel(f"localhost:{self.port}", credentials) as channel:
            yield stubs.SparkConnectServiceStub(channel)  # type: ignore[no-untyped-call]  # generated

    @contextlib.contextmanager
    def inside(self) -> Iterator[stubs.SparkConnectServiceStub]:
        """Open a Spark Connect client to the relay's own socket, bypassing Envoy, within the block."""
        with grpc.insecure_channel(f"unix:{connect_socket(self.home)}") as channel:
            yield stubs.SparkConnectServiceStub(channel)  # type: ignore[no-untyped-call]  # generated

    def bearer(self, name: str, role: AccessRole = AccessRole.SUBMITTER) -> list[tuple[str, str]]:
        """Return call metadata with a new token."""
        return [("authorization", f"Bearer {self.token(role, name)}")]

    def revoke(self, name: str) -> None:
        """Revoke all tokens of ``name``."""
        store = TokenStore(self.home)
        for record in store.read().records:
            if record.name == name:
                store.revoke(record.id)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, background: BackgroundLoop) -> Iterator[ConnectGateway]:
    directory, pki = Path(tempfile.mkdtemp(prefix="slc")), tmp_path_factory.mktemp("pki")
    gateway = ConnectGateway(Home.at(directory), EdgeAuthority(pki), pki, background)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def background() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop()
    yield loop
    loop.close()


@pytest.fixture
def connect(running: ConnectGateway) -> ConnectGateway:
    """The gateway that all tests of this module share, with the records of its sessions cleared."""
    for session in running.sessions.values():
        session.users()
        session.metadata.clear()
    return running


def claiming(user: str, session: str = "00112233-4455-6677-8899-aabbccddeeff") -> proto.ConfigRequest:
    """Return a request that claims to be from ``user``."""
    return proto.ConfigRequest(session_id=session, user_context=proto.UserContext(user_id=user, user_name=user))
