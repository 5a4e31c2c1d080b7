"""gRPC streams over asyncio's TLS transports: one stream per connection, which carries whole messages.

The wire format is gRPC's (a POST over HTTP/2, messages with a five-byte prefix). The size of a message is checked
before any of it is buffered. Messages are delivered without a task for each, and a faulty peer affects only its own
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any, Protocol, cast

from sluice.core import PeerRefused
from sluice.pki import SpiffeId
from sluice.pki.tls import peer_of
from sluice.runtime.rpc.envelope import MAX_BATCH_BYTES
from sluice.runtime.rpc.errors import PeerUnreachable
from sluice.runtime.rpc.transport.http2 import Headers, Http2Stream, Http2Violation

ALPN = ("h2",)
PATH = "/sluice.rpc.v1.Rpc/Exchange"
CONTENT_TYPE = "application/grpc+msgpack"

MAX_WRITE_BUFFER_BYTES = 1 << 20
"""Number of unsent bytes of one connection, including answers to pings, at which it is dropped."""

READ_BUFFER_BYTES = 32 << 10
"""Maximum number of bytes per read of one connection: two TLS records."""

DIAL_TIMEOUT_SECONDS = 10.0
"""Timeout for connecting to a server."""

CLOSE_TIMEOUT_SECONDS = 1.0
"""Timeout for a clean close, after which the connection is dropped."""

_PREFIX_BYTES = 5
_REQUEST = {b":method": b"POST", b":path": PATH.encode(), b"content-type": CONTENT_TYPE.encode()}
_RESPONSE = {b":status": b"200", b"content-type": CONTENT_TYPE.encode()}
_RESPONSE_HEADERS = ((":status", "200"), ("content-type", CONTENT_TYPE))
_OK = (("grpc-status", "0"),)
_UNIMPLEMENTED = (*_RESPONSE_HEADERS, ("grpc-status", "12"))

_LOG = logging.getLogger(__name__)


class Receiver(Protocol):
    """Receives the messages and events of a stream."""

    def message_received(self, data: bytes) -> None:
        """One whole message."""

    def stream_ended(self, reason: str) -> None:
        """The stream has ended; may be called more than once."""

    def resume_sending(self) -> None:
        """The stream is writable again."""


class GrpcStream(asyncio.Protocol):
    """Either end of a connection and the bidirectional gRPC stream on it."""

    peer: SpiffeId

    def __init__(self, *, accept: Callable[[GrpcStream], object] | None = None, open_timeout: float = 0.0) -> None:
        self._accept = accept
        self._open_timeout = open_timeout
        self._serving = accept is not None
        self._http2 = Http2Stream(self, serving=self._serving)
        self._receiver: Receiver | None = None
        self._pending = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._answered = False
        self._lost = asyncio.Event()

    # --- for the receiver ------------------------------------------------------------------------------

    def attach(self, receiver: Receiver) -> None:
        """Deliver to ``receiver`` from now on. Call it before control returns to the event loop."""
        self._receiver = receiver

    @property
    def writable(self) -> bool:
        """Whether a message is sent at once. If not, ``resume_sending`` is called when the stream is writable again."""
        return not self._paused and not self._http2.blocked

    def send(self, message: bytes) -> None:
        """Send one message with the gRPC length prefix; data that cannot be sent yet is kept."""
        self._respond()
        self.send_data(b"\x00" + len(message).to_bytes(4, "big") + message)

    def send_data(self, data: bytes) -> None:
        """Send raw bytes."""
        self._http2.send_data(data)
        self._flush()

    def finish(self) -> None:
        """End the stream, and close its connection when all data is sent."""
        if self._serving:
            self._respond()
            self._http2.send_headers(_OK, end=True)
        else:
            self._http2.send_end()
        self._close()

    async def gone(self) -> None:
        """Wait, for a bounded time, until the connection is gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._lost.wait()

    def abort(self) -> None:
        """Drop the connection."""
        self._http2.stop()
        self._pending.clear()
        if self._transport is not None:
            self._transport.abort()

    def open(self, authority: str) -> None:
        """Send the request, as the dialing end."""
        self._http2.send_headers(
            (
                (":method", "POST"),
                (":scheme", "https"),
                (":path", PATH),
                (":authority", authority),
                ("te", "trailers"),
                ("content-type", CONTENT_TYPE),
            )
        )
        self._flush()

    # --- for asyncio -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when the TLS handshake is complete and the peer is admitted."""
        self._transport = cast("asyncio.Transport", transport)
        self.peer = peer_of(self._transport)
        _shrink_buffers(self._transport)
        if self._serving:
            self._timer = asyncio.get_running_loop().call_later(self._open_timeout, self.abort)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Process bytes of HTTP/2. A violation affects only this connection."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            self._http2.receive(data)
        except Http2Violation as violation:
            _LOG.warning("rpc peer %s broke HTTP/2: %s", self.peer, violation)
            self._give_up(f"it broke HTTP/2: {violation}")
            return
        self._flush()
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > MAX_WRITE_BUFFER_BYTES:
            _LOG.warning("rpc peer %s does not read", self.peer)
            self.abort()
        elif self._receiver is not None and not self._paused and not self._http2.blocked:
            self._receiver.resume_sending()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """The transport's buffer has room."""
        self._paused = False
        if self._receiver is not None and self.writable:
            self._receiver.resume_sending()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._lost.set()
        if self._timer is not None:
            self._timer.cancel()
        self._tell_end(f"connection lost: {exc}" if exc else "connection lost")

    # --- for HTTP/2 --------------------------------------------------------------------------------------

    def headers_received(self, headers: Headers) -> None:
        """Check the headers with which the peer opened its direction."""
        given = dict(headers)
        if not self._serving:
            if any(given.get(name) != value for name, value in _RESPONSE.items()):
                self._give_up("it does not speak sluice.rpc.v1")
            return
        if self._timer is not None:
            self._timer.cancel()
        if any(given.get(name) != value for name, value in _REQUEST.items()):
            _LOG.warning("rpc peer %s sent a request other than %s", self.peer, PATH)
            self._http2.send_headers(_UNIMPLEMENTED, end=True)
            self._http2.stop()
            self._close()
        elif self._accept is not None:
            self._accept(self)

    def end_received(self, reason: str) -> None:
        """The peer ended its direction."""
        self._tell_end(reason)

    def content_received(self, content: memoryview) -> None:
        """Split the stream into messages and pass them on."""
        pending = self._pending
        pending += content
        start = 0
        while len(pending) - start >= _PREFIX_BYTES:
            size = int.from_bytes(pending[start + 1 : start + _PREFIX_BYTES], "big")
            # Check the size before the message is buffered. Compression is never negotiated.
            if size > MAX_BATCH_BYTES or pending[start] != 0:
                self._give_up(f"it sent a message of {size} bytes, at most {MAX_BATCH_BYTES} uncompressed are accepted")
                return
            end = start + _PREFIX_BYTES + size
            if len(pending) < end:
                break
            message = bytes(memoryview(pending)[start + _PREFIX_BYTES : end])
            start = end
            if self._receiver is not None:
                self._receiver.message_received(message)
            if not pending:  # passing it on has closed the connection
                return
        if start:
            del pending[:start]

    # --- inside --------------------------------------------------------------------------------------------

    def _respond(self) -> None:
        if self._serving and not self._answered:
            self._answered = True
            self._http2.send_headers(_RESPONSE_HEADERS)

    def _flush(self) -> None:
        if self._transport is not None and (output := self._http2.take_output()):
            self._transport.write(output)

    def _close(self) -> None:
        """Send what is buffered, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _give_up(self, reason: str) -> None:
        self._tell_end(reason)
        self.abort()

    def _tell_end(self, reason: str) -> None:
        if self._receiver is not None:
            self._receiver.stream_ended(reason)


def _shrink_buffers(transport: asyncio.Transport) -> None:
    """Shrink the read buffer of asyncio's TLS: its 256 KiB per connection are most of an idle peer's memory.

    There is no public API for this. Where the private names differ, nothing changes.
    """
    protocol: Any = getattr(transport, "_ssl_protocol", None)
    if isinstance(getattr(protocol, "_ssl_buffer", None), bytearray):
        buffer = bytearray(READ_BUFFER_BYTES)
        protocol.max_size = READ_BUFFER_BYTES
        protocol._ssl_buffer, protocol._ssl_buffer_view = buffer, memoryview(buffer)  # noqa: SLF001  # see above


def accepting_protocol(accept: Callable[[GrpcStream], object], open_timeout: float) -> GrpcStream:
    """Return the protocol for one accepted connection. ``accept`` gets its stream and attaches a receiver at once.

    A client that opens no stream within ``open_timeout`` seconds is dropped.
    """
    return GrpcStream(accept=accept, open_timeout=open_timeout)


async def dial(host: str, port: int, context: ssl.SSLContext) -> tuple[GrpcStream, asyncio.BaseTransport]:
    """Connect and open the stream; raises :class:`PeerUnreachable` or :class:`sluice.core.errors.PeerRefused`."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(DIAL_TIMEOUT_SECONDS):
            transport, stream = await loop.create_connection(
                GrpcStream,
                host,
                port,
                ssl=context,
                server_hostname=host,
                ssl_handshake_timeout=DIAL_TIMEOUT_SECONDS,
            )
    except ssl.SSLCertVerificationError as error:
        raise PeerRefused(f"{host}:{port} does not have the expected identity: {error.verify_message}") from error
    except TimeoutError as error:
        raise PeerUnreachable(f"{host}:{port} did not answer within {DIAL_TIMEOUT_SECONDS} s") from error
    except OSError as error:
        raise PeerUnreachable(f"cannot connect to {host}:{port}: {error.strerror or error}") from error
    stream.open(f"{host}:{port}")
    return stream, transport
