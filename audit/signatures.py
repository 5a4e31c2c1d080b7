"""Verifies who signed a certificate, with any algorithm: a weak one, such as SHA-1, is a separate finding."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from sluice.pki.x509 import was_issued_by

WEAK_HASHES = frozenset({"md5", "sha1"})
"""Weak hashes, which the library refuses to verify on certificates."""


def issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether ``issuer``'s name and signature are those on ``certificate``, with SHA-1 and MD5 as well."""
    if was_issued_by(certificate, issuer):
        return True
    try:
        digest, key = certificate.signature_hash_algorithm, issuer.public_key()
        if certificate.issuer != issuer.subject or digest is None or digest.name not in WEAK_HASHES:
            return False
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(certificate.signature, certificate.tbs_certificate_bytes, padding.PKCS1v15(), digest)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(digest))
        else:
            return False
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True
