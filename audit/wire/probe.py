"""Send one hello and read one answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cryptography import x509

from sluice.audit.errors import WireError
from sluice.audit.wire.client import MAX_CHAIN_CERTIFICATES
from sluice.audit.wire.codec import Reader
from sluice.audit.wire.connection import ConnectionEnded, Ending, MessageReader, NotTls, WireConnection, alert_of
from sluice.audit.wire.hello import ClientHello, ServerHello, parse_server_hello
from sluice.audit.wire.numbers import Content, Message, Version

Answer = ServerHello | Ending
_NAMED_CURVE = b"\x03"


@dataclass(frozen=True, slots=True)
class Flight:
    """The clear-text flight of a server of TLS 1.2 or older, up to its ServerHelloDone."""

    hello: ServerHello
    messages: dict[int, bytes]

    @property
    def group(self) -> int:
        """The named curve of its key exchange; 0 when there is none."""
        exchange = self.messages.get(Message.SERVER_KEY_EXCHANGE, b"")
        return int.from_bytes(exchange[1:3], "big") if exchange[:1] == _NAMED_CURVE else 0

    @property
    def certificates(self) -> tuple[x509.Certificate, ...]:
        """The chain, leaf first; raises :class:`WireError` when it cannot be read."""
        entries = Reader(Reader(self.messages.get(Message.CERTIFICATE, b"\x00\x00\x00")).vector(3))
        found: list[x509.Certificate] = []
        while entries.left:
            if len(found) >= MAX_CHAIN_CERTIFICATES:
                raise WireError(f"a chain of more than {MAX_CHAIN_CERTIFICATES} certificates")
            try:
                found.append(x509.load_der_x509_certificate(entries.vector(3)))
            except ValueError as error:
                raise WireError("the server's certificate cannot be read") from error
        return tuple(found)

    @property
    def certificate_requested(self) -> bool:
        """Whether it asks the client for a certificate."""
        return Message.CERTIFICATE_REQUEST in self.messages


def offer(address: tuple[str, int], hello: ClientHello, timeout: float) -> Answer:
    """Send ``hello``; returns the server's hello, or how it ended the connection.

    Raises:
        OSError: no connection.
        WireError: the answer is not TLS by its rules.
    """
    with WireConnection(address, timeout) as connection:
        try:
            for kind, body in _answers(connection, hello):
                if kind != Message.SERVER_HELLO:
                    return NotTls(body[:200])
                return parse_server_hello(body)
        except ConnectionEnded as ended:
            return ended.ending
    raise WireError("an answer without a message")


def old_flight(address: tuple[str, int], hello: ClientHello, timeout: float) -> Flight | Ending:
    """Send ``hello``, which offers nothing above TLS 1.2; the whole flight of the server, or how it ended instead."""
    found: ServerHello | None = None
    messages: dict[int, bytes] = {}
    with WireConnection(address, timeout) as connection:
        try:
            for kind, body in _answers(connection, hello):
                if kind == Message.SERVER_HELLO:
                    found = parse_server_hello(body)
                elif kind == Message.SERVER_HELLO_DONE and found is not None:
                    return Flight(found, messages)
                messages[kind] = body
        except ConnectionEnded as ended:
            return ended.ending
    raise WireError("an answer without a message")


def _answers(connection: WireConnection, hello: ClientHello) -> Iterator[tuple[int, bytes]]:
    """The handshake messages that come in clear text; ends only by :class:`ConnectionEnded`."""
    connection.send_record(Content.HANDSHAKE, hello.encode(), min(Version.TLS10, *hello.versions))
    messages = MessageReader()
    while True:
        record = connection.read_record()
        if record.kind == Content.ALERT:
            raise ConnectionEnded(alert_of(record.data))
        if record.kind != Content.HANDSHAKE:
            raise ConnectionEnded(NotTls(record.header + record.data[:200]))
        for kind, body, _ in messages.add(record.data):
            yield kind, body


def speaks_tls(address: tuple[str, int], timeout: float = 3.0) -> bool:
    """Whether the listener at ``address`` answers a hello with TLS."""
    try:
        answer = offer(address, ClientHello(), timeout)
    except (OSError, WireError):
        return False
    return not isinstance(answer, NotTls) and not str(answer).startswith("connection")
