"""One TLS handshake with an untrusted listener, recorded without verification.

It uses OpenSSL through pyOpenSSL, because ``ssl`` of Python 3.11 gives neither the chain as the server sends it, nor
the group, nor whether a certificate was requested (ADR 18). The handshake runs over memory, so that time and bytes are
bounded here. No application data is ever sent.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from OpenSSL import SSL, crypto

from sluice.core import PkiError, printable
from sluice.pki.identities import IdentityMaterial
from sluice.pki.inspect.live.address import Address, InvalidAddress
from sluice.pki.x509 import DAMAGED

HANDSHAKE_SECONDS = 10.0
"""For connecting and the handshake together."""
VERDICT_SECONDS = 5.0
"""How long to wait for a server's data after the handshake."""
PATIENCE_SECONDS = 1.0
"""Shortest wait before closing: a refusal is on its way by then."""
PATIENCE_HANDSHAKES = 4
"""The same as a multiple of the handshake's time, for slow networks and busy machines."""
MAX_RECEIVED_BYTES = 512 << 10
"""Most bytes taken from one server."""
MAX_CHAIN_CERTIFICATES = 32
MAX_ISSUERS = 64
"""Most names of acceptable issuers that are kept."""
CHUNK_BYTES = 16 << 10
ACCEPTED = "accepted"
UNCLEAR = "not refused; it closed the connection silently after close_notify"

TLS12, TLS13 = SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION
WEB_PROTOCOLS = ("h2", "http/1.1")
"""Protocols to offer by default: some listeners refuse clients that offer none."""
# All that OpenSSL has, insecure ones too: this only inspects, and sends nothing secret.
_CIPHERS = b"ALL:@SECLEVEL=0"
_REQUEST_STATE = b"read server certificate request"
"""Ends the name of OpenSSL's state in which a client has got a CertificateRequest (SSL_state_string_long(3))."""


class Unreachable(PkiError):
    """Nobody accepts connections at an address, or does not speak TLS in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """The result of one handshake.

    ``problem`` is empty when it was completed. ``verdict`` is the server's reaction afterwards: in TLS 1.3 it judges a
    client's certificate, or its absence, only then (RFC 8446, 4.4.2.4).
    """

    version: str = ""
    cipher: str = ""
    group: str = ""
    alpn: str = ""
    chain: tuple[bytes, ...] = ()
    """As sent, in DER."""
    requested: bool = False
    """The server asked for a client certificate."""
    issuers: tuple[str, ...] = ()
    """The issuers that it accepts; empty when it does not say."""
    problem: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What to offer: versions, names, protocols, and the identity to show on request."""

    version: int = TLS13
    server_name: str = ""
    alpn: tuple[str, ...] = ()
    identity: IdentityMaterial | None = field(default=None, repr=False)


def connect(address: Address, timeout: float = HANDSHAKE_SECONDS) -> socket.socket:
    """A connected socket; :class:`Unreachable` when there is none."""
    try:
        if not address.path:
            return socket.create_connection((address.host, address.port), timeout=timeout)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(timeout)
            connected.connect(address.path)
        except BaseException:
            connected.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unreachable(
            f"cannot connect to {address}: {reason}", "does the process run, and listen there?"
        ) from error
    return connected


def shake_hands(address: Address, hello: Hello, *, clock: Callable[[], float] = time.monotonic) -> Handshake:
    """Connect, do the handshake, observe, and close.

    Raises:
        Unreachable: there is no connection, or no answer in time. A server that refuses is a result, not an error.
    """
    deadline = clock() + HANDSHAKE_SECONDS
    with connect(address) as connected:
        return _Conversation(connected, hello, clock).run(address, deadline)


class _Conversation:
    """One connection: moves bytes between the socket and OpenSSL's memory, within limits."""

    def __init__(self, connected: socket.socket, hello: Hello, clock: Callable[[], float]) -> None:
        self._socket = connected
        self._clock = clock
        self._received = 0
        self._requested = False
        self._tls = SSL.Connection(_context(hello, self._observe), None)
        if hello.server_name:
            self._tls.set_tlsext_host_name(_encoded(hello.server_name))
        self._tls.set_connect_state()

    def run(self, address: Address, deadline: float) -> Handshake:
        problem, verdict = "", ""
        try:
            start = self._clock()
            self._until_done(self._tls.do_handshake, deadline)
            took = self._clock() - start
        except TimeoutError as error:
            raise Unreachable(
                f"{address} does not answer a TLS handshake within {HANDSHAKE_SECONDS:.0f} s", "does it speak TLS?"
            ) from error
        except (SSL.Error, OSError, _TooMuch) as error:
            problem = _reason(error)
        else:
            if self._requested:
                verdict = self._verdict(max(PATIENCE_SECONDS, PATIENCE_HANDSHAKES * took))
        return self._result(problem, verdict)

    def _observe(self, connection: SSL.Connection, where: int, _result: int) -> None:
        if where == SSL.SSL_CB_CONNECT_LOOP and connection.get_state_string().endswith(_REQUEST_STATE):
            self._requested = True

    def _until_done(self, step: Callable[[], object], deadline: float) -> None:
        while True:
            try:
                step()
            except SSL.WantReadError:
                self._flush(deadline)
                self._receive(deadline)
            else:
                self._flush(deadline)
                return

    def _flush(self, deadline: float) -> None:
        while True:
            try:
                data = self._tls.bio_read(CHUNK_BYTES)
            except SSL.WantReadError:
                return
            self._socket.settimeout(self._left(deadline))
            self._socket.sendall(data)

    def _receive(self, deadline: float) -> None:
        self._socket.settimeout(self._left(deadline))
        data = self._socket.recv(CHUNK_BYTES)
        if not data:
            raise ConnectionError("it closed the connection without a word")
        self._received += len(data)
        if self._received > MAX_RECEIVED_BYTES:
            raise _TooMuch
        self._tls.bio_write(data)

    def _left(self, deadline: float) -> float:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        return left

    def _verdict(self, patience: float) -> str:
        """The server's reaction to the client's certificate, or to its absence.

        First this waits: a server that refuses sends an alert, or cuts the connection. Then it sends close_notify,
        which a server that accepted answers in kind, or by staying. If it then closes silently, it only followed, or
        was very slow to refuse.
        """
        start = self._clock()
        goodbye = False
        try:
            try:
                self._until_done(self._read, start + min(patience, VERDICT_SECONDS))
            except TimeoutError:
                goodbye = True
                self._tls.shutdown()
                self._until_done(self._read, start + 2 * VERDICT_SECONDS)
        except (SSL.ZeroReturnError, TimeoutError):
            return ACCEPTED
        except OSError as error:
            return UNCLEAR if goodbye else f"refused: {_reason(error)}"
        except (SSL.Error, _TooMuch) as error:
            return f"refused: {_reason(error)}"
        return ACCEPTED  # it sends data

    def _read(self) -> None:
        self._tls.recv(1)

    def _result(self, problem: str, verdict: str) -> Handshake:
        tls = self._tls
        sent = tls.get_peer_cert_chain() or []
        cipher = tls.get_cipher_name() or ""
        return Handshake(
            version=tls.get_protocol_version_name() if cipher else "",
            cipher=cipher,
            group=_group(tls) if cipher else "",
            alpn=tls.get_alpn_proto_negotiated().decode("ascii", "replace"),
            chain=tuple(crypto.dump_certificate(crypto.FILETYPE_ASN1, each) for each in sent[:MAX_CHAIN_CERTIFICATES]),
            requested=self._requested,
            issuers=_issuers(tls),
            problem=problem,
            verdict=verdict,
        )


class _TooMuch(Exception):
    def __str__(self) -> str:
        return f"it sends more than {MAX_RECEIVED_BYTES} bytes"


def _context(hello: Hello, observe: Callable[[SSL.Connection, int, int], None]) -> SSL.Context:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(hello.version)
    context.set_max_proto_version(hello.version)
    context.set_cipher_list(_CIPHERS)
    # Nothing is trusted: problems of the chain are reported, and must not end the handshake.
    context.set_verify(SSL.VERIFY_NONE)
    context.set_info_callback(observe)
    if hello.alpn:
        context.set_alpn_protos([name.encode("ascii") for name in hello.alpn])
    if hello.identity is not None:
        context.use_certificate(hello.identity.leaf)
        for each in hello.identity.chain:
            context.add_extra_chain_cert(each)
        context.use_privatekey(hello.identity.key)
    return context


def _encoded(server_name: str) -> bytes:
    try:
        return server_name.encode("idna")
    except UnicodeError as error:
        raise InvalidAddress(f"{server_name[:80]!r} is not a host name: {error}", "see --servername") from error


def _group(tls: SSL.Connection) -> str:
    try:
        return tls.get_group_name() or ""
    except NotImplementedError:  # raised where OpenSSL is older than 3.2
        return ""


def _issuers(tls: SSL.Connection) -> tuple[str, ...]:
    try:
        names = tls.get_client_ca_list(as_cryptography=True)
    except DAMAGED:
        return ()
    return tuple(name.rfc4514_string() for name in names[:MAX_ISSUERS])


def _reason(error: Exception) -> str:
    """OpenSSL's reason, or the system's; printable and bounded, because parts come from the peer."""
    if isinstance(error, SSL.SysCallError):
        return "it closed the connection without a word"
    if isinstance(error, SSL.Error) and error.args and error.args[0]:
        text = str(error.args[0][-1][-1])
    else:
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return printable(text)[:300]
