"""The blob channel over real sockets: what it gives to whom, and everyone it refuses."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from sluice.core.errors import StoreError
from sluice.pki.channels import Channel, client_policy, server_policy
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.connections import ConnectionLog
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.listener import MutualTlsListener
from sluice.runtime.blob.client import fetch_blob
from sluice.runtime.blob.errors import BlobCorrupt, BlobNotFound, BlobUnavailable
from sluice.runtime.blob.server import BlobServer
from sluice.runtime.blob.store import BlobStore
from sluice.runtime.messages import BlobRef
from tests.free_ports import free_port
from tests.hostile import HOSTILE_CLIENTS, OTHER_JOB_ID, TRUST_DOMAIN, Hostile, TestPki, assert_refused

JOB = "0123456789abcdef" * 2
CONTENT = b"print('a pipeline')\n" * 50_000


@dataclass
class Channels:
    """A running blob server with one blob, and the file that fetches write to."""

    pki: TestPki
    store: BlobStore
    ref: BlobRef
    host: str
    port: int
    connections: ConnectionLog
    target: Path

    async def fetch(self, identity: TlsIdentity, *, job: str = JOB, ref: BlobRef | None = None) -> bytes:
        """Fetch a blob as ``identity``, and return its content."""
        await fetch_blob(identity, self.host, self.port, job, ref or self.ref, self.target)
        return self.target.read_bytes()

    async def request(self, identity: TlsIdentity, method: str, path: str, data: bytes | None = None) -> int:
        """Send any request with the certificate of ``identity``; return the status."""
        policy = server_policy(Channel.BLOB, TRUST_DOMAIN, role=Role.JOBMANAGER)
        connector = aiohttp.TCPConnector(ssl=identity.client_context(policy, alpn=("http/1.1",)))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, f"https://{self.host}:{self.port}{path}", data=data) as response,
        ):
            return response.status

    def left_over(self) -> list[str]:
        """Return the names of the files in the target's directory."""
        return [path.name for path in self.target.parent.iterdir()]


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[Channels]:
    """A running blob server."""
    pki = TestPki(tmp_path)
    store = BlobStore(tmp_path / "blobs", 10_000_000)
    with store.writer(JOB, "pipeline.py") as writer:
        writer.write(CONTENT)
        ref = writer.commit()
    connections = ConnectionLog()
    server = BlobServer(pki.process(Role.JOBMANAGER), store, connections)
    host, port = await server.start("127.0.0.1", 0)
    (tmp_path / "out").mkdir()
    yield Channels(pki, store, ref, host, port, connections, tmp_path / "out" / "file")
    await server.close()


DRIVER = SpiffeId.driver(TRUST_DOMAIN, JOB)
EXECUTOR = SpiffeId.executor(TRUST_DOMAIN, JOB, 3)
TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
JOBMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jm-2")


async def test_the_driver_of_a_job_gets_its_blob_whole(blobs: Channels) -> None:
    assert await blobs.fetch(blobs.pki.identity(DRIVER)) == CONTENT
    assert blobs.target.stat().st_mode & 0o777 == 0o600
    (connection,) = blobs.connections.snapshot()
    assert (connection.channel, connection.peer, connection.protocol) == ("blob", str(DRIVER), "TLSv1.3")


@pytest.mark.parametrize("case", HOSTILE_CLIENTS)
async def test_a_hostile_peer_is_refused(blobs: Channels, case: Hostile) -> None:
    hostile = blobs.pki.hostile(case, pretending=DRIVER)
    hello = f"GET /v1/blobs/{JOB}/{blobs.ref.sha256} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    await assert_refused(blobs.host, blobs.port, hostile.client_context(alpn=["http/1.1"]), hello=hello)


async def test_tls_1_2_and_plaintext_are_refused(blobs: Channels) -> None:
    hello = b"GET /v1/blobs/x/y HTTP/1.1\r\nhost: x\r\n\r\n"
    foreign = blobs.pki.hostile(Hostile.FOREIGN_CA, pretending=DRIVER)
    await assert_refused(blobs.host, blobs.port, foreign.client_context(tls12=True), hello=hello)
    await assert_refused(blobs.host, blobs.port, None, hello=hello)


@pytest.mark.parametrize(
    "peer",
    [
        EXECUTOR,
        TASKMANAGER,
        JOBMANAGER,
        SpiffeId.executor(TRUST_DOMAIN, OTHER_JOB_ID, 3),
        SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "of-another-cluster"),
    ],
    ids=str,
)
async def test_only_a_driver_gets_through_the_handshake(blobs: Channels, peer: SpiffeId) -> None:
    """Not a TaskManager, which runs others' jobs, nor a JobManager, whose role does not name its cluster."""
    policy = server_policy(Channel.BLOB, TRUST_DOMAIN, role=Role.JOBMANAGER)
    hello = f"GET /v1/blobs/{JOB}/{blobs.ref.sha256} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    context = blobs.pki.identity(peer).client_context(policy, alpn=("http/1.1",))
    await assert_refused(blobs.host, blobs.port, context, hello=hello)


async def test_the_driver_of_another_job_gets_nothing(blobs: Channels) -> None:
    identity = blobs.pki.identity(SpiffeId.driver(TRUST_DOMAIN, OTHER_JOB_ID))
    with pytest.raises(BlobNotFound):
        await blobs.fetch(identity)
    assert await blobs.request(identity, "GET", f"/v1/blobs/{JOB}/{blobs.ref.sha256}") == 403
    assert blobs.left_over() == []


async def test_a_blob_cannot_be_written_over_the_network(blobs: Channels) -> None:
    digest = hashlib.sha256(b"new").hexdigest()
    assert await blobs.request(blobs.pki.identity(DRIVER), "PUT", f"/v1/blobs/{JOB}/{digest}", b"new") == 405
    with pytest.raises(BlobNotFound):
        blobs.store.path(JOB, digest)


async def test_a_server_with_the_certificate_of_another_jobmanager_is_not_asked(blobs: Channels) -> None:
    with pytest.raises(BlobUnavailable):
        await fetch_blob(
            blobs.pki.identity(DRIVER), blobs.host, blobs.port, JOB, blobs.ref, blobs.target, jobmanager="another"
        )
    assert blobs.left_over() == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"/v1/blobs/{JOB}/{'0' * 64}", 404),
        ("GET", f"/v1/blobs/{JOB}/..%2f..%2fidentity", 404),
        ("GET", "/", 404),
        ("DELETE", f"/v1/blobs/{JOB}/{'0' * 64}", 405),
    ],
)
async def test_requests_for_anything_but_a_stored_blob_are_refused(
    blobs: Channels, method: str, path: str, status: int
) -> None:
    assert await blobs.request(blobs.pki.identity(DRIVER), method, path) == status


@pytest.mark.parametrize(
    "change",
    [{"size": len(CONTENT) - 1}, {"size": len(CONTENT) + 1}],
    ids=["longer than promised", "shorter than promised"],
)
async def test_content_that_does_not_match_its_reference_is_refused_and_leaves_no_file(
    blobs: Channels, change: dict[str, int]
) -> None:
    ref = BlobRef(sha256=blobs.ref.sha256, name="p", **change)
    with pytest.raises(BlobCorrupt):
        await blobs.fetch(blobs.pki.identity(DRIVER), ref=ref)
    assert blobs.left_over() == []


async def test_content_that_was_changed_on_disk_is_noticed(blobs: Channels) -> None:
    path = blobs.store.path(JOB, blobs.ref.sha256)
    path.write_bytes(b"X" + CONTENT[1:])
    with pytest.raises(BlobCorrupt):
        await blobs.fetch(blobs.pki.identity(DRIVER))
    assert blobs.left_over() == []


@pytest.mark.parametrize(
    "server",
    [TASKMANAGER, DRIVER, SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy")],
    ids=str,
)
async def test_a_server_that_is_not_a_jobmanager_is_not_asked(blobs: Channels, server: SpiffeId) -> None:
    """A TaskManager has a good certificate, and still must not hand out pipelines."""
    asked: list[bytes] = []

    class Impostor(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            asked.append(data)

    policy = server_policy(Channel.RPC, TRUST_DOMAIN, role=Role.DRIVER)
    listener = MutualTlsListener(blobs.pki.identity(server), Channel.BLOB, policy, Impostor, alpn=("http/1.1",))
    host, port = await listener.start("127.0.0.1", 0)
    with pytest.raises(BlobUnavailable):
        await fetch_blob(blobs.pki.identity(DRIVER), host, port, JOB, blobs.ref, blobs.target)
    await listener.close()
    assert asked == []
    assert blobs.left_over() == []


@dataclass
class Breaking:
    """A blob server that breaks off each response after ``piece`` bytes, and records the requested ranges."""

    content: bytes
    piece: int
    ignores_ranges: bool = False
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer with the content from the requested offset, cut off after ``piece`` bytes."""
        wanted = request.headers.get("range", "")
        self.asked.append(wanted)
        offset = 0 if self.ignores_ranges else int(wanted.removeprefix("bytes=").removesuffix("-") or 0)
        response = web.StreamResponse(status=206 if offset else 200)
        response.content_length = len(self.content) - offset
        if offset:
            response.headers["content-range"] = f"bytes {offset}-{len(self.content) - 1}/{len(self.content)}"
        await response.prepare(request)
        piece = self.content[offset : offset + self.piece]
        if piece:
            await response.write(piece)
        if offset + self.piece < len(self.content):
            assert request.transport is not None
            request.transport.close()
        return response

    @asynccontextmanager
    async def serving(self, identity: TlsIdentity) -> AsyncIterator[tuple[str, int]]:
        """Listen as the JobManager."""
        http = web.Server(self.answer, access_log=None)
        policy = client_policy(Channel.BLOB, TRUST_DOMAIN)
        listener = MutualTlsListener(identity, Channel.BLOB, policy, http, alpn=("http/1.1",))
        yield await listener.start("127.0.0.1", 0)
        await listener.close()
        await http.shutdown(0)


async def test_an_interrupted_transfer_continues_at_its_offset(blobs: Channels) -> None:
    server = Breaking(CONTENT, piece=300_000)
    async with server.serving(blobs.pki.process(Role.JOBMANAGER)) as (host, port):
        await fetch_blob(blobs.pki.identity(DRIVER), host, port, JOB, blobs.ref, blobs.target)
    assert blobs.target.read_bytes() == CONTENT
    assert server.asked == ["", "bytes=300000-", "bytes=600000-", "bytes=900000-"]


async def test_a_server_that_sends_nothing_is_asked_only_once(blobs: Channels) -> None:
    server = Breaking(CONTENT, piece=0)
    async with server.serving(blobs.pki.process(Role.JOBMANAGER)) as (host, port):
        with pytest.raises(BlobUnavailable):
            await fetch_blob(blobs.pki.identity(DRIVER), host, port, JOB, blobs.ref, blobs.target)
    assert server.asked == [""]
    assert blobs.left_over() == []


async def test_a_server_that_ignores_the_range_of_a_continued_transfer_is_refused(blobs: Channels) -> None:
    server = Breaking(CONTENT, piece=300_000, ignores_ranges=True)
    async with server.serving(blobs.pki.process(Role.JOBMANAGER)) as (host, port):
        with pytest.raises(BlobUnavailable):
            await fetch_blob(blobs.pki.identity(DRIVER), host, port, JOB, blobs.ref, blobs.target)
    assert blobs.left_over() == []


async def test_a_jobmanager_that_does_not_listen_is_reported_as_unavailable(blobs: Channels) -> None:
    with pytest.raises(BlobUnavailable, match="is the JobManager running"):
        await fetch_blob(blobs.pki.identity(DRIVER), "127.0.0.1", free_port(), JOB, blobs.ref, blobs.target)


def test_a_client_without_an_identity_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        TlsIdentity(tmp_path)
