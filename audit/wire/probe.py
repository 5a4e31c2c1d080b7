"""One hello, one answer."""

from __future__ import annotations

from audit.wire.connection import ConnectionEnded, Ending, MessageReader, NotTls, WireConnection, alert_of
from audit.wire.hello import ClientHello, ServerHello, parse_server_hello
from audit.wire.numbers import Content, Message, Version

Answer = ServerHello | Ending


def offer(address: tuple[str, int], hello: ClientHello, timeout: float) -> Answer:
    """Send ``hello``; the server's hello or how it ended the connection instead.

    Raises:
        OSError: no connection.
        WireError: the answer is not TLS by its rules.
    """
    with WireConnection(address, timeout) as connection:
        version = min(max(hello.versions), Version.TLS10)
        connection.send_record(Content.HANDSHAKE, hello.encode(), version)
        messages = MessageReader()
        try:
            while True:
                record = connection.read_record()
                if record.kind == Content.ALERT:
                    return alert_of(record.data)
                if record.kind != Content.HANDSHAKE:
                    return NotTls(record.header + record.data[:200])
                for kind, body, _ in messages.add(record.data):
                    if kind != Message.SERVER_HELLO:
                        return NotTls(record.data[:200])
                    return parse_server_hello(body)
        except ConnectionEnded as ended:
            return ended.ending


def speaks_tls(address: tuple[str, int], timeout: float = 3.0) -> bool:
    """Whether what listens at ``address`` answers a hello with TLS."""
    try:
        answer = offer(address, ClientHello(), timeout)
    except Exception:  # noqa: BLE001  whatever it said, it was not TLS
        return False
    return not isinstance(answer, NotTls) and not str(answer).startswith("connection")
