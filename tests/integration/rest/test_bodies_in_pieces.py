"""The cluster's HTTP clients read chunked answers completely, but nothing beyond their limit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from sluice.cli.gateway.login import _Form
from sluice.client.access import GatewayAccess
from sluice.client.errors import AwayError, ClientError, UnreachableError
from sluice.client.rest_client import gateway_client
from sluice.core.errors import AssertionRefused
from sluice.core.metrics import metrics_socket
from sluice.gateway.connect.rest import RestSessions
from sluice.gateway.connect.sessions import SessionAddress, SessionUnavailable
from sluice.gateway.credentials.signing_keys import AccessTokenKeys
from sluice.gateway.rest_client import RestClient
from sluice.gateway.upstreams import UnixUpstream
from sluice.pki.assertions.open_streams import StreamHolder
from sluice.pki.assertions.principal import Credential, Jti, Principal, TokenId
from sluice.pki.assertions.tokens import Assertion
from sluice.pki.channels import Channel, client_policy
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.listener import MutualTlsListener
from sluice.runtime.rest.auth_service import stream_validity
from sluice.runtime.rest.auth_service.assertion_keys import fetch
from sluice.runtime.rest.auth_service.client import AuthService
from sluice.runtime.rest.auth_service.stream_validity import remote_check_holders
from tests.hostile import TestPki

PIECE_BYTES = 7
ADA = Assertion(Principal("ada", ("submitter",), "token", Credential.of_token(TokenId("c-1"))), "r-1", Jti("p-1"))
HOLDER = StreamHolder.of(ADA)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    return TestPki(tmp_path_factory.mktemp("pki"))


def in_pieces(body: bytes, *, piece: int = PIECE_BYTES, cut: bool = False) -> web.Server:
    """Return a server that answers every request with ``body``, ``piece`` bytes at a time.

    With ``cut`` the connection ends before the body does.
    """

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"content-type": "application/json"})
        if cut:
            response.content_length = len(body) + 1
        else:
            response.enable_chunked_encoding()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(body), piece):
                await response.write(body[start : start + piece])
                await asyncio.sleep(0.0005)
        if cut and request.transport is not None:
            request.transport.close()
        return response

    return web.Server(handle, access_log=None)


@contextlib.asynccontextmanager
async def at_the_edge(pki: TestPki, server: web.Server) -> AsyncIterator[GatewayAccess]:
    """Run the server in the place of the gateway."""
    directory = pki.edge_server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, ssl=context)
    try:
        port = listening.sockets[0].getsockname()[1]
        yield GatewayAccess(f"https://localhost:{port}", pki.home.pki / "authorities" / "edge" / "cert.pem", "slc_x")
    finally:
        listening.close()
        await server.shutdown(0.1)


@contextlib.asynccontextmanager
async def on_a_socket(path: Path, server: web.Server) -> AsyncIterator[Path]:
    """Run the server on a Unix socket, as a process on this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listening = await asyncio.get_running_loop().create_unix_server(server, path)
    try:
        yield path
    finally:
        listening.close()
        await server.shutdown(0.1)


@contextlib.asynccontextmanager
async def as_auth_service(pki: TestPki, server: web.Server) -> AsyncIterator[tuple[str, int]]:
    """Run the server in the place of the auth service, on the network over mutual TLS."""
    listener = MutualTlsListener(
        pki.process(Role.AUTH),
        Channel.AUTH,
        client_policy(Channel.AUTH, pki.config.trust_domain),
        server,
        alpn=("http/1.1",),
    )
    try:
        yield await listener.start("127.0.0.1", 0)
    finally:
        await listener.stop_accepting()
        await server.shutdown(0.1)
        await listener.close()


async def listed(target: GatewayAccess) -> object:
    async with gateway_client(target) as client:
        return await client.get("/v1/jobs")


async def posted(target: GatewayAccess) -> object:
    async with _Form(target.url, target.ca_file) as form:
        return await form.post("/auth/device", {})


CLIENTS: list[Callable[[GatewayAccess], Awaitable[object]]] = [listed, posted]


@pytest.mark.parametrize("ask", CLIENTS)
async def test_command_reads_a_slow_answer_whole(
    pki: TestPki, ask: Callable[[GatewayAccess], Awaitable[object]]
) -> None:
    document = {"data": "x" * 2000}
    async with at_the_edge(pki, in_pieces(json.dumps(document).encode())) as target:
        assert await ask(target) == document


@pytest.mark.parametrize(("ask", "error"), [(listed, AwayError), (posted, UnreachableError)])
async def test_command_treats_a_truncated_answer_as_an_error(
    pki: TestPki, ask: Callable[[GatewayAccess], Awaitable[object]], error: type[Exception]
) -> None:
    # What arrives would be a whole document.
    async with at_the_edge(pki, in_pieces(b"{}" + b" " * 100, cut=True)) as target:
        with pytest.raises(error):
            await ask(target)


async def test_command_refuses_an_answer_beyond_its_limit(pki: TestPki) -> None:
    megabyte = 1 << 20
    async with at_the_edge(pki, in_pieces(b'"' + b"x" * 17 * megabyte + b'"', piece=megabyte)) as target:
        with pytest.raises(ClientError, match="GET /v1/jobs: the answer is larger than 16 MiB"):
            await listed(target)
        with pytest.raises(UnreachableError, match="unexpected answer"):
            await posted(target)


async def test_chunk_of_a_log_beyond_64_kib_is_read(pki: TestPki) -> None:
    text = "a line of a log\n" * (20 << 10)
    chunk = {"data": text, "offset": 0, "next_offset": len(text), "end": True}
    server = in_pieces(json.dumps(chunk).encode(), piece=10_000)
    async with at_the_edge(pki, server) as target, gateway_client(target) as client:
        assert (await client.get("/v1/jobs/j/logs", source="driver.stderr"))["data"] == text


async def test_relay_reads_a_slow_session_address_whole(pki: TestPki, tmp_path: Path) -> None:
    AccessTokenKeys.of(pki.home).refresh(time.time())
    address = SessionAddress(job_id="j" * 32, owner="ada", host="127.0.0.1", port=1)
    sessions = RestSessions(pki.home, RestClient(UnixUpstream(tmp_path / "rest.sock"), None))
    async with on_a_socket(tmp_path / "rest.sock", in_pieces(msgspec.json.encode(address))):
        assert await sessions.request_session(ADA) == address


async def test_relay_refuses_a_session_address_beyond_its_limit(pki: TestPki, tmp_path: Path) -> None:
    AccessTokenKeys.of(pki.home).refresh(time.time())
    sessions = RestSessions(pki.home, RestClient(UnixUpstream(tmp_path / "rest.sock"), None))
    async with on_a_socket(tmp_path / "rest.sock", in_pieces(b" " * (65 << 10), piece=8 << 10)):
        with pytest.raises(SessionUnavailable, match="larger than 65536 bytes"):
            await sessions.request_session(ADA)


async def test_slow_exposition_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_socket, "ANSWER_SECONDS", 30.0)
    text = "".join(f'sluice_x{{n="{number}"}} 1\n' for number in range(100))
    async with on_a_socket(tmp_path / "m.sock", in_pieces(text.encode())) as path:
        assert await metrics_socket.fetch(path) == text


async def test_a_truncated_exposition_is_discarded(tmp_path: Path) -> None:
    async with on_a_socket(tmp_path / "m.sock", in_pieces(b"sluice_x 1\n" * 20, cut=True)) as path:
        assert await metrics_socket.fetch(path) is None


async def test_jobmanager_reads_slow_verdicts_and_keys_whole(pki: TestPki, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_validity, "ANSWER_SECONDS", 30.0)
    identity = pki.process(Role.JOBMANAGER)
    async with as_auth_service(pki, in_pieces(b"[" + b" " * 100 + b"true]")) as address:
        assert await remote_check_holders(AuthService(identity, [address]))({HOLDER}) == {HOLDER}
    keys = b'{"keys": [' + b" " * 100 + b"]}"
    async with as_auth_service(pki, in_pieces(keys)) as address:
        assert await fetch(AuthService(identity, [address])) == keys


async def test_jobmanager_refuses_truncated_or_oversized_verdicts_and_keys(pki: TestPki) -> None:
    identity = pki.process(Role.JOBMANAGER)
    for server in (in_pieces(b"[true]" + b" " * 50, cut=True), in_pieces(b"[true]" + b" " * (1 << 20), piece=1 << 16)):
        async with as_auth_service(pki, server) as address:
            with pytest.raises(AssertionRefused):
                await remote_check_holders(AuthService(identity, [address]))({HOLDER})
            with pytest.raises(AssertionRefused):
                await fetch(AuthService(identity, [address]))
