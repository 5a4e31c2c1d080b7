"""The only place that creates TLS contexts.

Every context is TLS 1.3 only, requires the peer's certificate, trusts only the anchors of its own side, has no
resumption, and decides on the peer's identity *inside the handshake*: a protocol on top (gRPC, HTTP, anything asyncio)
never sees a peer that its policy does not admit.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import ssl
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from cryptography import x509

from sluice.core import PeerRefused, StoreError, may_pass
from sluice.pki.channels import PeerPolicy
from sluice.pki.identities import IdentityMaterial, Stamp, read_identity, stamp_of
from sluice.pki.revocation import CertificateId, RevokedPeers, describe_revoked
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import Purpose, check_peer

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LOG = logging.getLogger(__name__)

MAX_CACHED_CONTEXTS = 64
"""Contexts kept per identity generation; one per policy and application protocol."""

_ContextKey = tuple[Purpose, Hashable, tuple[str, ...], bool]


@dataclass(frozen=True, slots=True, eq=False)
class _Generation:
    """One generation of an identity with the contexts made of it.

    A thread that is building a context while the identity is renewed stores it in the old generation, never in the new
    one.
    """

    material: IdentityMaterial
    stamp: Stamp
    contexts: dict[_ContextKey, ssl.SSLContext] = field(default_factory=dict)


class TlsIdentity:
    """The identity of this process, from an identity directory, and the TLS contexts made with it.

    The files are read when the object is made (a process without identity does not start) and again after changes; a
    damaged, half-written or expired set leaves the previous one in use. The same applies to its CRLs (see
    :mod:`sluice.pki.revocation.revoked_peers`).

    Raises:
        StoreError: the directory holds no usable identity.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)) -> None:
        self.directory = directory
        self._clock = clock
        self._generation = _Generation(*read_identity(directory))
        self._generation.material.check_valid_at(clock())
        self._refused_stamp: Stamp | None = None
        self.loaded_at = clock()
        """When the generation in use was read."""
        self.revoked_peers = RevokedPeers(directory, lambda: self._current().material.anchors, clock=clock)

    @property
    def spiffe_id(self) -> SpiffeId:
        """The identity of this process."""
        return self._generation.material.spiffe_id

    @property
    def material(self) -> IdentityMaterial:
        """The newest usable generation of this process's identity."""
        return self._current().material

    @property
    def expires_at(self) -> dt.datetime:
        """When the certificate in use expires."""
        return self._current().material.leaf.not_valid_after_utc

    def server_context(
        self, policy: PeerPolicy, *, alpn: Sequence[str] = (), alpn_required: bool = True
    ) -> ssl.SSLContext:
        """A server context: the client must show a client certificate that ``policy`` admits.

        ``alpn_required`` False: a client without ALPN is assumed to speak the offered protocol.
        """
        return self._context(Purpose.SERVER, policy, tuple(alpn), alpn_required=alpn_required)

    def client_context(self, policy: PeerPolicy, *, alpn: Sequence[str] = ()) -> ssl.SSLContext:
        """A client context: the server must show a server certificate that ``policy`` admits.

        The host name is not checked: the SPIFFE ID is the identity, wherever the process runs.
        """
        return self._context(Purpose.CLIENT, policy, tuple(alpn))

    def _context(
        self, own_purpose: Purpose, policy: PeerPolicy, alpn: tuple[str, ...], *, alpn_required: bool = True
    ) -> ssl.SSLContext:
        generation = self._current()
        whom = policy.key
        key = (own_purpose, whom, alpn, alpn_required)
        context = generation.contexts.get(key)
        if context is None:
            if len(generation.contexts) >= MAX_CACHED_CONTEXTS:
                generation.contexts.clear()
            context = generation.contexts[key] = build_context(
                generation.material, own_purpose, policy, alpn, self.revoked_peers, alpn_required=alpn_required
            )
        return context

    def _current(self) -> _Generation:
        """The newest usable generation."""
        present = self._generation
        try:
            stamp = stamp_of(self.directory)
            if stamp in (present.stamp, self._refused_stamp):
                return present
            self._refused_stamp = stamp
            generation = self._read_next()
        except StoreError as error:
            if may_pass(error):
                self._refused_stamp = None
            _LOG.warning("keeping the current certificate of %s: %s", present.material.spiffe_id, error)
            return present
        self._generation, self._refused_stamp = generation, None
        self.loaded_at = self._clock()
        leaf = generation.material.leaf
        _LOG.info("certificate of %s renewed, valid until %s", self.spiffe_id, leaf.not_valid_after_utc)
        return generation

    def _read_next(self) -> _Generation:
        material, stamp = read_identity(self.directory)
        material.check_valid_at(self._clock())
        if material.spiffe_id != self.spiffe_id:
            raise StoreError(f"{self.directory} now holds {material.spiffe_id}", "restart the process to change it")
        return _Generation(material, stamp)


def build_context(
    material: IdentityMaterial,
    own_purpose: Purpose,
    policy: PeerPolicy,
    alpn: tuple[str, ...],
    revoked_peers: RevokedPeers,
    *,
    alpn_required: bool = True,
) -> ssl.SSLContext:
    """A context for one side of mutual TLS; see the module's description for what it guarantees."""
    serving = own_purpose is Purpose.SERVER
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serving else ssl.PROTOCOL_TLS_CLIENT)
    # 1. TLS 1.3 only: no negotiation downwards, no renegotiation, the client's certificate is encrypted.
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    # 2. The peer must show a certificate. Names are checked below, by SPIFFE ID and not by host.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    # 3. The anchors are intermediates (internal or edge, never the root above both): accept the partial chain, and
    #    hold certificates to RFC 5280.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=material.ca_pem.decode("ascii"))
    # 4. No resumption: every connection is a full handshake, so that a peer no longer admitted does not slip in.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if serving:
        context.num_tickets = 0
    _load_key(context, material.key_pem, material.chain_pem, str(material.spiffe_id))
    if alpn:
        context.set_alpn_protocols(list(alpn))
    # 5. The identity check runs within the handshake, on asyncio's TLS objects and on blocking sockets alike.
    peer_purpose = Purpose.CLIENT if serving else Purpose.SERVER
    members = {"policy": policy, "peer_purpose": peer_purpose, "alpn": alpn, "revoked_peers": revoked_peers}
    members["alpn_required"] = alpn_required
    context.sslobject_class = cast("type[ssl.SSLObject]", type("VerifiedSslObject", (_VerifiedObject,), members))
    context.sslsocket_class = cast("type[ssl.SSLSocket]", type("VerifiedSslSocket", (_VerifiedSocket,), members))
    return context


def enrolment_server_context(material: IdentityMaterial, alpn: Sequence[str]) -> ssl.SSLContext:
    """A server context for clients without a certificate; TLS 1.3 only and no resumption, as everywhere.

    Peers are not authenticated: :func:`peer_of` refuses such connections.
    """
    return host_server_context(material.key_pem, material.chain_pem, str(material.spiffe_id), alpn)


def host_server_context(key_pem: bytes, chain_pem: bytes, whose: str, alpn: Sequence[str]) -> ssl.SSLContext:
    """:func:`enrolment_server_context` with a certificate without SPIFFE ID; ``whose`` is for errors."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    _load_key(context, key_pem, chain_pem, whose)
    context.set_alpn_protocols(list(alpn))
    return context


def enrolment_client_context(ca_pem: bytes, policy: PeerPolicy) -> ssl.SSLContext:
    """A client context without a client certificate; verifies the server against ``ca_pem`` and ``policy``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    # The server is verified by its SPIFFE ID within the handshake, see `policy` below, and not by its host name.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise StoreError("the trust anchors are not readable certificates") from error
    members = {"policy": policy, "peer_purpose": Purpose.SERVER, "alpn": (), "revoked_peers": None}
    context.sslsocket_class = cast("type[ssl.SSLSocket]", type("VerifiedSslSocket", (_VerifiedSocket,), members))
    context.sslobject_class = cast("type[ssl.SSLObject]", type("VerifiedSslObject", (_VerifiedObject,), members))
    return context


def unverified_client_context() -> ssl.SSLContext:
    """A client context to fetch public data that a fingerprint verifies afterwards; send no secret through it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    # This is not trust on first use: the caller compares the fingerprint in its join token.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def challenge_client_context(alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """A client context for ACME challenges, to a server that has no certificate yet (RFC 8555, RFC 8737).

    The certificate is not verified: the caller compares its content, or reads a value that only the right server can
    know. Send no secret through it. TLS 1.2 is accepted, as in RFC 8737, because these servers are not ours.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def _load_key(context: ssl.SSLContext, key_pem: bytes, chain_pem: bytes, whose: str) -> None:
    """Load key and chain from memory: the files may be of another generation by now.

    The ssl module takes only file names, so the pair goes through an anonymous file in memory.
    """
    descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(key_pem + b"\n" + chain_pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except ssl.SSLError as error:
        raise StoreError(f"OpenSSL does not take the certificate of {whose}: {error.reason}") from error
    finally:
        os.close(descriptor)


class _VerifiedMixin:
    """The checks of both kinds of TLS object when the handshake is complete."""

    policy: PeerPolicy
    peer_purpose: Purpose
    alpn: tuple[str, ...]
    alpn_required: bool = True
    revoked_peers: RevokedPeers | None
    """None while enrolling: the first CRL comes with the first certificate."""
    peer: SpiffeId | None = None
    _certificate: CertificateId | None = None
    _lists_seen = -1

    def _verify(self, certificate: bytes | None, negotiated: str | None) -> None:
        try:
            if negotiated is not None or self.alpn_required:
                check_application_protocol(self.alpn, negotiated)
            self.peer = check_peer(certificate, self.policy, self.peer_purpose, check_revoked=self._check_revoked)
        except PeerRefused as error:
            refusal = ssl.SSLCertVerificationError(1, f"peer refused: {error}")
            refusal.verify_code = 0
            refusal.verify_message = str(error)
            raise refusal from error

    def _check_revoked(self, certificate: x509.Certificate) -> None:
        if self.revoked_peers is None:
            return
        self.revoked_peers.check(certificate)
        self._certificate = CertificateId.of(certificate)
        self._lists_seen = self.revoked_peers.version

    def _require_peer(self) -> None:
        """Refuse data before the identity check, which OpenSSL's implicit handshake skips, and after a revocation."""
        if self.peer is None:
            raise ssl.SSLCertVerificationError(1, "peer refused: the handshake was not completed")
        if self.revoked_peers is None:
            return
        version = self.revoked_peers.look()
        if version != self._lists_seen:
            if reason := self.revocation():
                raise ssl.SSLCertVerificationError(1, f"peer refused: {reason}")
            self._lists_seen = version

    def revocation(self) -> str:
        """Why the peer is refused from now on; empty when it is not revoked."""
        if self.revoked_peers is None or self._certificate is None:
            return ""
        found = self.revoked_peers.revoked(self._certificate)
        return "" if found is None else describe_revoked(self._certificate, found)


def check_application_protocol(offered: Sequence[str], negotiated: str | None) -> None:
    """Refuse a peer that chose none of the protocols offered, so that it cannot mistake one for another (RFC 7301)."""
    if offered and negotiated not in offered:
        raise PeerRefused(f"the peer does not speak {' or '.join(offered)}")


class _VerifiedObject(_VerifiedMixin, ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        self._verify(self.getpeercert(binary_form=True), self.selected_alpn_protocol())

    def read(self, len: int = 1024, buffer: Buffer | None = None) -> Any:  # noqa: A002, ANN401  ssl's signature
        self._require_peer()
        return super().read(len, buffer)

    def write(self, data: Buffer) -> int:
        self._require_peer()
        return super().write(data)


class _VerifiedSocket(_VerifiedMixin, ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        self._verify(self.getpeercert(binary_form=True), self.selected_alpn_protocol())

    def read(self, len: int = 1024, buffer: Buffer | None = None) -> Any:  # noqa: A002, ANN401  ssl's signature
        self._require_peer()
        received = super().read(len, buffer)
        self._require_peer()  # the peer may have been revoked while this waited
        return received

    def write(self, data: Buffer) -> int:
        self._require_peer()
        return super().write(data)

    def send(self, data: Buffer, flags: int = 0) -> int:
        self._require_peer()
        return super().send(data, flags)


class _HasExtraInfo(Protocol):
    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  asyncio's own signature
        ...


def tls_object_of(connection: _HasExtraInfo | ssl.SSLObject | ssl.SSLSocket) -> ssl.SSLObject | ssl.SSLSocket:
    """The TLS object below a transport, stream writer or socket; :class:`PeerRefused` when there is none."""
    found = connection
    if not isinstance(found, ssl.SSLObject | ssl.SSLSocket):
        found = found.get_extra_info("ssl_object")
    if not isinstance(found, ssl.SSLObject | ssl.SSLSocket):
        raise PeerRefused("the connection is not TLS")
    return found


def peer_of(connection: _HasExtraInfo | ssl.SSLObject | ssl.SSLSocket) -> SpiffeId:
    """The peer's identity, for a connection made with a context of this module.

    Raises:
        PeerRefused: the connection is not TLS, not of this module, or its handshake is not complete.
    """
    peer = getattr(tls_object_of(connection), "peer", None)
    if not isinstance(peer, SpiffeId):
        raise PeerRefused("the connection has no verified peer")
    return peer


def revocation_of(connection: _HasExtraInfo | ssl.SSLObject | ssl.SSLSocket) -> str:
    """Why the peer of an open connection is revoked; empty when it is not.

    Raises:
        PeerRefused: the connection is not of this module.
    """
    found = tls_object_of(connection)
    if not isinstance(found, _VerifiedMixin):
        raise PeerRefused("the connection has no verified peer")
    return found.revocation()
