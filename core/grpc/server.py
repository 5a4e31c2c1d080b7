"""A gRPC server for callers of known identity: by the kernel on a unix socket, by mutual TLS on a port.

It uses grpclib's HTTP/2 connection with a handler of its own. It checks the size of a request before it buffers the
request. It closes the connection of a user that the policy does not know before it reads a byte. A broken peer costs
its own connection only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import urllib.parse
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.protocol import AbstractHandler, H2Protocol, Stream
from h2.config import H2Configuration
from h2.exceptions import ProtocolError

from sluice.core.accepting import accept
from sluice.core.errors import SluiceError
from sluice.core.tasks import end_tasks

_LOG = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 512 << 10
"""Largest request of any method; Envoy describes all its extensions in its first one."""
WINDOW_BYTES = 1 << 20
"""HTTP/2 flow control window; larger than the largest request, which is buffered whole."""
MAX_CONNECTIONS_PER_USER = 128
MAX_WRITE_BUFFER_BYTES = 4 << 20
MAX_MESSAGE_CHARACTERS = 500
MAX_PATH_CHARACTERS = 200

_READABLE = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""Characters of a status message that need no percent encoding (gRPC over HTTP/2, Responses)."""
_FRAME = struct.Struct(">BI")
_CREDENTIALS = struct.Struct("3i")


class CallRefused(SluiceError):
    """A call that ends with an error status; ``what`` is sent to the caller."""

    def __init__(self, status: Status, what: str) -> None:
        super().__init__(what)
        self.status = status


@dataclass(frozen=True, slots=True)
class Caller:
    """The peer on a unix socket (SO_PEERCRED, unix(7)); or over mutual TLS, by its SPIFFE ID and without ids (-1)."""

    pid: int
    uid: int
    gid: int
    spiffe_id: str = ""

    def __str__(self) -> str:
        return self.spiffe_id or f"user id {self.uid} (process {self.pid})"

    @property
    def account(self) -> str:
        """The key by which connections of one caller are counted."""
        return self.spiffe_id or str(self.uid)

    @classmethod
    def of(cls, connection: socket.socket) -> Caller:
        """The caller, as the kernel recorded it when the caller connected."""
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(data)
        # The kernel's ids are unsigned.
        return cls(pid, uid & 0xFFFFFFFF, gid & 0xFFFFFFFF)


class Call:
    """One call: who calls, with which metadata, and its messages as bytes."""

    def __init__(self, caller: Caller, metadata: Mapping[str, str], stream: Stream, limit: int) -> None:
        self.caller = caller
        self.metadata = metadata
        self._stream = stream
        self._limit = limit
        self._answered = False

    async def receive(self) -> bytes | None:
        """The next message; None when the caller has sent its last.

        Raises:
            CallRefused: it is too large, compressed or cut off.
        """
        head = await self._read(_FRAME.size)
        if not head:
            return None
        compressed, size = _FRAME.unpack(head)
        if compressed:
            raise CallRefused(Status.UNIMPLEMENTED, "compressed requests are not accepted")
        if size > self._limit:
            raise CallRefused(Status.RESOURCE_EXHAUSTED, f"the request is larger than {self._limit} bytes")
        data = await self._read(size)
        if len(data) != size:
            raise CallRefused(Status.INVALID_ARGUMENT, "the request is cut off")
        return data

    async def _read(self, size: int) -> bytes:
        try:
            return await self._stream.recv_data(size)
        except AssertionError as error:  # grpclib's sign that the stream ended inside a message
            raise CallRefused(Status.INVALID_ARGUMENT, "the request is cut off") from error

    async def receive_one(self) -> bytes:
        """The only message of a call."""
        data = await self.receive()
        if data is None:
            raise CallRefused(Status.INVALID_ARGUMENT, "the request is missing")
        return data

    async def send(self, message: bytes) -> None:
        """Send one message."""
        if not self._answered:
            self._answered = True
            await self._stream.send_headers([(":status", "200"), ("content-type", "application/grpc+proto")])
        await self._stream.send_data(_FRAME.pack(0, len(message)) + message)

    async def finish(self, status: Status, message: str = "") -> None:
        """End the call with ``status``."""
        trailers = [("grpc-status", str(status.value))]
        if message:
            trailers.append(("grpc-message", urllib.parse.quote(message[:MAX_MESSAGE_CHARACTERS], safe=_READABLE)))
        if not self._answered:
            trailers = [(":status", "200"), ("content-type", "application/grpc+proto"), *trailers]
        await self._stream.send_headers(trailers, end_stream=True)
        if self._stream.closable:
            self._stream.reset_nowait()


@dataclass(frozen=True, slots=True)
class Method:
    """The handler of a path; ``max_request_bytes`` bounds each of its requests."""

    serve: Callable[[Call], Awaitable[None]]
    max_request_bytes: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits the load that callers cause: accepted connections, and bytes read."""

    connections_per_second: float
    burst_bytes: int
    bytes_per_second: float
    max_connections: int = MAX_CONNECTIONS_PER_USER


TlsPeer = Callable[[asyncio.BaseTransport], str]
"""The SPIFFE ID of the peer that a mutual TLS listener admitted; raises :class:`SluiceError`."""


class GrpcServer:
    """A gRPC server over HTTP/2.

    Connections come from a bound unix socket (:meth:`start`), or from a listener that is given :meth:`protocol`.

    Args:
        methods: by full path.
        admits: decides about each new connection; one that is not admitted is closed before a byte of it is read.
        tls_peer: returns the peer of a TLS connection; None: TLS connections are refused.
        pace: limit for all callers together, which may be hostile; None: no limit.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        admits: Callable[[Caller], bool],
        tls_peer: TlsPeer | None = None,
        *,
        pace: Pace | None = None,
    ) -> None:
        self._methods = dict(methods)
        self._admits = admits
        self._tls_peer = tls_peer
        self._server: asyncio.Server | None = None
        self._pace = pace
        self._accepting: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None
        self._room = float(pace.burst_bytes) if pace is not None else 0.0
        self._room_at = 0.0
        self._connections: set[_Connection] = set()
        self.refused = 0
        """Connections that were closed at once because their caller is not admitted."""

    async def start(self, listening: socket.socket) -> None:
        """Serve on a bound unix socket, which belongs to the server from now on."""
        loop = asyncio.get_running_loop()
        if self._pace is not None:
            self._listening, self._room_at = listening, loop.time()
            self._accepting = loop.create_task(self._accept(listening, self._pace), name="accept gRPC connections")
            return
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=listening)

    async def _accept(self, listening: socket.socket, pace: Pace) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await accept(listening)
                await loop.connect_accepted_socket(lambda: _Connection(self), connection)
            except OSError as error:  # the peer has gone, or no descriptors are left: others go on
                _LOG.warning("cannot take a connection: %s", error.strerror or error)
            await asyncio.sleep(1 / pace.connections_per_second)

    def pause_after(self, size: int) -> float:
        """Seconds to pause reading from the caller that has just sent ``size`` bytes."""
        if self._pace is None:
            return 0.0
        now = asyncio.get_running_loop().time()
        gained = (now - self._room_at) * self._pace.bytes_per_second
        self._room, self._room_at = min(self._pace.burst_bytes, self._room + gained) - size, now
        return max(0.0, -self._room / self._pace.bytes_per_second)

    def protocol(self) -> asyncio.Protocol:
        """The protocol of one new connection, for a mutual TLS listener."""
        return _Connection(self)

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        if self._server is not None:
            self._server.close()
        if self._accepting is not None and self._listening is not None:
            await end_tasks(self._accepting)
            self._listening.close()
        tasks = [task for connection in self._connections for task in connection.acceptor.tasks]
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close their sockets in the next turn of the loop

    def method(self, path: str) -> Method | None:
        """The method of ``path``, or None."""
        return self._methods.get(path)

    def caller(self, transport: asyncio.BaseTransport) -> Caller:
        """The peer of a new connection; raises ``OSError`` or :class:`SluiceError` when it is unknown."""
        if transport.get_extra_info("ssl_object") is None:
            return Caller.of(transport.get_extra_info("socket"))
        if self._tls_peer is None:
            raise SluiceError("this server is for unix sockets alone")
        return Caller(-1, -1, -1, self._tls_peer(transport))

    def admit(self, connection: _Connection, caller: Caller) -> bool:
        """Whether a new connection may stay."""
        open_now = Counter(other.caller.account for other in self._connections)[caller.account]
        most = MAX_CONNECTIONS_PER_USER if self._pace is None else self._pace.max_connections
        if not self._admits(caller) or open_now >= most:
            self.refused += 1
            _LOG.warning(
                "refused %s: %s",
                caller,
                "too many connections" if open_now >= most else "not in the policy",
            )
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)


class _Connection(H2Protocol):
    caller: Caller

    def __init__(self, server: GrpcServer) -> None:
        self._owner = server
        self._transport: asyncio.Transport | None = None
        self.acceptor = _Acceptor(server, self)
        super().__init__(
            self.acceptor,
            Configuration(
                _keepalive_time=None,
                http2_connection_window_size=WINDOW_BYTES,
                http2_stream_window_size=WINDOW_BYTES,
            ).__for_server__(),
            H2Configuration(client_side=False, header_encoding="ascii", validate_outbound_headers=False),
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Identify the caller before anything is read."""
        self._transport = cast("asyncio.Transport", transport)
        try:
            self.caller = self._owner.caller(transport)
            admitted = self._owner.admit(self, self.caller)
        except (OSError, SluiceError):
            admitted = False
        if not admitted:
            self._transport.abort()
            return
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass data on to HTTP/2. An error closes this connection and no other."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001  # of h2, hpack or grpclib, caused by what the peer sent
            _LOG.warning("%s broke HTTP/2: %s", self.caller, type(error).__name__)
            transport.abort()
            return
        if not transport.is_closing() and transport.get_write_buffer_size() > MAX_WRITE_BUFFER_BYTES:
            _LOG.warning("%s does not read", self.caller)
            transport.abort()
        if (pause := self._owner.pause_after(len(data))) and not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(pause, self._go_on, transport)

    @staticmethod
    def _go_on(transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone."""
        self._owner.forget(self)
        if hasattr(self, "processor"):
            super().connection_lost(exc)

    def abort(self) -> None:
        """Close without sending what is buffered."""
        if self._transport is not None:
            self._transport.abort()


class _Acceptor(AbstractHandler):
    """Starts a task for each call of one connection."""

    def __init__(self, server: GrpcServer, connection: _Connection) -> None:
        self._server = server
        self._connection = connection
        self._by_stream: dict[Stream, asyncio.Task[None]] = {}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The calls under way."""
        return list(self._by_stream.values())

    def accept(self, stream: Stream, headers: list[tuple[str, str]], release_stream: Callable[[], None]) -> None:
        """A call arrived."""
        task = asyncio.create_task(self._serve(stream, dict(headers)))
        self._by_stream[stream] = task

        def done(finished: asyncio.Task[None]) -> None:
            self._by_stream.pop(stream, None)
            with contextlib.suppress(KeyError, ProtocolError):
                release_stream()
            if not finished.cancelled() and (error := finished.exception()) is not None:
                _LOG.error("a call of %s failed", self._connection.caller, exc_info=error)

        task.add_done_callback(done)

    def cancel(self, stream: Stream) -> None:
        """The caller reset its call."""
        if task := self._by_stream.get(stream):
            task.cancel()

    def close(self) -> None:
        """The connection is gone."""
        for task in self.tasks:
            task.cancel()

    async def _serve(self, stream: Stream, headers: Mapping[str, str]) -> None:
        path = headers.get(":path", "")[:MAX_PATH_CHARACTERS]
        method = self._server.method(path) or Method(_unknown, 0)
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith("application/grpc"):
            method = Method(_not_grpc, 0)
        call = Call(self._connection.caller, headers, stream, min(method.max_request_bytes, MAX_REQUEST_BYTES))
        try:
            await method.serve(call)
        except CallRefused as error:
            _LOG.info("%s, %s: %s", call.caller, path, error)
            await _finish(call, error.status, str(error))
        except ProtocolError:
            return  # the caller is gone in the middle of an answer
        except Exception:
            await _finish(call, Status.INTERNAL, "the server failed; see its log")
            raise
        else:
            await _finish(call, Status.OK)


async def _unknown(call: Call) -> None:  # noqa: ARG001  the signature of all methods
    raise CallRefused(Status.UNIMPLEMENTED, "there is no such method here")


async def _not_grpc(call: Call) -> None:  # noqa: ARG001  the signature of all methods
    raise CallRefused(Status.INVALID_ARGUMENT, "not a gRPC call")


async def _finish(call: Call, status: Status, message: str = "") -> None:
    with contextlib.suppress(ProtocolError):
        await call.finish(status, message)
