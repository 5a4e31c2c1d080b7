"""Streams over grpclib: the only module that knows its inner names.

grpclib's HTTP/2 connection is used with a handler of our own, one level below its ``Server`` and
``Channel``: so the size of a message is checked before it is buffered, messages are delivered without
a task each, and a broken peer costs its own connection only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from grpclib.config import Configuration
from grpclib.protocol import AbstractHandler, Connection, H2Protocol
from grpclib.protocol import Stream as Http2Stream
from grpclib.utils import Wrapper
from h2.config import H2Configuration

from pki.errors import PeerRefused
from pki.identity import SpiffeId
from pki.tls import peer_of
from runtime.rpc.envelope import MAX_BATCH_BYTES
from runtime.rpc.errors import PeerUnreachable

ALPN = ("h2",)
PATH = "/sluice.rpc.v1.Rpc/Exchange"
CONTENT_TYPE = "application/grpc+msgpack"

WINDOW_BYTES = 4 << 20
"""HTTP/2 flow control window of a stream and of a connection, in bytes."""

MAX_WRITE_BUFFER_BYTES = 1 << 20
"""Unsent bytes of one connection, among them answers to pings, at which it is dropped."""

DIAL_TIMEOUT_SECONDS = 10.0
"""How long a dialed server may take to accept the connection."""

CLOSE_TIMEOUT_SECONDS = 1.0
"""How long closing in order may take before the connection is dropped."""

_HEADER_BYTES = 5
_GRPC_OK = ("grpc-status", "0")
_GRPC_UNIMPLEMENTED = ("grpc-status", "12")

_log = logging.getLogger(__name__)


class Receiver(Protocol):
    """Who is told what arrives on a stream."""

    def message_received(self, data: bytes) -> None:
        """One whole message."""

    def stream_ended(self, reason: str) -> None:
        """Nothing more will come; called once or more."""


class GrpcStream:
    """One bidirectional gRPC stream; either end."""

    def __init__(self, protocol: ExchangeProtocol, stream: Http2Stream, *, serving: bool) -> None:
        self.peer = protocol.peer
        self._protocol = protocol
        self._stream = stream
        self._serving = serving
        self._headers_due = serving
        self._receiver: Receiver | None = None
        stream.wrapper = _Termination(self)
        stream.buffer = _Assembler(self, protocol.connection, stream.id or 0)  # type: ignore[assignment]  # same three methods

    def attach(self, receiver: Receiver) -> None:
        """Deliver to ``receiver`` from now on; to be called before control returns to the event loop."""
        self._receiver = receiver

    async def send(self, message: bytes) -> None:
        """Send one message with the gRPC length prefix; waits for flow control."""
        if self._headers_due:
            self._headers_due = False
            await self._stream.send_headers([(":status", "200"), ("content-type", CONTENT_TYPE)])
        await self._stream.send_data(b"\x00" + len(message).to_bytes(4, "big") + message)

    async def finish(self) -> None:
        """End the stream and close its connection in order; waits until it is gone."""
        if self._serving:
            await self._stream.send_headers([_GRPC_OK], end_stream=True)
        else:
            await self._stream.end()
        self._protocol.close()
        await self.gone()

    async def gone(self) -> None:
        """Wait, for a bounded time, until the connection is gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._protocol.lost.wait()

    def abort(self) -> None:
        """Drop the connection."""
        self._protocol.abort()

    def headers_wrong(self) -> str:
        """What is wrong with the peer's response headers; empty when nothing is."""
        if self._serving:
            return ""
        headers = dict(self._stream.headers or ())
        if headers.get(":status") != "200" or headers.get("content-type") != CONTENT_TYPE:
            return "it does not speak sluice.rpc.v1"
        return ""

    def deliver(self, message: bytes) -> None:
        """Called with each whole message."""
        if self._receiver is not None:
            self._receiver.message_received(message)

    def ended(self, reason: str) -> None:
        """Called when nothing more can come."""
        if self._receiver is not None:
            self._receiver.stream_ended(reason)


class _Termination(Wrapper):
    """grpclib cancels this when a stream breaks."""

    def __init__(self, stream: GrpcStream) -> None:
        super().__init__()
        self._target = stream

    def cancel(self, error: Exception) -> None:
        self._target.ended(str(error))


class _Assembler:
    """In the place of grpclib's ``Buffer``: cuts DATA frames into messages and passes them on at once."""

    def __init__(self, stream: GrpcStream, connection: Connection, stream_id: int) -> None:
        self._target = stream
        self._stream_id = stream_id
        self._connection = connection
        self._pending = bytearray()
        self._checked = False

    def add(self, data: bytes, ack_size: int) -> None:
        if not self._checked:
            self._checked = True
            wrong = self._target.headers_wrong()
            if wrong:
                self._refuse(wrong)
                return
        self._pending += data
        self._cut()
        # What was passed on is bounded by the exchange, so the window is opened again right away. Passing it on may
        # also have closed the connection.
        if not self._connection.is_closing():
            self._connection.ack(self._stream_id, ack_size)

    def eof(self) -> None:
        wrong = self._target.headers_wrong()
        self._target.ended(wrong or "the peer ended the stream")

    def unacked_size(self) -> int:
        return 0

    def _refuse(self, reason: str) -> None:
        self._pending.clear()
        self._target.ended(reason)
        self._target.abort()

    def _cut(self) -> None:
        start = 0
        pending = self._pending
        while len(pending) - start >= _HEADER_BYTES:
            size = int.from_bytes(pending[start + 1 : start + _HEADER_BYTES], "big")
            # 1. Checked before anything of the message is buffered. 2. Compression is never negotiated.
            if size > MAX_BATCH_BYTES or pending[start] != 0:
                self._refuse(f"it sent a message of {size} bytes, at most {MAX_BATCH_BYTES} uncompressed are accepted")
                return
            end = start + _HEADER_BYTES + size
            if len(pending) < end:
                break
            self._target.deliver(bytes(memoryview(pending)[start + _HEADER_BYTES : end]))
            start = end
        if start:
            del pending[:start]


class ExchangeProtocol(H2Protocol):
    """One HTTP/2 connection that carries exactly one stream."""

    peer: SpiffeId

    def __init__(self, handler: AbstractHandler, *, serving: bool) -> None:
        super().__init__(
            handler,
            Configuration(
                _keepalive_time=None,
                http2_connection_window_size=WINDOW_BYTES,
                http2_stream_window_size=WINDOW_BYTES,
            ).__for_server__(),
            H2Configuration(
                client_side=not serving,
                header_encoding="ascii",
                validate_inbound_headers=True,
                validate_outbound_headers=False,
                normalize_inbound_headers=True,
                normalize_outbound_headers=False,
            ),
        )
        self.lost = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TLS handshake is complete and the peer admitted."""
        self.transport = cast("asyncio.Transport", transport)
        self.peer = peer_of(self.transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Whatever goes wrong in here concerns this connection alone."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001  # of h2, hpack or grpclib, caused by what the peer sent
            _log.warning("rpc peer %s broke HTTP/2: %s", self.peer, type(error).__name__)
            self.abort()
            return
        if not transport.is_closing() and transport.get_write_buffer_size() > MAX_WRITE_BUFFER_BYTES:
            _log.warning("rpc peer %s does not read", self.peer)
            self.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone."""
        self.lost.set()
        if hasattr(self, "processor"):
            super().connection_lost(exc)

    def close(self) -> None:
        """Send what is buffered, then close."""
        if self.transport is not None and hasattr(self, "processor"):
            self.connection.close()

    def abort(self) -> None:
        """Close without sending what is buffered."""
        if self.transport is not None:
            self.transport.abort()


class _Acceptor(AbstractHandler):
    """The serving end: takes the first request for :data:`PATH`, turns everything else away."""

    def __init__(self, accept: Callable[[GrpcStream], object], open_timeout: float) -> None:
        self._accept = accept
        self._open_timeout = open_timeout
        self._protocol: ExchangeProtocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._taken = False
        self._tasks: set[asyncio.Task[None]] = set()

    def protocol(self) -> ExchangeProtocol:
        """The protocol of a new connection."""
        self._protocol = ExchangeProtocol(self, serving=True)
        self._timer = asyncio.get_running_loop().call_later(self._open_timeout, self._expire)
        return self._protocol

    def accept(self, stream: Http2Stream, headers: list[tuple[str, str]], release_stream: Callable[[], None]) -> None:
        """A request arrived."""
        protocol = self._protocol
        if protocol is None or self._taken:
            self._expire()
            return
        self._taken = True
        values = dict(headers)
        if (values.get(":method"), values.get(":path"), values.get("content-type")) != ("POST", PATH, CONTENT_TYPE):
            _log.warning("rpc peer %s asked for something else than %s", protocol.peer, PATH)
            task = asyncio.create_task(self._turn_away(protocol, stream, release_stream))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._accept(GrpcStream(protocol, stream, serving=True))

    def cancel(self, stream: Http2Stream) -> None:
        """The peer reset its stream; the stream's own termination has told that."""

    def close(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        if self._protocol is not None:
            self._protocol.abort()

    async def _turn_away(
        self, protocol: ExchangeProtocol, stream: Http2Stream, release_stream: Callable[[], None]
    ) -> None:
        headers = [(":status", "200"), ("content-type", CONTENT_TYPE), _GRPC_UNIMPLEMENTED]
        await stream.send_headers(headers, end_stream=True)
        release_stream()
        protocol.close()


class _Dialer(AbstractHandler):
    """The dialing end: nothing is requested of it."""

    def accept(self, stream: Http2Stream, headers: list[tuple[str, str]], release_stream: Callable[[], None]) -> None:
        """A server does not open streams."""
        raise NotImplementedError("a server opened a stream")

    def cancel(self, stream: Http2Stream) -> None:
        """The server reset the stream; the stream's own termination has told that."""

    def close(self) -> None:
        """The connection is gone; the stream's own termination has told that."""


def accepting_protocol(accept: Callable[[GrpcStream], object], open_timeout: float) -> ExchangeProtocol:
    """The protocol for one accepted connection; ``accept`` gets its stream, and attaches a receiver at once.

    A client that opens none within ``open_timeout`` seconds is dropped.
    """
    return _Acceptor(accept, open_timeout).protocol()


async def dial(host: str, port: int, context: ssl.SSLContext) -> tuple[GrpcStream, asyncio.BaseTransport]:
    """Connect and open the stream; raises :class:`PeerUnreachable` or :class:`pki.errors.PeerRefused`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_SECONDS):
            transport, protocol = await loop.create_connection(
                lambda: ExchangeProtocol(_Dialer(), serving=False),
                host,
                port,
                ssl=context,
                server_hostname=host,
                ssl_handshake_timeout=DIAL_TIMEOUT_SECONDS,
            )
    except ssl.SSLCertVerificationError as error:
        raise PeerRefused(f"{host}:{port} is not who it should be: {error.verify_message}") from error
    except TimeoutError as error:
        raise PeerUnreachable(f"{host}:{port} did not answer within {DIAL_TIMEOUT_SECONDS} s") from error
    except OSError as error:
        raise PeerUnreachable(f"cannot connect to {host}:{port}: {error.strerror or error}") from error
    try:
        stream = protocol.connection.create_stream()
        await stream.send_request(
            [
                (":method", "POST"),
                (":scheme", "https"),
                (":path", PATH),
                (":authority", f"{host}:{port}"),
                ("te", "trailers"),
                ("content-type", CONTENT_TYPE),
            ],
            _processor=protocol.processor,
        )
        return GrpcStream(protocol, stream, serving=False), transport
    except BaseException:
        protocol.abort()
        raise
