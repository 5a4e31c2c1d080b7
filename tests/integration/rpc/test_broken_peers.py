"""Peers with a valid identity that violate the protocol lose only their own connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from sluice.pki.channels import Channel, server_policy
from sluice.runtime.rpc import StreamTimeouts, envelope as wire
from sluice.runtime.rpc.exchange import Exchange
from sluice.runtime.rpc.transport.connection import MAX_UNSENT_BYTES
from sluice.runtime.rpc.transport.grpc_stream import (
    ALPN,
    CONTENT_TYPE,
    PATH,
    GrpcStream,
    dial,
)
from sluice.runtime.rpc.transport.window import MAX_OPEN_CALLS
from tests.hostile import TRUST_DOMAIN
from tests.integration.rpc.world import Pair, World, jobmanager, taskmanager
from tests.waiting import until

_MSGPACK = msgspec.msgpack.Encoder()


class Raw:
    """A client that sends whatever a test wants on a valid stream, and records what comes back."""

    def __init__(self, stream: GrpcStream) -> None:
        self.stream = stream
        self.received: list[wire.Envelope] = []
        self.ended: list[str] = []

    def message_received(self, data: bytes) -> None:
        self.received += wire.decode_batch(data)

    def stream_ended(self, reason: str) -> None:
        self.ended.append(reason)

    def resume_sending(self) -> None:
        """Do nothing, because nothing waits for sending to resume."""

    async def send(self, *envelopes: wire.Envelope) -> None:
        self.stream.send(wire.join_batch([wire.encode_envelope(each) for each in envelopes]))

    async def send_frame(self, data: bytes) -> None:
        """Send bytes that are no proper gRPC message."""
        self.stream.send_data(data)


@contextlib.asynccontextmanager
async def raw_peer(pair: Pair, *, hello: bool = True) -> AsyncIterator[Raw]:
    identity = pair.world.pki.identity(taskmanager("broken"))
    context = identity.client_context(server_policy(Channel.RPC, TRUST_DOMAIN), alpn=ALPN)
    stream, _ = await dial(*pair.address, context)
    raw = Raw(stream)
    stream.attach(raw)
    try:
        if hello:
            await raw.send(wire.Hello(wire.PROTOCOL_VERSION))
        yield raw
    finally:
        stream.abort()
        await stream.gone()


def call(number: int, method: str = "hang", arguments: bytes = b"\x90") -> wire.Call:
    return wire.Call(number, "echo", method, None, arguments)


async def test_a_well_behaved_raw_peer_is_answered(pair: Pair) -> None:
    """Otherwise the tests below would prove nothing."""
    async with raw_peer(pair) as raw:
        await raw.send(call(1, "add", b"\x92\x01\x02"), wire.Ping())
        await until(lambda: wire.Reply(1, b"\x03") in raw.received and wire.Pong() in raw.received)
        assert raw.ended == []


def frame(message: bytes, *, flag: int = 0, size: int | None = None) -> bytes:
    return bytes([flag]) + (len(message) if size is None else size).to_bytes(4, "big") + message


MALFORMED = [
    pytest.param(frame(b"\xff\xff\xff garbage"), id="not-msgpack"),
    pytest.param(frame(b""), id="empty-message"),
    pytest.param(frame(_MSGPACK.encode({"a": 1})), id="not-a-batch"),
    pytest.param(frame(_MSGPACK.encode([[99, 1]])), id="unknown-tag"),
    pytest.param(frame(_MSGPACK.encode([[1, -1, "echo", "add", None, b""]])), id="negative-id"),
    pytest.param(frame(_MSGPACK.encode([[1, 1, "echo", "add", None, b"", 0]])), id="extra-field"),
    pytest.param(frame(_MSGPACK.encode([[1, 1, "e" * 300, "add", None, b""]])), id="endless-name"),
    pytest.param(frame(_MSGPACK.encode([[7]] * 5000)), id="too-many-envelopes"),
    pytest.param(frame(b"\x91" * 100_000), id="deeply-nested"),
    pytest.param(frame(b"\x90" + b"\x00"), id="trailing-bytes"),
    pytest.param(frame(b"", size=wire.MAX_BATCH_BYTES + 1), id="oversize-announced"),
    pytest.param(frame(b"", size=0xFFFFFFFF), id="four-gigabytes-announced"),
    pytest.param(frame(b"\x90", flag=1), id="compressed"),
    pytest.param(frame(_MSGPACK.encode([[0, wire.PROTOCOL_VERSION]])), id="hello-again"),
    pytest.param(frame(_MSGPACK.encode([[6, 1, 0]])), id="consumed-what-was-not-sent"),
]


@pytest.mark.parametrize("data", MALFORMED)
async def test_a_malformed_message_ends_its_own_stream_only(pair: Pair, data: bytes) -> None:
    async with raw_peer(pair) as raw:
        await until(lambda: len(pair.server.peers()) == 2)
        await raw.send_frame(data)
        await until(lambda: raw.ended != [])
        await until(lambda: len(pair.server.peers()) == 1)
        assert await pair.gateway.add(1) == 2
        assert not pair.peer.closed


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(call(1, "add", b"\x92\x01\x02"), id="call-before-hello"),
        pytest.param(wire.Ping(), id="ping-before-hello"),
        pytest.param(wire.Hello(wire.OLDEST_VERSION - 1), id="too-old"),
    ],
)
async def test_a_stream_that_does_not_begin_with_a_valid_hello_is_ended(pair: Pair, first: wire.Envelope) -> None:
    async with raw_peer(pair, hello=False) as raw:
        await raw.send(first)
        await until(lambda: raw.ended != [])
        assert not any(isinstance(each, wire.Reply) for each in raw.received)
        assert await pair.gateway.add(1) == 2


async def test_a_repeated_call_number_ends_the_stream(pair: Pair) -> None:
    async with raw_peer(pair) as raw:
        await raw.send(call(1), call(1))
        await until(lambda: raw.ended != [])


async def test_more_open_calls_than_the_window_allows_end_the_stream(pair: Pair) -> None:
    async with raw_peer(pair) as raw:
        await raw.send(*(call(number) for number in range(MAX_OPEN_CALLS)))
        await raw.send(wire.Ping())
        await until(lambda: wire.Pong() in raw.received)
        assert raw.ended == []
        await raw.send(call(MAX_OPEN_CALLS))
        await until(lambda: raw.ended != [])
        assert await pair.gateway.add(1) == 2


async def test_answers_to_calls_never_made_are_ignored(pair: Pair) -> None:
    async with raw_peer(pair) as raw:
        await raw.send(wire.Reply(77, b""), wire.Failure(78, "x", "", "", ""), wire.Cancel(79), wire.Ping())
        await until(lambda: wire.Pong() in raw.received)
        assert raw.ended == []


async def test_a_cancelled_call_is_skipped_and_frees_its_place_in_the_window(pair: Pair) -> None:
    async with raw_peer(pair) as raw:
        for number in range(3 * MAX_OPEN_CALLS):
            await raw.send(call(number), wire.Cancel(number))
        await raw.send(call(3 * MAX_OPEN_CALLS, "add", b"\x92\x01\x02"))
        await until(lambda: wire.Reply(3 * MAX_OPEN_CALLS, b"\x03") in raw.received)
        assert raw.ended == []


class Http2:
    """A TLS client that speaks HTTP/2 by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="ascii"))
        self.h2.initiate_connection()

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    async def ended(self) -> bytes:
        """Read until the server closes the connection, and return the data."""
        data = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                while more := await self.reader.read(65536):
                    data += more
        return data


@contextlib.asynccontextmanager
async def http2_peer(world: World, address: tuple[str, int]) -> AsyncIterator[Http2]:
    identity = world.pki.identity(taskmanager("broken"))
    context = identity.client_context(server_policy(Channel.RPC, TRUST_DOMAIN), alpn=ALPN)
    connection = socket.create_connection(address)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is not read fills up soon
    reader, writer = await asyncio.open_connection(sock=connection, ssl=context, server_hostname="localhost")
    try:
        yield Http2(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def headers(path: str = PATH, method: str = "POST", content_type: str = CONTENT_TYPE) -> list[tuple[str, str]]:
    return [
        (":method", method),
        (":scheme", "https"),
        (":path", path),
        (":authority", "x"),
        ("content-type", content_type),
    ]


def _garbage(peer: Http2) -> None:
    peer.writer.write(b"\x00" * 4096)


def _http1(peer: Http2) -> None:
    peer.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def _preface_then_garbage(peer: Http2) -> None:
    peer.flush()
    peer.writer.write(b"\x00\x00\x05\x04\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff")  # SETTINGS of 5 bytes


def _data_without_stream(peer: Http2) -> None:
    peer.flush()
    peer.writer.write(b"\x00\x00\x01\x00\x00\x00\x00\x00\x07x")


def _push_promise(peer: Http2) -> None:
    peer.flush()
    peer.writer.write(b"\x00\x00\x04\x05\x04\x00\x00\x00\x01\x00\x00\x00\x02")


def _endless_headers(peer: Http2) -> None:
    peer.flush()
    peer.writer.write(b"\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82")
    peer.writer.write(b"\x00\x40\x00\x09\x00\x00\x00\x00\x01" + b"\x00" * 16384)
    for _ in range(100):
        peer.writer.write(b"\x00\x00\x01\x09\x00\x00\x00\x00\x01\x82")


def _second_stream(peer: Http2) -> None:
    peer.h2.send_headers(1, headers())
    peer.h2.send_headers(3, headers())
    peer.flush()


def _wrong_path(peer: Http2) -> None:
    peer.h2.send_headers(1, headers(path="/grpc.reflection.v1.ServerReflection/Info"))
    peer.flush()


def _wrong_method(peer: Http2) -> None:
    peer.h2.send_headers(1, headers(method="GET"))
    peer.flush()


def _wrong_content(peer: Http2) -> None:
    peer.h2.send_headers(1, headers(content_type="application/grpc+proto"))
    peer.flush()


def _reset(peer: Http2) -> None:
    peer.h2.send_headers(1, headers())
    peer.h2.reset_stream(1)
    peer.flush()


def _half_closed(peer: Http2) -> None:
    peer.h2.send_headers(1, headers(), end_stream=True)
    peer.flush()


@pytest.mark.parametrize(
    "misbehave",
    [
        _garbage,
        _http1,
        _preface_then_garbage,
        _data_without_stream,
        _push_promise,
        _endless_headers,
        _second_stream,
        _wrong_path,
        _wrong_method,
        _wrong_content,
        _reset,
        _half_closed,
    ],
)
async def test_broken_http2_ends_its_own_connection_only(pair: Pair, misbehave: Callable[[Http2], None]) -> None:
    async with http2_peer(pair.world, pair.address) as peer:
        misbehave(peer)
        await peer.ended()
    await until(lambda: len(pair.server.peers()) == 1)
    assert await pair.gateway.add(1) == 2
    assert not pair.peer.closed


async def test_a_connection_that_opens_no_stream_is_dropped(world: World) -> None:
    server = world.service(jobmanager(), StreamTimeouts(hello=0.2))
    host, port = await server.listen("127.0.0.1", 0)
    context = world.pki.identity(taskmanager()).client_context(server_policy(Channel.RPC, TRUST_DOMAIN), alpn=ALPN)
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    peer = Http2(reader, writer)
    peer.flush()
    await peer.ended()
    writer.close()


async def test_a_stream_that_sends_no_hello_is_dropped(world: World) -> None:
    server = world.service(jobmanager(), StreamTimeouts(hello=0.2))
    host, port = await server.listen("127.0.0.1", 0)
    context = world.pki.identity(taskmanager()).client_context(server_policy(Channel.RPC, TRUST_DOMAIN), alpn=ALPN)
    stream, _ = await dial(host, port, context)
    raw = Raw(stream)
    stream.attach(raw)
    await until(lambda: raw.ended != [])
    await until(lambda: server.peers() == ())


async def test_a_flood_of_pings_from_a_peer_that_does_not_read_is_cut(world: World) -> None:
    """Answers to HTTP/2 pings pile up in our memory, and nothing else would end such a connection."""
    server = world.service(jobmanager(), StreamTimeouts(hello=3600))
    async with http2_peer(world, await server.listen("127.0.0.1", 0)) as peer:
        peer.h2.send_headers(1, headers())
        peer.flush()
        await until(lambda: len(server.peers()) == 1)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a full-duplex transport has it
        ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"\x00" * 8
        with contextlib.suppress(ConnectionError):
            for _ in range(400):
                peer.writer.write(ping * 8192)
                await peer.writer.drain()
        await until(lambda: server.peers() == ())


async def test_a_peer_that_does_not_read_its_answers_is_disconnected(pair: Pair) -> None:
    """Its answers pile up here only to a limit; other peers do not notice."""
    size = wire.MAX_ENVELOPE_BYTES - 4096
    async with raw_peer(pair) as raw:
        await until(lambda: len(pair.server.peers()) == 2)
        slow = next(each for each in pair.server.peers() if each.identity.name == "broken")
        raw.stream._http2._open_window = lambda *_: None  # type: ignore[method-assign]  # it never lets more come
        for number in range(MAX_UNSENT_BYTES // size + 5):
            await raw.send(call(number, "blob", _MSGPACK.encode((bytes(size),))))
            if number % 4 == 3:  # no more under way at a time than agreed
                await until(lambda: pair.echo.stats.processed > number or slow.closed)  # noqa: B023  # awaited here
        await until(lambda: slow.closed)
        assert isinstance(slow, Exchange)
        assert "does not read" in str(slow.connection.end_reason)
        assert await pair.gateway.add(1) == 2


async def test_an_endpoint_that_watches_a_peer_is_notified_when_its_stream_ends(pair: Pair) -> None:
    told: list[str] = []
    pair.echo.watch(pair.server.peers()[0], told.append, "gone")
    await pair.client.close()
    await until(lambda: told == ["gone"])
