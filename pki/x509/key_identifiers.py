"""Key identifiers, which tell generations of an authority apart (RFC 5280, 4.2.1.1 and 4.2.1.2)."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes


def key_id(authority: x509.Certificate) -> str:
    """The subject key identifier of an authority, in hexadecimal; computed when it has none."""
    try:
        identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    return identifier.digest.hex()


def issuer_id(leaf: x509.Certificate) -> str:
    """The key identifier of the issuer of ``leaf``, in hexadecimal; empty when the leaf has none."""
    try:
        identifier = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    except x509.ExtensionNotFound:
        return ""
    return "" if identifier is None else identifier.hex()


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate in DER, in hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()
