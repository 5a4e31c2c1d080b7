"""Servers with one weakness each, in threads of the test process, and sound servers to compare them with."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

Handler = Callable[[socket.socket], None]

READ_SECONDS = 30.0


def speak(connection: socket.socket) -> None:
    """Greet an admitted client, so that it knows at once; then read until the client is done."""
    connection.sendall(b"hello\n")
    drain(connection)


def drain(connection: socket.socket) -> None:
    """Read until the client is done."""
    while connection.recv(1 << 16):
        pass


Answer = Callable[[str, str, Mapping[str, str]], tuple[str, str, str]]
"""Method, target and headers (names in lower case) to status line, further header lines and body."""


def http(answer: Answer) -> Handler:
    """Return the handler of an HTTP/1.1 server. It answers 400 to anything that is not HTTP."""

    def handle(connection: socket.socket) -> None:
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                received = connection.recv(1 << 16)
                if not received:
                    return
                data += received
                if not data[:1].isalpha():
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    return
            head, _, data = data.partition(b"\r\n\r\n")
            request, *lines = head.decode("latin-1").split("\r\n")
            method, target, *_ = request.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            data = data[int(headers.get("content-length", "0")) :]
            status, more, body = answer(method, target, headers)
            connection.sendall(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}\r\n{body}".encode())

    return handle


def http_answer(status: str, headers: str = "", body: str = "") -> Handler:
    """Return the handler of an HTTP server that gives the same answer to every request."""
    return http(lambda *_: (status, headers, body))


@contextlib.contextmanager
def serving(handle: Handler | None = None, context: ssl.SSLContext | None = None) -> Iterator[tuple[str, int]]:
    """Listen on a free loopback port. Without ``context`` there is no TLS, and by default no greeting."""
    handler = handle or (drain if context is None else speak)
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []
    open_connections: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            connection.settimeout(READ_SECONDS)
            if context is None:
                handler(connection)
                return
            with context.wrap_socket(connection, server_side=True) as secured:
                open_connections.append(secured)
                handler(secured)

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            open_connections.append(connection)
            thread = threading.Thread(target=serve, args=(connection,), daemon=True)
            threads.append(thread)
            thread.start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listening.getsockname()[:2]
    finally:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        acceptor.join()
        for connection in open_connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for connection in open_connections:
            connection.close()


def server_context(
    directory: Path,
    *,
    client: ssl.VerifyMode = ssl.CERT_REQUIRED,
    trust: bytes | None = None,
    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    maximum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    tickets: int = 0,
    chain: str = "chain.pem",
) -> ssl.SSLContext:
    """Return a context with the identity in ``directory``. It is as secure as Python allows, except for the options."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = minimum, maximum
    context.num_tickets = tickets
    if not tickets:
        context.options |= ssl.OP_NO_TICKET
    context.load_cert_chain(directory / chain, directory / "key.pem")
    context.verify_mode = client
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if client is not ssl.CERT_NONE:
        context.load_verify_locations(cadata=(trust or (directory / "ca.pem").read_bytes()).decode())
    return context
