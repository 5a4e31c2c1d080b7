"""The identity in a peer's certificate, and whether a policy admits it: the checks after path validation.

Decisions only; no I/O. OpenSSL checks that the certificate chains up to a trust anchor and is valid now (see
:mod:`sluice.pki.tls.contexts`); the rules here are those of X509-SVID, section 5, and of the channel table.
"""

from __future__ import annotations

from collections.abc import Callable

from cryptography import x509

from sluice.core import CertificateRejected, PeerRefused, PkiError
from sluice.pki.channels import PeerPolicy
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509.loading import load_certificate
from sluice.pki.x509.parse_errors import DAMAGED
from sluice.pki.x509.profiles import Purpose

MAX_PEER_CERTIFICATE_BYTES = 64 << 10
"""Largest peer certificate that is parsed, in bytes of DER."""


def certified_identity(certificate: x509.Certificate) -> SpiffeId:
    """The SPIFFE ID of a leaf.

    Raises:
        CertificateRejected: not a leaf, not exactly one URI name, or a usage that only authorities have.
        InvalidIdentity: the URI is not an identity of ours.
    """
    try:
        extensions = certificate.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound as error:
        raise CertificateRejected("the certificate has no subject alternative name") from error
    except DAMAGED as error:
        raise CertificateRejected(f"the certificate's extensions are damaged: {error}") from error
    # 1. An authority's certificate is no identity (X509-SVID, 5.2).
    for extension in extensions:
        if isinstance(extension.value, x509.BasicConstraints) and extension.value.ca:
            raise CertificateRejected("the certificate belongs to an authority, not to a process")
        if isinstance(extension.value, x509.KeyUsage) and (extension.value.key_cert_sign or extension.value.crl_sign):
            raise CertificateRejected("the certificate may sign others: it is not a leaf")
    # 2. Exactly one URI name (X509-SVID, 2): with two, verifiers could choose different ones.
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise CertificateRejected(f"the certificate has {len(uris)} URI names instead of exactly one")
    return SpiffeId.parse(uris[0])


def check_purpose(certificate: x509.Certificate, purpose: Purpose) -> None:
    """Refuse a certificate that is not explicitly for ``purpose``: no listed usage means none."""
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound as error:
        raise CertificateRejected("the certificate has no extended key usage") from error
    if purpose.oid not in usages:
        raise CertificateRejected(f"the certificate is not meant for a {purpose}")


def check_peer(
    certificate_der: bytes | None,
    policy: PeerPolicy,
    purpose: Purpose,
    *,
    check_revoked: Callable[[x509.Certificate], None] | None = None,
) -> SpiffeId:
    """Decide on the certificate of the other end of a connection.

    Args:
        certificate_der: as the handshake delivered it, its path verified already; None when there was none.
        policy: the peers to accept.
        purpose: the peer's part in this handshake.
        check_revoked: raises :class:`PeerRefused` for a certificate that is revoked.

    Raises:
        PeerRefused: with the reason; no other error is raised.
    """
    if not certificate_der:
        raise PeerRefused("the peer showed no certificate")
    if len(certificate_der) > MAX_PEER_CERTIFICATE_BYTES:
        raise PeerRefused(f"the peer's certificate is larger than {MAX_PEER_CERTIFICATE_BYTES} bytes")
    try:
        certificate = load_certificate(certificate_der)
        peer = certified_identity(certificate)
        check_purpose(certificate, purpose)
    except DAMAGED as error:
        raise PeerRefused(f"the peer's certificate cannot be read: {error}") from error
    except PkiError as error:
        raise PeerRefused(str(error)) from error
    policy.admit(peer)
    if check_revoked is not None:
        check_revoked(certificate)
    return peer
