"""Mutual TLS for bulk data: blocking streams that read into and write from large buffers without copies.

Two engines that behave alike. ``NATIVE`` drives the OpenSSL of the cryptography wheel through pyOpenSSL's bindings: a
read decrypts into the caller's memory, a write of a megabyte is one call without the interpreter lock. It uses private
names of pyOpenSSL, all of them in this module; when they are missing, or on request, ``STANDARD`` does the same with
:mod:`ssl`. Both demand the same of the peer as :mod:`sluice.pki.tls.contexts`. A stream belongs to one thread. Only
:meth:`BulkStream.abort` may be called from another one, to enforce deadlines and to end revoked peers: nothing here
times out by itself.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL, crypto

from sluice.core import PeerRefused, PkiError
from sluice.pki.channels import PeerPolicy
from sluice.pki.identities import IdentityMaterial
from sluice.pki.revocation import CertificateId, describe_revoked
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.tls.contexts import TlsIdentity, peer_of
from sluice.pki.tls.session_tickets import sends_tickets
from sluice.pki.x509 import DAMAGED, Purpose, check_peer, load_certificate

try:
    from OpenSSL._util import ffi as _ffi, lib as _lib

    HAS_NATIVE = all(hasattr(_lib, name) for name in ("SSL_read", "SSL_write", "SSL_pending", "SSL_get_error"))
except ImportError:  # a pyOpenSSL with other private names
    HAS_NATIVE = False

_LOG = logging.getLogger(__name__)

CIPHER_SUITES = b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
"""In order of preference: the first is the fastest everywhere."""

_STRICT = crypto.X509StoreFlags.PARTIAL_CHAIN | crypto.X509StoreFlags.X509_STRICT
_OPTIONS = SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION | SSL.OP_CIPHER_SERVER_PREFERENCE
_Judge = Callable[[SSL.Connection, crypto.X509, int, int, int], bool]
_RETRY = frozenset({2, 3})
"""SSL_ERROR_WANT_READ and SSL_ERROR_WANT_WRITE: on a blocking socket only after a signal."""
_ZERO_RETURN = 6
"""SSL_ERROR_ZERO_RETURN: the peer sent close_notify."""


class Engine(enum.StrEnum):
    """Which OpenSSL does the work."""

    NATIVE = "native"
    STANDARD = "standard"


DEFAULT_ENGINE = Engine.NATIVE if HAS_NATIVE else Engine.STANDARD


def serving_engine() -> Engine:
    """The engine for servers of this process: the fast one, unless it would send session tickets.

    It sends none in a process that was started with :func:`sluice.pki.tls.openssl_settings.no_tickets_environment`.
    """
    if DEFAULT_ENGINE is Engine.NATIVE and sends_tickets():
        _LOG.warning("OpenSSL was not told to send no session tickets: bulk data go through the slower engine")
        return Engine.STANDARD
    return DEFAULT_ENGINE


class StreamBroken(PkiError):
    """The connection ended in the middle of something, or its data cannot be trusted."""


class BulkStream(abc.ABC):
    """One connection whose handshake is complete and whose peer is admitted."""

    def __init__(self, raw: socket.socket, peer: SpiffeId, certificate: x509.Certificate) -> None:
        self._raw = raw
        self.peer = peer
        """The peer's identity."""
        self._certificate = CertificateId.of(certificate)
        self._poll = select.poll()
        self._poll.register(raw.fileno(), select.POLLIN)

    @abc.abstractmethod
    def read_exactly(self, view: memoryview) -> bool:
        """Fill ``view`` (contiguous, of bytes, writable); False when the peer ended before the first byte.

        Raises:
            StreamBroken: it ended later, or the data were changed on their way.
        """

    @abc.abstractmethod
    def write_all(self, data: memoryview | bytes) -> None:
        """Send all of ``data``, blocking as long as the peer does not read; raises :class:`StreamBroken`."""

    @abc.abstractmethod
    def _pending(self) -> int:
        """Bytes decrypted already."""

    def readable(self) -> bool:
        """Whether a read would return at once, with data or the end."""
        return self._pending() > 0 or bool(self._poll.poll(0))

    def wait(self, wake: int, seconds: float) -> None:
        """Wait until a read would return at once, the descriptor ``wake`` is readable, or the time is over."""
        if self._pending():
            return
        poll = select.poll()
        poll.register(self._raw.fileno(), select.POLLIN)
        poll.register(wake, select.POLLIN)
        poll.poll(seconds * 1000)

    def revocation(self, identity: TlsIdentity) -> str:
        """Why the peer is refused from now on; empty when it is not revoked."""
        found = identity.revoked_peers.revoked(self._certificate)
        return "" if found is None else describe_revoked(self._certificate, found)

    def abort(self) -> None:
        """End the connection at once, from any thread: the thread that uses it gets an error."""
        abort_socket(self._raw)

    @abc.abstractmethod
    def close(self) -> None:
        """Send close_notify if that is possible without waiting, and close."""


def abort_socket(raw: socket.socket) -> None:
    """Wake threads blocked on ``raw``; its owner closes it.

    The ``shutdown`` of an SSLSocket itself would drop TLS first: the thread that uses it would go on in plaintext.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(raw, socket.SHUT_RDWR)


class BulkTls:
    """Makes bulk streams out of connected sockets.

    Each handshake uses the newest generation of ``identity``.

    Args:
        identity: of this process.
        policy: the peers to accept.
        serving: this side is the TLS server.
        engine: which OpenSSL.
    """

    def __init__(
        self, identity: TlsIdentity, policy: PeerPolicy, *, serving: bool, engine: Engine = DEFAULT_ENGINE
    ) -> None:
        if engine is Engine.NATIVE and not HAS_NATIVE:
            raise PkiError("the installed pyOpenSSL has no native reads and writes", "use the engine 'standard'")
        self._identity = identity
        self._policy = policy
        self._serving = serving
        self.engine = engine
        self._lock = threading.Lock()
        self._native: tuple[IdentityMaterial, SSL.Context] | None = None

    def handshake(self, raw: socket.socket) -> BulkStream:
        """Run the handshake on ``raw``, a blocking socket, and take it over; on failure it is closed.

        Raises:
            PeerRefused: the policy does not admit the peer.
            StreamBroken: the handshake was not completed.
        """
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._handshake_native(raw) if self.engine is Engine.NATIVE else self._handshake_standard(raw)
        except OSError as error:
            raw.close()
            if isinstance(error.__cause__, PeerRefused):
                raise error.__cause__ from None
            raise StreamBroken(f"the handshake failed: {error.strerror or error}") from error
        except PkiError:
            raw.close()
            raise

    def _handshake_native(self, raw: socket.socket) -> BulkStream:
        connection = SSL.Connection(self._native_context(), raw)
        if self._serving:
            connection.set_accept_state()
        else:
            connection.set_connect_state()
        try:
            connection.do_handshake()
        except SSL.Error as error:
            judged = connection.get_app_data()
            if isinstance(judged, PeerRefused):
                raise judged from None
            raise StreamBroken(f"the handshake failed: {_reason(error)}") from error
        judged, shown = connection.get_app_data(), connection.get_peer_certificate(as_cryptography=True)
        if not isinstance(judged, SpiffeId) or shown is None:
            raise PeerRefused("the peer showed no certificate that was judged")
        return _NativeStream(raw, judged, shown, connection)

    def _judge(self, connection: SSL.Connection, certificate: crypto.X509, _error: int, depth: int, good: int) -> bool:
        """OpenSSL calls this for each certificate of the path; a refused peer gets an alert within the handshake."""
        if good and depth == 0:
            check = self._identity.revoked_peers.check
            try:
                der = certificate.to_cryptography().public_bytes(Encoding.DER)
                connection.set_app_data(check_peer(der, self._policy, self._peer_purpose, check_revoked=check))
            # Never raise here: pyOpenSSL would raise it in whichever thread comes next.
            except PeerRefused as refused:
                connection.set_app_data(refused)
                return False
            except DAMAGED as error:
                connection.set_app_data(PeerRefused(f"the peer's certificate cannot be read: {error}"))
                return False
        return bool(good)

    def _handshake_standard(self, raw: socket.socket) -> BulkStream:
        if self._serving:
            context = self._identity.server_context(self._policy)
        else:
            context = self._identity.client_context(self._policy)
        wrapped = context.wrap_socket(raw, server_side=self._serving, do_handshake_on_connect=False)
        try:
            wrapped.do_handshake()
            der = wrapped.getpeercert(binary_form=True)
            return _StandardStream(wrapped, peer_of(wrapped), load_certificate(der or b""))
        except BaseException:
            wrapped.close()
            raise

    @property
    def _peer_purpose(self) -> Purpose:
        return Purpose.CLIENT if self._serving else Purpose.SERVER

    def _native_context(self) -> SSL.Context:
        material = self._identity.material
        with self._lock:
            if self._native is None or self._native[0] is not material:
                self._native = (material, _native_context(material, self._judge, serving=self._serving))
            return self._native[1]


def _native_context(material: IdentityMaterial, judge: _Judge, *, serving: bool) -> SSL.Context:
    """The same demands as :func:`sluice.pki.tls.contexts.build_context`, step by step."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD if serving else SSL.TLS_CLIENT_METHOD)
    # 1. TLS 1.3 only.
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_max_proto_version(SSL.TLS1_3_VERSION)
    context.set_tls13_ciphersuites(CIPHER_SUITES)
    # 2. The peer must show a certificate: OpenSSL verifies the path, and its identity is judged within the handshake.
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, judge)
    # 3. The anchors are intermediates: accept the partial chain, hold certificates to RFC 5280.
    store = context.get_cert_store()
    if store is None:
        raise PkiError("OpenSSL has no certificate store")
    store.set_flags(_STRICT)
    for anchor in material.anchors:
        store.add_cert(crypto.X509.from_cryptography(anchor))
    # 4. No resumption: no session is kept; sluice.pki.tls.openssl_settings keeps tickets from being sent.
    context.set_options(_OPTIONS)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(b"bulk")
    context.use_certificate(material.leaf)
    for certificate in material.chain:
        context.add_extra_chain_cert(certificate)
    context.use_privatekey(material.key)
    # 5. A write returns when all of it is written.
    context.clear_mode(_lib.SSL_MODE_ENABLE_PARTIAL_WRITE)
    return context


def _reason(error: SSL.Error) -> str:
    """The reasons on OpenSSL's error queue, or the system's."""
    if not error.args:
        return type(error).__name__
    first = error.args[0]
    if isinstance(first, list):
        return ", ".join(str(entry[-1]) for entry in first) or "the connection was closed"
    return str(error.args[-1])


class _NativeStream(BulkStream):
    def __init__(
        self, raw: socket.socket, peer: SpiffeId, certificate: x509.Certificate, connection: SSL.Connection
    ) -> None:
        super().__init__(raw, peer, certificate)
        self._connection = connection
        self._ssl: Any = connection._ssl  # noqa: SLF001  see the module's description

    def read_exactly(self, view: memoryview) -> bool:
        read, ssl_, wanted = _lib.SSL_read, self._ssl, len(view)
        pointer = _ffi.from_buffer("char[]", view)
        done = 0
        while done < wanted:
            got = read(ssl_, pointer + done, wanted - done)
            if got > 0:
                done += got
            elif not self._retry(got):
                if done:
                    raise StreamBroken(f"the connection with {self.peer} ended in the middle of a message")
                return False
        return True

    def write_all(self, data: memoryview | bytes) -> None:
        pointer = _ffi.from_buffer("char[]", data)
        while True:
            sent = _lib.SSL_write(self._ssl, pointer, len(data))
            if sent > 0:
                return
            if not self._retry(sent):
                raise StreamBroken(f"the connection with {self.peer} ended while data were sent")

    def _retry(self, result: int) -> bool:
        """Whether to call again after ``result`` ≤ 0; False at the end of the connection."""
        code = _lib.SSL_get_error(self._ssl, result)
        if code in _RETRY:
            return True
        reasons = []
        while number := _lib.ERR_get_error():
            text = _lib.ERR_reason_error_string(number)
            reasons.append("" if text == _ffi.NULL else _ffi.string(text).decode())
        if code == _ZERO_RETURN or not reasons or "unexpected eof while reading" in reasons:
            return False
        raise StreamBroken(f"the connection with {self.peer} broke: {', '.join(reasons)}")

    def _pending(self) -> int:
        pending: int = _lib.SSL_pending(self._ssl)
        return pending

    def close(self) -> None:
        with contextlib.suppress(SSL.Error, OSError):
            self._raw.setblocking(False)
            self._connection.shutdown()
        self._raw.close()


class _StandardStream(BulkStream):
    _raw: ssl.SSLSocket

    def read_exactly(self, view: memoryview) -> bool:
        done, wanted = 0, len(view)
        try:
            while done < wanted:
                got = self._raw.recv_into(view[done:])
                if got == 0:
                    break
                done += got
        except ssl.SSLEOFError:
            pass
        except ssl.SSLError as error:
            raise StreamBroken(f"the connection with {self.peer} broke: {error.reason or error}") from error
        except OSError:
            pass  # a reset is an end like any other
        if 0 < done < wanted:
            raise StreamBroken(f"the connection with {self.peer} ended in the middle of a message")
        return done == wanted

    def write_all(self, data: memoryview | bytes) -> None:
        try:
            self._raw.sendall(data)
        except OSError as error:
            raise StreamBroken(f"the connection with {self.peer} ended while data were sent") from error

    def _pending(self) -> int:
        return self._raw.pending()

    def close(self) -> None:
        self._raw.close()
