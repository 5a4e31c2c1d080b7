"""A TLS 1.3 client that verifies nothing about the server and reports everything about the handshake.

A server accepts or refuses a client's certificate only *after* the client's handshake is complete (RFC 8446, 4.4.2.4
and E.1.2): :meth:`Tls13Client.verdict` reads this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, x25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sluice.audit.errors import WireError
from sluice.audit.wire.codec import Reader, number, read_extensions, vector
from sluice.audit.wire.connection import (
    Alert,
    Closed,
    ConnectionEnded,
    Ending,
    MessageReader,
    NotTls,
    Refusal,
    Silent,
    WireConnection,
    alert_of,
    message_name,
)
from sluice.audit.wire.hello import ClientHello, ServerHello, handshake_message, parse_server_hello
from sluice.audit.wire.numbers import GOOD_SIGNATURES, Content, Extension, Message, Version
from sluice.audit.wire.schedule import SUITES, KeySchedule, Protection

MAX_CHAIN_CERTIFICATES = 16
MAX_EVENTS = 64
"""Records read at most while waiting for a verdict."""

_CURVES: dict[int, ec.EllipticCurve] = {0x0017: ec.SECP256R1(), 0x0018: ec.SECP384R1(), 0x0019: ec.SECP521R1()}
_X25519 = 0x001D
_SERVER_CONTEXT = b" " * 64 + b"TLS 1.3, server CertificateVerify\x00"
_CLIENT_CONTEXT = b" " * 64 + b"TLS 1.3, client CertificateVerify\x00"
_ECDSA_P256 = 0x0403

_SharePrivate = x25519.X25519PrivateKey | ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Credential:
    """A client's certificates, leaf first, and the leaf's key (P-256)."""

    chain: tuple[x509.Certificate, ...]
    key: ec.EllipticCurvePrivateKey = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A session ticket, by what it allows."""

    lifetime_seconds: int
    max_early_data_bytes: int


@dataclass(slots=True)
class Handshake:
    """What was negotiated and shown; certificates are the server's, leaf first."""

    version: int = 0
    suite: int = 0
    group: int = 0
    alpn: str = ""
    signature: int = 0
    signature_valid: bool = False
    certificates: tuple[x509.Certificate, ...] = ()
    stapled: bool = False
    certificate_requested: bool = False


@dataclass(slots=True)
class Verdict:
    """The result after the handshake: how the connection ended, and the server's data until then."""

    ending: Ending
    data: bytes = b""
    tickets: list[Ticket] = field(default_factory=list)

    @property
    def refused(self) -> bool:
        """Whether the server ended the connection before sending application data."""
        if self.data or self.tickets:
            return False
        return isinstance(self.ending, Alert | Closed | Refusal)

    @property
    def silent(self) -> bool:
        """Whether nothing came in time, neither a refusal nor data."""
        return isinstance(self.ending, Silent) and not self.data and not self.tickets

    def __str__(self) -> str:
        said = [f"{len(self.tickets)} session tickets"] if self.tickets else []
        said += [f"{len(self.data)} bytes of application data"] if self.data else []
        return ", ".join([*said, str(self.ending)])


class Tls13Client:
    """One connection. Use as a context manager.

    Args:
        address: host and port.
        credential: shown when the server asks for a certificate; None answers with an empty list.
        alpn: protocols offered.
        server_name: as in SNI; empty: none.
        signatures: schemes in which the server may sign.
        timeout: seconds for connecting and handshake together.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        credential: Credential | None = None,
        alpn: tuple[str, ...] = (),
        server_name: bytes = b"",
        signatures: tuple[int, ...] = GOOD_SIGNATURES,
        timeout: float = 10.0,
    ) -> None:
        self._credential = credential
        self._alpn = alpn
        self._server_name = server_name
        self._signatures = signatures
        self.connection = WireConnection(address, timeout)
        self.handshake = Handshake()
        self._messages = MessageReader()
        self._queue: list[tuple[int, bytes, bytes]] = []
        self._opening: Protection | None = None
        self._sealing: Protection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def connect(self) -> Handshake:
        """The whole handshake, up to the client's Finished.

        Raises:
            ConnectionEnded: the server did not go on.
            WireError: its answer is not TLS 1.3.
        """
        server, schedule, shared = self._hellos()
        self._sealing, self._opening = schedule.derive_handshake(shared)
        self.handshake.version, self.handshake.suite, self.handshake.group = server.version, server.suite, server.group
        context = self._server_flight(schedule)
        application = schedule.derive_application()
        self._client_flight(schedule, context)
        self._sealing, self._opening = application
        return self.handshake

    def send(self, data: bytes) -> None:
        """Application data."""
        if self._sealing is None:
            raise WireError("there is no handshake yet")
        self.connection.send(self._sealing.seal(Content.APPLICATION_DATA, data))

    def verdict(self, seconds: float) -> Verdict:
        """Read until the server ends the connection, sends application data, or ``seconds`` are over."""
        self.connection.set_timeout(seconds)
        verdict = Verdict(Silent(seconds))
        try:
            for _ in range(MAX_EVENTS):
                kind, data = self._read_protected()
                if kind == Content.ALERT:
                    verdict.ending = alert_of(data)
                    break
                if kind == Content.APPLICATION_DATA:
                    verdict.data = data
                    break
                if kind == Content.HANDSHAKE:
                    for message, body, _ in self._messages.add(data):
                        if message == Message.NEW_SESSION_TICKET:
                            verdict.tickets.append(_parse_ticket(body))
        except ConnectionEnded as ended:
            verdict.ending = ended.ending
        return verdict

    def _hellos(self) -> tuple[ServerHello, KeySchedule, bytes]:
        keys: dict[int, _SharePrivate] = {
            _X25519: x25519.X25519PrivateKey.generate(),
            0x0017: ec.generate_private_key(ec.SECP256R1()),
        }
        hello = ClientHello(
            shares=tuple((group, _public_share(key)) for group, key in keys.items()),
            alpn=self._alpn,
            server_name=self._server_name,
            signatures=self._signatures,
        )
        first = hello.encode()
        self.connection.send_record(Content.HANDSHAKE, first)
        server, whole = self._read_server_hello()
        schedule = KeySchedule(SUITES[server.suite])
        if not server.retry:
            schedule.transcript = first + whole
        else:
            # The server wants another group: a new share for it, everything else as before (RFC 8446, 4.1.2).
            schedule.retry(first)
            if server.group not in _CURVES:
                raise WireError(f"the server asks for group 0x{server.group:04x}, which was not offered")
            keys = {server.group: ec.generate_private_key(_CURVES[server.group])}
            again = ClientHello(
                shares=((server.group, _public_share(keys[server.group])),),
                alpn=self._alpn,
                server_name=self._server_name,
                signatures=self._signatures,
                cookie=server.cookie,
                random=hello.random,
                session_id=hello.session_id,
            ).encode()
            self.connection.send_record(Content.HANDSHAKE, again, 0x0303)
            schedule.transcript += whole + again
            server, whole = self._read_server_hello()
            schedule.transcript += whole
        if server.group not in keys:
            raise WireError("the server answers in a group for which no share was sent")
        return server, schedule, _exchange(keys[server.group], server)

    def _read_server_hello(self) -> tuple[ServerHello, bytes]:
        message, body, whole = self._next_message()
        if message != Message.SERVER_HELLO:
            raise WireError(f"{message_name(message)} instead of a server hello")
        server = parse_server_hello(body)
        if server.version != Version.TLS13 or server.suite not in SUITES:
            raise WireError("the server chose a version or a suite that was not offered")
        return server, whole

    def _server_flight(self, schedule: KeySchedule) -> bytes:
        """From EncryptedExtensions to Finished; returns the context of the certificate request."""
        context = b""
        while True:
            message, body, whole = self._next_message()
            if message == Message.ENCRYPTED_EXTENSIONS:
                self.handshake.alpn = _parse_alpn(read_extensions(Reader(body)))
            elif message == Message.CERTIFICATE_REQUEST:
                reader = Reader(body)
                context = reader.vector(1)
                self.handshake.certificate_requested = True
                read_extensions(reader)
            elif message == Message.CERTIFICATE:
                self.handshake.certificates, self.handshake.stapled = _parse_certificate(body)
            elif message == Message.CERTIFICATE_VERIFY:
                self._check_signature(Reader(body), _SERVER_CONTEXT + schedule.hash())
            elif message == Message.FINISHED:
                if body != schedule.finished(server=True):
                    raise WireError("the server's Finished is wrong")
                schedule.transcript += whole
                return context
            else:
                raise WireError(f"{message_name(message)} in the server's flight")
            schedule.transcript += whole

    def _client_flight(self, schedule: KeySchedule, context: bytes) -> None:
        flight = b""
        if self.handshake.certificate_requested:
            entries = b""
            if self._credential is not None:
                encoded = (certificate.public_bytes(Encoding.DER) for certificate in self._credential.chain)
                entries = b"".join(vector(der, 3) + b"\x00\x00" for der in encoded)
            flight += self._say(schedule, Message.CERTIFICATE, vector(context, 1) + vector(entries, 3))
            if self._credential is not None:
                signed = self._credential.key.sign(_CLIENT_CONTEXT + schedule.hash(), ec.ECDSA(hashes.SHA256()))
                flight += self._say(schedule, Message.CERTIFICATE_VERIFY, number(_ECDSA_P256, 2) + vector(signed, 2))
        flight += self._say(schedule, Message.FINISHED, schedule.finished(server=False))
        if self._sealing is None:
            raise WireError("there are no keys yet")
        self.connection.send_record(Content.CHANGE_CIPHER_SPEC, b"\x01", 0x0303)
        for start in range(0, len(flight), 1 << 14):
            self.connection.send(self._sealing.seal(Content.HANDSHAKE, flight[start : start + (1 << 14)]))

    @staticmethod
    def _say(schedule: KeySchedule, kind: int, body: bytes) -> bytes:
        message = handshake_message(kind, body)
        schedule.transcript += message
        return message

    def _check_signature(self, reader: Reader, signed: bytes) -> None:
        self.handshake.signature = reader.number(2)
        signature = reader.vector(2)
        if not self.handshake.certificates:
            raise WireError("the server signs without a certificate")
        try:
            _verify(self.handshake.certificates[0], self.handshake.signature, signature, signed)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
            return
        self.handshake.signature_valid = True

    def _next_message(self) -> tuple[int, bytes, bytes]:
        while not self._queue:
            kind, data = self._read_protected()
            if kind == Content.ALERT:
                raise ConnectionEnded(alert_of(data))
            if kind != Content.HANDSHAKE:
                raise ConnectionEnded(NotTls(data[:200]))
            self._queue.extend(self._messages.add(data))
        return self._queue.pop(0)

    def _read_protected(self) -> tuple[int, bytes]:
        while True:
            record = self.connection.read_record()
            if record.kind == Content.CHANGE_CIPHER_SPEC:
                continue
            if record.kind == Content.APPLICATION_DATA and self._opening is not None:
                return self._opening.open(record.header, record.data)
            return record.kind, record.data


def _public_share(key: _SharePrivate) -> bytes:
    if isinstance(key, x25519.X25519PrivateKey):
        return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _exchange(key: _SharePrivate, server: ServerHello) -> bytes:
    try:
        if isinstance(key, x25519.X25519PrivateKey):
            return key.exchange(x25519.X25519PublicKey.from_public_bytes(server.share))
        return key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(key.curve, server.share))
    except ValueError as error:
        raise WireError("the server's key share is no point") from error


def _parse_alpn(extensions: dict[int, bytes]) -> str:
    if Extension.ALPN not in extensions:
        return ""
    return Reader(Reader(extensions[Extension.ALPN]).vector(2)).vector(1).decode("latin-1")


def _parse_certificate(body: bytes) -> tuple[tuple[x509.Certificate, ...], bool]:
    reader = Reader(body)
    reader.vector(1)
    entries = Reader(reader.vector(3))
    certificates: list[x509.Certificate] = []
    stapled = False
    while entries.left:
        if len(certificates) >= MAX_CHAIN_CERTIFICATES:
            raise WireError(f"a chain of more than {MAX_CHAIN_CERTIFICATES} certificates")
        der = entries.vector(3)
        try:
            certificates.append(x509.load_der_x509_certificate(der))
        except ValueError as error:
            raise WireError("the server's certificate cannot be read") from error
        stapled |= Extension.STATUS_REQUEST in read_extensions(entries)
    return tuple(certificates), stapled


def _parse_ticket(body: bytes) -> Ticket:
    reader = Reader(body)
    lifetime = reader.number(4)
    reader.number(4)
    reader.vector(1)
    reader.vector(2)
    early = read_extensions(reader).get(Extension.EARLY_DATA, b"\x00\x00\x00\x00")
    return Ticket(lifetime, Reader(early).number(4))


_DIGESTS: dict[int, hashes.HashAlgorithm] = {
    2: hashes.SHA1(),  # noqa: S303  to detect servers that still sign with it
    4: hashes.SHA256(),
    5: hashes.SHA384(),
    6: hashes.SHA512(),
}


def _verify(leaf: x509.Certificate, scheme: int, signature: bytes, signed: bytes) -> None:
    key = leaf.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey) and scheme >> 8 in _DIGESTS:
        key.verify(signature, signed, ec.ECDSA(_DIGESTS[scheme >> 8]))
    elif isinstance(key, rsa.RSAPublicKey) and scheme in {0x0804, 0x0805, 0x0806}:
        digest = _DIGESTS[scheme & 0xFF]
        key.verify(signature, signed, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)
    elif isinstance(key, ed25519.Ed25519PublicKey) and scheme == 0x0807:
        key.verify(signature, signed)
    else:
        raise InvalidSignature
