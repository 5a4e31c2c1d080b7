"""Peers that violate the protocol.

They are refused or timed out, the log says who they are, and other peers are not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.shuffle.data_plane.check_values import SegmentChecks
from sluice.runtime.shuffle.data_plane.errors import ErrorCode, JobNotAllowed, MapUnknown
from sluice.runtime.shuffle.data_plane.frames import (
    HEADER_BYTES,
    MAX_PUSH_PAYLOAD_BYTES,
    MAX_SEGMENT_BYTES,
    FrameType,
    Header,
    pack_hello,
)
from sluice.runtime.shuffle.worker.config import MIN_MEMORY_BYTES, SLAB_BYTES
from sluice.runtime.shuffle.worker.connections.server import KEEPALIVE, DataServer
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.shuffle.conftest import KEY, Running, StartWorker, client
from tests.integration.shuffle.raw_peer import TIMEOUT_SECONDS, RawPeer, commit_frame, fetch_frame, push_frame

SHUFFLE = 3
CHECKS = SegmentChecks(bytes.fromhex(KEY), SHUFFLE)
DEADLINE_SECONDS = 20.0
MAP = 41
GOOD = [(0, 0, b"zero"), (1, 1, b"one" * 100)]
GOOD_BYTES = sum(len(data) for _, _, data in GOOD)


def header(kind: FrameType, **fields: int) -> bytes:
    return Header(kind, **fields).pack()


def patched(data: bytes, offset: int, form: str, value: int) -> bytes:
    size = struct.calcsize(form)
    return data[:offset] + struct.pack(form, value) + data[offset + size :]


PUSH = push_frame(CHECKS, SHUFFLE, MAP, GOOD)
FETCH = fetch_frame(SHUFFLE, [MAP], 0, 1)

PROTOCOL_ERRORS = [
    pytest.param("push", patched(PUSH, 0, "<I", 0x31434C54), id="wrong magic"),
    pytest.param("push", patched(PUSH, 4, "<B", 99), id="unknown type"),
    pytest.param("push", patched(PUSH, 4, "<B", FrameType.DATA), id="a frame of the other direction"),
    pytest.param("push", patched(PUSH, 6, "<H", 1), id="reserved field"),
    pytest.param("push", header(FrameType.PUSH, length=MAX_PUSH_PAYLOAD_BYTES + 1, count=1), id="push too large"),
    pytest.param("push", header(FrameType.PUSH, length=0, count=0), id="push of nothing"),
    pytest.param("push", header(FrameType.PUSH, length=100, count=1 << 16), id="table larger than its frame"),
    pytest.param("push", patched(PUSH, 32, "<I", 0xFFFFFFFF), id="as many segments as can be said"),
    pytest.param("push", patched(PUSH, HEADER_BYTES + 8, "<I", 5), id="lengths that do not add up"),
    pytest.param("push", patched(PUSH, HEADER_BYTES + 8, "<I", MAX_SEGMENT_BYTES + 1), id="segment too large"),
    pytest.param("push", patched(PUSH, HEADER_BYTES, "<I", 0xFFFFFFFF), id="partition out of bounds"),
    pytest.param("push", push_frame(CHECKS, SHUFFLE, MAP, [(0, 0xFFFFFFF0, b"")]), id="sequence far ahead"),
    pytest.param("push", push_frame(CHECKS, SHUFFLE, MAP, [GOOD[0], GOOD[0]]), id="a segment twice in a frame"),
    pytest.param("push", PUSH + PUSH, id="a frame replayed"),
    pytest.param("push", header(FrameType.COMMIT, length=8), id="commit with payload"),
    pytest.param("push", FETCH, id="fetch on a connection for pushes"),
    pytest.param("push", pack_hello("push"), id="hello again"),
    pytest.param("fetch", PUSH, id="push on a connection for fetches"),
    pytest.param("fetch", header(FrameType.FETCH, aux=1), id="fetch of no map"),
    pytest.param("fetch", patched(FETCH, 32, "<I", 2), id="fewer map ids than said"),
    pytest.param("fetch", fetch_frame(SHUFFLE, [MAP], 5, 5), id="empty range of partitions"),
    pytest.param("fetch", fetch_frame(SHUFFLE, [MAP], 5, 4), id="range of partitions backwards"),
    pytest.param("fetch", fetch_frame(SHUFFLE, [MAP, MAP], 0, 1), id="a map twice"),
    pytest.param(
        "fetch", header(FrameType.FETCH, length=(8 << 20) + 8, count=(1 << 20) + 1, aux=1), id="too many maps"
    ),
]


@pytest.mark.parametrize(("direction", "frames"), PROTOCOL_ERRORS)
async def test_a_peer_that_breaks_the_protocol_is_disconnected_and_logged_and_others_continue(
    start_worker: StartWorker,
    identities: dict[str, TlsIdentity],
    caplog: pytest.LogCaptureFixture,
    direction: str,
    frames: bytes,
) -> None:
    worker = await start_worker()
    async with client(identities, worker) as other:
        writer = other.writer(SHUFFLE, 1, map_index=0)
        await writer.write(0, b"before")
        await writer.flush()

        def offend() -> int:
            with RawPeer(identities["executor"], worker.address.port) as peer:
                peer.hello(direction)
                peer.send(frames)
                code = peer.answer_of(FrameType.ERROR).code
                assert peer.ended()
                return code

        with caplog.at_level(logging.WARNING):
            assert await asyncio.to_thread(offend) == ErrorCode.PROTOCOL
        assert any(str(identities["executor"].spiffe_id) in record.getMessage() for record in caplog.records)
        await writer.write(0, b"after")
        where = await writer.commit()
        assert [each.data async for each in other.read(SHUFFLE, where, [1], 0, 1, ordered=True)] == [
            b"before",
            b"after",
        ]
    await _idle(worker)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(PUSH, id="a push"),
        pytest.param(header(FrameType.HELLO, length=3) + b"\x93\x01\x02", id="not a map"),
        pytest.param(header(FrameType.HELLO, length=1) + b"\xc1", id="not msgpack"),
        pytest.param(header(FrameType.HELLO, length=0), id="empty"),
        pytest.param(header(FrameType.HELLO, length=25) + b"\x82\xa7version\x09\xa9direction\xa4push", id="version 9"),
        pytest.param(header(FrameType.HELLO, length=25) + b"\x82\xa7version\x01\xa9direction\xa4pull", id="direction"),
        pytest.param(header(FrameType.HELLO, length=(64 << 10) + 1), id="too large"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: worker\r\nAccept: everything there is\r\n\r\n", id="HTTP"),
    ],
)
async def test_a_connection_that_does_not_begin_with_a_valid_hello_is_refused(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], first: bytes
) -> None:
    worker = await start_worker()

    def offend() -> int:
        with RawPeer(identities["executor"], worker.address.port) as peer:
            peer.send(first)
            code = peer.answer().code
            assert peer.ended()
            return code

    assert await asyncio.to_thread(offend) == ErrorCode.PROTOCOL


async def test_an_unknown_job_is_refused(start_worker: StartWorker, identities: dict[str, TlsIdentity]) -> None:
    worker = await start_worker()

    def ask() -> int:
        with RawPeer(identities["other"], worker.address.port) as peer:
            code = peer.answer().code
            assert peer.ended()
            return code

    assert await asyncio.to_thread(ask) == ErrorCode.NOT_ALLOWED
    async with client(identities, worker, who="other") as other:
        with pytest.raises(JobNotAllowed):
            await other.writer(SHUFFLE, 1, map_index=0).commit()


async def test_a_job_cannot_reach_the_data_of_another(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(jobs=("a" * 32, "b" * 32))
    async with client(identities, worker) as owner, client(identities, worker, who="other") as other:
        writer = owner.writer(SHUFFLE, MAP, map_index=0)
        await writer.write(0, b"secret")
        where = await writer.commit()
        with pytest.raises(MapUnknown):
            _ = [each async for each in other.read(SHUFFLE, where, [MAP], 0, 1)]
        same = other.writer(SHUFFLE, MAP, map_index=0)
        await same.write(0, b"other")
        await same.commit()
        assert [each.data async for each in owner.read(SHUFFLE, where, [MAP], 0, 1)] == [b"secret"]


async def test_a_peer_of_another_role_is_refused(start_worker: StartWorker, pki: TestPki) -> None:
    worker = await start_worker()
    manager = pki.process(Role.TASKMANAGER)

    def ask() -> bool:
        with RawPeer(manager, worker.address.port) as peer:
            return peer.ended()

    assert await asyncio.to_thread(ask)
    deadline = time.monotonic() + 10  # the peer hears it first
    while not worker.worker.report().refused_connections:
        assert time.monotonic() < deadline, "the refusal was not counted"
        await asyncio.sleep(0.01)
    assert worker.worker.report().refused_connections == 1


async def test_a_damaged_segment_fails_its_map_and_no_other(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()

    def push() -> tuple[int, int, int]:
        with RawPeer(identities["executor"], worker.address.port) as peer:
            peer.hello("push")
            peer.send(push_frame(CHECKS, SHUFFLE, 1, GOOD))
            peer.send(push_frame(CHECKS, SHUFFLE, 2, GOOD, request=77, spoil=True))
            error = peer.answer_of(FrameType.ERROR)
            assert (error.header.request, error.header.map_id) == (77, 2)
            peer.send(commit_frame(SHUFFLE, 2, 2, GOOD_BYTES))
            commit = peer.answer_of(FrameType.ERROR)
            peer.send(commit_frame(SHUFFLE, 1, 2, GOOD_BYTES))
            return error.code, commit.code, peer.answer_of(FrameType.COMMIT_OK).header.map_id

    assert await asyncio.to_thread(push) == (ErrorCode.CORRUPT, ErrorCode.UNKNOWN, 1)


@pytest.mark.parametrize(
    ("count", "size"),
    [
        pytest.param(1, GOOD_BYTES, id="fewer segments"),
        pytest.param(3, GOOD_BYTES, id="more segments"),
        pytest.param(2, GOOD_BYTES - 1, id="fewer bytes"),
    ],
)
async def test_a_commit_that_does_not_match_the_pushed_data_is_refused(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], count: int, size: int
) -> None:
    worker = await start_worker()

    def push() -> int:
        with RawPeer(identities["executor"], worker.address.port) as peer:
            peer.hello("push")
            peer.send(PUSH, commit_frame(SHUFFLE, MAP, count, size))
            code = peer.answer_of(FrameType.ERROR).code
            peer.send(commit_frame(SHUFFLE, MAP, 2, GOOD_BYTES))
            peer.answer_of(FrameType.COMMIT_OK)
            peer.send(commit_frame(SHUFFLE, MAP, 2, GOOD_BYTES))  # again: harmless
            peer.answer_of(FrameType.COMMIT_OK)
            peer.send(push_frame(CHECKS, SHUFFLE, MAP, [(0, 2, b"late")]))
            assert peer.answer_of(FrameType.ERROR).code == ErrorCode.UNKNOWN
            return code

    assert await asyncio.to_thread(push) == ErrorCode.UNKNOWN


async def test_a_peer_that_stops_within_a_frame_is_disconnected_and_its_memory_freed(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(frame_seconds=0.5)

    def dawdle() -> bool:
        with RawPeer(identities["executor"], worker.address.port) as peer:
            peer.hello("push")
            peer.send(PUSH[:-1])
            return peer.ended()

    assert await asyncio.to_thread(dawdle)
    await _idle(worker)


async def test_connections_are_still_checked_after_a_check_has_failed(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()

    def end_revoked(_: DataServer) -> None:
        looked.set()
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(DataServer, "_end_revoked", end_revoked)
    worker = await start_worker(frame_seconds=0.5)

    def dawdle() -> bool:
        with RawPeer(identities["executor"], worker.address.port) as peer:
            peer.hello("push")
            assert looked.wait(TIMEOUT_SECONDS)
            peer.send(PUSH[:-1])
            return peer.ended()

    assert await asyncio.to_thread(dawdle)


async def test_a_connection_that_does_not_finish_the_handshake_is_ended(start_worker: StartWorker) -> None:
    worker = await start_worker(handshake_seconds=0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.address.port)
    assert await asyncio.wait_for(reader.read(), DEADLINE_SECONDS) == b""
    writer.close()


async def test_a_connection_that_sends_no_hello_in_time_is_ended(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(handshake_seconds=1.0)

    def wait() -> bool:
        with RawPeer(identities["executor"], worker.address.port) as peer:
            return peer.ended()

    assert await asyncio.to_thread(wait)


async def test_a_reader_that_does_not_read_is_ended_and_others_are_served(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()
    async with client(identities, worker) as executor:
        writer = executor.writer(SHUFFLE, MAP, map_index=0)
        for _ in range(16):
            await writer.write(0, bytes(1 << 20))
        where = await writer.commit()
        others = set(worker.worker._server._sessions)
        slow = await asyncio.to_thread(RawPeer, identities["executor"], worker.address.port)
        with slow:
            await asyncio.to_thread(slow.hello, "fetch")
            (session,) = worker.worker._server._sessions - others
            session._frame_seconds = 1.0  # for it alone: a machine that stands still must not end the other reader
            slow.send(fetch_frame(SHUFFLE, [MAP], 0, 1))
            received = [len(each.data) async for each in executor.read(SHUFFLE, where, [MAP], 0, 1)]
            assert sum(received) == 16 << 20
            await _until(lambda: worker.worker.report().connections == 2)
            assert await asyncio.to_thread(slow.ended)


async def test_a_fetch_without_credit_does_not_hold_up_another_on_the_same_connection(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()
    async with client(identities, worker) as executor:
        writer = executor.writer(SHUFFLE, MAP, map_index=0)
        for partition in range(2):
            await writer.write(partition, bytes(100_000))
        await writer.commit()

    def fetch() -> list[tuple[FrameType, int]]:
        with RawPeer(identities["executor"], worker.address.port) as peer:
            peer.hello("fetch")
            peer.send(fetch_frame(SHUFFLE, [MAP], 0, 1, request=1, credit=0))
            peer.send(fetch_frame(SHUFFLE, [MAP], 1, 2, request=2))
            got = [peer.answer().header for _ in range(2)]
            peer.send(header(FrameType.CREDIT, request=1, extra=1))
            got += [peer.answer().header for _ in range(2)]
            peer.send(fetch_frame(SHUFFLE, [MAP], 0, 1, request=3, credit=0))
            peer.send(header(FrameType.CANCEL, request=3), header(FrameType.CREDIT, request=3, extra=1 << 20))
            peer.send(fetch_frame(SHUFFLE, [MAP], 7, 8, request=4))
            got.append(peer.answer().header)
            return [(each.kind, each.request) for each in got]

    assert await asyncio.to_thread(fetch) == [
        (FrameType.DATA, 2),
        (FrameType.END, 2),
        (FrameType.DATA, 1),
        (FrameType.END, 1),
        (FrameType.END, 4),
    ]


async def test_one_identity_has_a_bounded_number_of_connections(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(max_connections_per_peer=2)

    def connect() -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                peer = stack.enter_context(RawPeer(identities["executor"], worker.address.port))
                assert peer.hello("push").kind is FrameType.HELLO_OK
            third = stack.enter_context(RawPeer(identities["executor"], worker.address.port))
            assert third.answer().header.kind is FrameType.ERROR, "before it says anything"
            assert third.ended()

    await asyncio.to_thread(connect)


async def test_idle_connections_keep_no_executor_waiting(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end when others need their places, long before their own time limit."""
    monkeypatch.setattr("sluice.runtime.shuffle.worker.connections.server.MAX_HANDSHAKES", 8)
    worker = await start_worker(handshake_seconds=3600.0)

    def connect() -> None:
        where = ("127.0.0.1", worker.address.port)
        idle = [socket.create_connection(where, TIMEOUT_SECONDS) for _ in range(24)]
        with RawPeer(identities["executor"], worker.address.port) as peer:
            assert peer.hello("push").kind is FrameType.HELLO_OK
            for each in idle[:16]:
                assert each.recv(1) == b""
            # Who is admitted gives way to nobody.
            idle += [socket.create_connection(where, TIMEOUT_SECONDS) for _ in range(24)]
            assert idle[24].recv(1) == b""
            peer.send(header(FrameType.COMMIT, shuffle=SHUFFLE, map_id=MAP, request=1))
            assert peer.answer().header.kind is FrameType.COMMIT_OK
        for each in idle:
            each.close()

    await asyncio.to_thread(connect)


async def test_one_job_cannot_take_all_connections_of_a_worker(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(
        jobs=("a" * 32, "b" * 32), max_connections=128, max_connections_per_peer=128, handshake_seconds=60.0
    )

    def connect() -> int:
        peers = [RawPeer(identities["other"], worker.address.port) for _ in range(100)]
        admitted = sum(peer.hello("push").kind is FrameType.HELLO_OK for peer in peers)
        with RawPeer(identities["executor"], worker.address.port) as honest:
            assert honest.hello("fetch").kind is FrameType.HELLO_OK
        for peer in peers:
            peer.socket.close()
        return admitted

    assert await asyncio.to_thread(connect) in range(80, 90)


async def test_connections_have_keepalive_set_to_detect_vanished_peers(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    """By the kernel, whether the connection is idle or sending: otherwise that would take hours."""
    worker = await start_worker()
    async with client(identities, worker) as executor:
        await executor.connection(worker.address, "fetch")
        (session,) = worker.worker._server._sessions
        for level, option, value in KEEPALIVE:
            assert session.stream._raw.getsockopt(level, option) == value


async def test_a_job_that_sends_slowly_leaves_memory_to_others(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    """Frames begun and not finished hold half of the memory at most."""
    worker = await start_worker(jobs=("a" * 32, "b" * 32), max_connections_per_peer=64)
    begun = header(FrameType.PUSH, shuffle=SHUFFLE, map_id=1, count=1, length=16 + MAX_SEGMENT_BYTES)
    begun += struct.pack("<IIII", 0, 0, MAX_SEGMENT_BYTES, 0)
    slow = [await asyncio.to_thread(RawPeer, identities["other"], worker.address.port) for _ in range(12)]
    for peer in slow:
        await asyncio.to_thread(peer.hello, "push")
        peer.send(begun)
    await _until(lambda: worker.worker.report().waits > 0)
    assert worker.worker.report().memory_used <= MIN_MEMORY_BYTES // 2 + SLAB_BYTES
    async with client(identities, worker) as executor:
        writer = executor.writer(SHUFFLE, MAP, map_index=0)
        for _ in range(20):
            await writer.write(0, bytes(1 << 20))
        await writer.commit()
    for peer in slow:
        peer.socket.close()
    await _idle(worker)


async def test_a_revoked_executor_loses_its_connection(
    start_worker: StartWorker, pki: TestPki, identities: dict[str, TlsIdentity]
) -> None:
    from sluice.core.clock import utc_now
    from sluice.pki.identities.directory import read_certificates
    from sluice.pki.revocation.crl import Reason
    from sluice.pki.revocation.crl_files import install_crls
    from sluice.pki.revocation.store import RevocationTarget
    from sluice.pki.x509.profiles import AuthorityKind

    worker = await start_worker()
    revoked = pki.identity(SpiffeId.executor(TRUST_DOMAIN, "a" * 32, 99))

    def connect() -> RawPeer:
        peer = RawPeer(revoked, worker.address.port)
        peer.hello("push")
        return peer

    peer = await asyncio.to_thread(connect)
    leaf = read_certificates(revoked.directory / "chain.pem")[0]
    target = RevocationTarget.of(leaf, str(revoked.spiffe_id))
    pki.issuer.revocations.revoke(AuthorityKind.INTERNAL, [target], Reason.KEY_COMPROMISE)
    current = pki.issuer.revocations.current(AuthorityKind.INTERNAL)
    assert current is not None
    install_crls(identities["w-1"].directory, current.pem, utc_now())
    with peer:
        assert await asyncio.to_thread(peer.ended)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110  what it waits for happens in threads
            await asyncio.sleep(0.01)


async def _idle(worker: Running) -> None:
    """Wait until all connections have ended and none holds memory."""
    await _until(lambda: worker.worker.report().connections == 0)
    await _until(lambda: worker.worker._store.pool._reading == {})
