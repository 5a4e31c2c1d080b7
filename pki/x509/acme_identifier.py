"""The acmeIdentifier extension of a certificate that answers the challenge tls-alpn-01 (RFC 8737, section 3)."""

from __future__ import annotations

import hashlib

from cryptography import x509

ACME_TLS_PROTOCOL = "acme-tls/1"
"""The ALPN protocol of validations (RFC 8737, section 6.2); nothing else may be spoken with it."""
ACME_IDENTIFIER = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.31")
"""id-pe-acmeIdentifier."""
_OCTET_STRING_OF_32 = b"\x04\x20"


def acme_identifier(key_authorization: str) -> x509.UnrecognizedExtension:
    """The extension: an OCTET STRING with the SHA-256 digest of the key authorization. It has to be critical."""
    return x509.UnrecognizedExtension(
        ACME_IDENTIFIER, _OCTET_STRING_OF_32 + key_authorization_digest(key_authorization)
    )


def key_authorization_digest(key_authorization: str) -> bytes:
    """What tls-alpn-01 and dns-01 show instead of the key authorization (RFC 8555, 8.4; RFC 8737, 3)."""
    return hashlib.sha256(key_authorization.encode()).digest()
