"""TLS servers with one deliberate fault each, for the audit to find. TLS libraries cannot be made to have them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from sluice.audit.wire.codec import (
    Reader,
    number,
    read_extensions,
    vector,
)
from sluice.audit.wire.hello import handshake_message
from sluice.audit.wire.numbers import Content, Extension, Message
from sluice.audit.wire.schedule import SUITES, KeySchedule, Protection
from sluice.pki.identities.directory import read_certificates

X25519 = 0x1D
SUITE = 0x1301
HANDSHAKE_FAILURE = b"\x15\x03\x03\x00\x02\x02\x28"
_CONTEXT = b" " * 64 + b"TLS 1.3, server CertificateVerify\x00"


@dataclass(frozen=True)
class Faulty:
    """A TLS 1.3 server with the identity in ``directory``; by default without fault.

    Attributes:
        alpn: the protocol that it selects, even if the client did not offer it.
        scheme: the signature scheme in CertificateVerify; with 0x0203 it signs with SHA-1.
        wrong_key: whether to sign with another key than that of the certificate.
        early_data: bytes of early data that its tickets allow; negative: no tickets.
    """

    directory: Path
    alpn: str = ""
    scheme: int = 0x0403
    wrong_key: bool = False
    early_data: int = -1

    def __call__(self, connection: socket.socket) -> None:
        """Serve one connection."""
        hello = _read_record(connection)
        session, share = _offered(hello)
        if not share:
            connection.sendall(HANDSHAKE_FAILURE)
            return
        key = x25519.X25519PrivateKey.generate()
        public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        extensions = _extension(Extension.SUPPORTED_VERSIONS, b"\x03\x04")
        extensions += _extension(Extension.KEY_SHARE, number(X25519, 2) + vector(public, 2))
        body = b"\x03\x03" + b"r" * 32 + vector(session, 1) + number(SUITE, 2) + b"\x00" + vector(extensions, 2)
        answer = handshake_message(Message.SERVER_HELLO, body)
        connection.sendall(b"\x16\x03\x03" + vector(answer, 2))
        schedule = KeySchedule(SUITES[SUITE])
        schedule.transcript = hello + answer
        shared = key.exchange(x25519.X25519PublicKey.from_public_bytes(share))
        opening, sealing = schedule.derive_handshake(shared)
        connection.sendall(sealing.seal(Content.HANDSHAKE, self._flight(schedule)))
        _, sealing_data = schedule.derive_application()
        _await_finished(connection, opening)
        if self.early_data >= 0:
            connection.sendall(sealing_data.seal(Content.HANDSHAKE, self._ticket()))
        connection.sendall(sealing_data.seal(Content.APPLICATION_DATA, b"hello"))
        while connection.recv(1 << 16):
            pass

    def _flight(self, schedule: KeySchedule) -> bytes:
        flight = b""

        def say(kind: int, content: bytes) -> None:
            nonlocal flight
            message = handshake_message(kind, content)
            schedule.transcript += message
            flight += message

        name = _extension(Extension.ALPN, vector(vector(self.alpn.encode(), 1), 2)) if self.alpn else b""
        say(Message.ENCRYPTED_EXTENSIONS, vector(name, 2))
        chain = read_certificates(self.directory / "chain.pem")
        entries = b"".join(vector(each.public_bytes(Encoding.DER), 3) + b"\x00\x00" for each in chain)
        say(Message.CERTIFICATE, b"\x00" + vector(entries, 3))
        say(Message.CERTIFICATE_VERIFY, number(self.scheme, 2) + vector(self._sign(_CONTEXT + schedule.hash()), 2))
        say(Message.FINISHED, schedule.finished(server=True))
        return flight

    def _sign(self, data: bytes) -> bytes:
        key = load_pem_private_key((self.directory / "key.pem").read_bytes(), None)
        if self.wrong_key:
            key = ec.generate_private_key(ec.SECP256R1())
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        digest = hashes.SHA1() if self.scheme == 0x0203 else hashes.SHA256()  # noqa: S303  the fault to be found
        return key.sign(data, ec.ECDSA(digest))

    def _ticket(self) -> bytes:
        early = _extension(Extension.EARLY_DATA, number(self.early_data, 4)) if self.early_data else b""
        body = number(7200, 4) + b"\x00" * 4 + b"\x00" + vector(b"ticket", 2) + vector(early, 2)
        return handshake_message(Message.NEW_SESSION_TICKET, body)


def compressing(connection: socket.socket) -> None:
    """Serve TLS 1.2 with the first compression method that is offered, and without renegotiation_info."""
    reader = Reader(_read_record(connection)[4:])
    reader.take(34)
    reader.vector(1)
    suites, methods = reader.vector(2), reader.vector(1)
    body = b"\x03\x03" + b"r" * 32 + b"\x00" + suites[:2] + methods[:1]
    connection.sendall(b"\x16\x03\x03" + vector(handshake_message(Message.SERVER_HELLO, body), 2))
    connection.recv(1)


def _extension(kind: int, data: bytes) -> bytes:
    return number(kind, 2) + vector(data, 2)


def _read_record(connection: socket.socket) -> bytes:
    header = _exactly(connection, 5)
    return _exactly(connection, int.from_bytes(header[3:5], "big"))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        received = connection.recv(count - len(data))
        if not received:
            raise ConnectionResetError
        data += received
    return data


def _offered(hello: bytes) -> tuple[bytes, bytes]:
    """Return the session id and the x25519 share of a ClientHello; the share is empty if there is none."""
    reader = Reader(hello[4:])
    reader.take(34)
    session = reader.vector(1)
    reader.vector(2)
    reader.vector(1)
    extensions = read_extensions(reader)
    if Extension.KEY_SHARE not in extensions:
        return session, b""
    shares = Reader(Reader(extensions[Extension.KEY_SHARE]).vector(2))
    while shares.left:
        group, share = shares.number(2), shares.vector(2)
        if group == X25519:
            return session, share
    return session, b""


def _await_finished(connection: socket.socket, opening: Protection) -> None:
    """Read records until the client's Finished arrives."""
    while True:
        header = _exactly(connection, 5)
        data = _exactly(connection, int.from_bytes(header[3:5], "big"))
        if header[0] != Content.APPLICATION_DATA:
            continue
        _, content = opening.open(header, data)
        if content[0] == Message.FINISHED:
            return
