"""Receivers of an exported audit log: syslog over TLS, and HTTPS; well-behaved and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

ACCEPT_SECONDS = 60.0
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER value that closes the connection at once with a reset."""


def server_context(identity: Path, clients: Path | None = None) -> ssl.SSLContext:
    """Return a context with the certificate in ``identity``; ``clients`` is the authority of client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity / "chain.pem", identity / "key.pem")
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context


Behaviour = Callable[["SyslogReceiver", ssl.SSLSocket], None]


def read_and_answer(receiver: SyslogReceiver, connection: ssl.SSLSocket) -> None:
    """Read to the end and answer close_notify with close_notify, as RFC 5425 requires."""
    receiver.read(connection)
    with contextlib.suppress(OSError):
        connection.unwrap()


def read_and_close(receiver: SyslogReceiver, connection: ssl.SSLSocket) -> None:
    """Read to the end, and close only TCP."""
    receiver.read(connection)


def reset_in_the_middle(receiver: SyslogReceiver, connection: ssl.SSLSocket) -> None:
    """Read a few bytes, then reset the connection."""
    del receiver
    connection.recv(10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def close_unread(receiver: SyslogReceiver, connection: ssl.SSLSocket) -> None:
    """Close without having read anything."""


def hang(receiver: SyslogReceiver, connection: ssl.SSLSocket) -> None:
    """Neither read nor close."""
    del connection
    receiver.ended.wait(ACCEPT_SECONDS)


@dataclass
class SyslogReceiver:
    """Receives syslog on ``port``. ``behaviour`` handles each connection and may be replaced."""

    context: ssl.SSLContext
    behaviour: Behaviour = read_and_answer
    messages: list[bytes] = field(default_factory=list)
    connections: int = 0
    problems: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.getsockname()[1])

    def read(self, connection: ssl.SSLSocket) -> None:
        """Read all frames until the end of the connection; an incomplete last frame is dropped, as receivers do."""
        data = b""
        while chunk := connection.recv(1 << 16):
            data += chunk
        while data:
            length, _, rest = data.partition(b" ")
            if len(rest) < int(length):
                return
            self.messages.append(rest[: int(length)])
            data = rest[int(length) :]

    def _serve(self) -> None:
        while not self.ended.is_set():
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._one, args=(plain,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _one(self, plain: socket.socket) -> None:
        plain.settimeout(ACCEPT_SECONDS)
        with plain:
            try:
                with self.context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) as connection:
                    self._talk(connection)
            except OSError as error:
                self.problems.append(str(error))

    def _talk(self, connection: ssl.SSLSocket) -> None:
        try:
            connection.do_handshake()
        except OSError:
            # Read to the end, so that the sender gets the alert and not a reset.
            while os.read(connection.fileno(), 1 << 16):
                pass
            raise
        self.behaviour(self, connection)

    @contextlib.contextmanager
    def serving(self) -> Iterator[SyslogReceiver]:
        """Accept connections within the block."""
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for each in (thread, *self._threads):
                each.join(ACCEPT_SECONDS)


@dataclass
class HttpReceiver:
    """Receives requests. ``answer`` is a status, a function that returns the response, or None for no answer at all."""

    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answer: int | Callable[[web.BaseRequest], web.StreamResponse] | None = 200

    async def take(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle one request."""
        body = await request.read()
        if self.answer is None:
            await asyncio.Event().wait()
            raise AssertionError
        if not isinstance(self.answer, int):
            return self.answer(request)
        if self.answer < 300:
            self.requests.append(({name.lower(): value for name, value in request.headers.items()}, body))
        return web.Response(status=self.answer, headers={"location": "/elsewhere"})

    @contextlib.asynccontextmanager
    async def serving(self, context: ssl.SSLContext) -> AsyncIterator[str]:
        """Serve within the block; yields the URL."""
        async with serving_https(self.take, context) as url:
            yield url


@contextlib.asynccontextmanager
async def serving_https(
    take: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], context: ssl.SSLContext
) -> AsyncIterator[str]:
    """Run a server that answers with ``take`` within the block; yields its URL."""
    runner = web.ServerRunner(web.Server(take), shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"https://localhost:{runner.addresses[0][1]}/ingest"
    finally:
        await runner.cleanup()
