"""A client of TLS 1.2 and older that verifies nothing about the server: OpenSSL, over memory (ADR 18).

Below TLS 1.3 a server judges the client's certificate before the handshake is complete; decisions of a layer above come
after it. No application data is ever sent.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Self

from OpenSSL import SSL

from sluice.audit.wire.client import Credential, Verdict
from sluice.audit.wire.connection import Closed, ConnectionEnded, Refusal, Silent

CHUNK_BYTES = 16 << 10
MAX_RECEIVED_BYTES = 512 << 10
"""Most bytes taken from one server."""
RENEGOTIATION_SECONDS = 10.0
"""How long a server may take for another handshake."""
# All that OpenSSL has, to find out what the server accepts.
_CIPHERS = b"ALL:@SECLEVEL=0"


class OldClient:
    """One connection. Use as a context manager; arguments as those of :class:`sluice.audit.wire.client.Tls13Client`."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        credential: Credential | None = None,
        alpn: tuple[str, ...] = (),
        server_name: bytes = b"",
        timeout: float = 10.0,
    ) -> None:
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._received = 0
        self._socket = socket.create_connection(address, timeout=timeout)
        self._tls = SSL.Connection(_context(credential, alpn), None)
        self._tls.set_connect_state()
        if server_name:
            self._tls.set_tlsext_host_name(server_name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def connect(self) -> None:
        """The whole handshake; raises :class:`ConnectionEnded` when the server does not go on."""
        self._until_done(self._tls.do_handshake)

    def renegotiate(self, listen: float) -> None:
        """Another handshake within this one; raises :class:`ConnectionEnded` when the server does not take part.

        Unsolicited data of the server would disturb it: first wait until nothing comes for ``listen`` seconds.
        """
        while self.verdict(listen).data:
            pass
        self._deadline = time.monotonic() + RENEGOTIATION_SECONDS
        self._tls.renegotiate()
        self._until_done(self._tls.do_handshake)
        while not self._tls.total_renegotiations() or self._tls.renegotiate_pending():
            self._until_done(lambda: self._tls.recv(CHUNK_BYTES))

    def verdict(self, seconds: float) -> Verdict:
        """Read until the server ends the connection, sends data, or ``seconds`` are over."""
        self._deadline, self._timeout = time.monotonic() + seconds, seconds
        data = b""

        def read() -> None:
            nonlocal data
            data = self._tls.recv(CHUNK_BYTES)

        try:
            self._until_done(read)
        except ConnectionEnded as ended:
            return Verdict(ended.ending)
        return Verdict(Silent(0.0), data)

    def _until_done(self, step: Callable[[], object]) -> None:
        while True:
            try:
                step()
            except SSL.WantReadError:
                self._flush()
                self._receive()
            except SSL.ZeroReturnError:
                raise ConnectionEnded(Closed(reset=False)) from None
            except SSL.Error as error:
                raise ConnectionEnded(Refusal(_reason(error))) from None
            else:
                self._flush()
                return

    def _flush(self) -> None:
        with contextlib.suppress(SSL.WantReadError):
            while True:
                data = self._tls.bio_read(CHUNK_BYTES)
                with contextlib.suppress(OSError):  # a peer that has closed is noticed by the next read
                    self._socket.sendall(data)

    def _receive(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0 or self._received > MAX_RECEIVED_BYTES:
            raise ConnectionEnded(Silent(self._timeout))
        self._socket.settimeout(left)
        try:
            data = self._socket.recv(CHUNK_BYTES)
        except TimeoutError:
            raise ConnectionEnded(Silent(self._timeout)) from None
        except OSError:
            raise ConnectionEnded(Closed(reset=True)) from None
        if not data:
            raise ConnectionEnded(Closed(reset=False))
        self._received += len(data)
        self._tls.bio_write(data)


def _context(credential: Credential | None, alpn: tuple[str, ...]) -> SSL.Context:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_max_proto_version(SSL.TLS1_2_VERSION)
    context.set_cipher_list(_CIPHERS)
    # This verifies nothing: the checks examine the server's certificates.
    context.set_verify(SSL.VERIFY_NONE)
    if alpn:
        context.set_alpn_protos([name.encode() for name in alpn])
    if credential is not None:
        context.use_privatekey(credential.key)
        context.use_certificate(credential.chain[0])
        for certificate in credential.chain[1:]:
            context.add_extra_chain_cert(certificate)
    return context


def _reason(error: SSL.Error) -> str:
    """The last of OpenSSL's reasons."""
    reasons = error.args[0] if error.args and isinstance(error.args[0], list) else []
    return str(reasons[-1][-1]) if reasons else type(error).__name__
