"""A minimal ACME client for tests: signs requests, valid and invalid ones."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.pki.acme.jwk import Jwk, encode, of_public_key, thumbprint

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


def p256() -> ec.EllipticCurvePrivateKey:
    """Generate a P-256 key, the type that most clients use."""
    return ec.generate_private_key(ec.SECP256R1())


def algorithm_of(key: Key) -> str:
    """Return the JWS algorithm of a key."""
    match key:
        case ec.EllipticCurvePrivateKey():
            return "ES256" if key.curve.key_size == 256 else "ES384"
        case ed25519.Ed25519PrivateKey():
            return "EdDSA"
        case _:
            return "RS256"


def sign(key: Key, data: bytes) -> bytes:
    """Return the signature in the encoding of a JWS."""
    match key:
        case ec.EllipticCurvePrivateKey():
            size = key.curve.key_size // 8
            digest = hashes.SHA256() if size == 32 else hashes.SHA384()
            r, s = decode_dss_signature(key.sign(data, ec.ECDSA(digest)))
            return r.to_bytes(size, "big") + s.to_bytes(size, "big")
        case ed25519.Ed25519PrivateKey():
            return key.sign(data)
        case _:
            return key.sign(data, padding.PKCS1v15(), hashes.SHA256())


def jws(header: dict[str, Any], payload: object, key: Key | None = None, *, secret: bytes = b"") -> dict[str, str]:
    """Return a flattened JWS, signed with ``key`` or, without one, with ``secret`` (HS256).

    ``payload`` is an object, bytes, or None for an empty payload.
    """
    content = payload if isinstance(payload, bytes) else b"" if payload is None else msgspec.json.encode(payload)
    protected, body = encode(msgspec.json.encode(header)), encode(content)
    data = f"{protected}.{body}".encode()
    signature = sign(key, data) if key is not None else hmac.digest(secret, data, hashlib.sha256)
    return {"protected": protected, "payload": body, "signature": encode(signature)}


@dataclass
class AcmeClient:
    """An ACME account: its key, and its URL once it is registered."""

    key: Key = field(default_factory=p256)
    kid: str = ""

    @property
    def jwk(self) -> Jwk:
        """The public key of the account."""
        return of_public_key(self.key.public_key())

    @property
    def thumbprint(self) -> str:
        """The thumbprint of the key."""
        return thumbprint(self.jwk)

    def request(self, url: str, payload: object, nonce: str, /, **header: object) -> bytes:
        """Return a signed request. ``header`` replaces or adds members of the protected header; None removes one."""
        members: dict[str, Any] = {"alg": algorithm_of(self.key), "nonce": nonce, "url": url}
        members |= {"kid": self.kid} if self.kid else {"jwk": self.jwk}
        members |= header
        members = {name: value for name, value in members.items() if value is not None}
        return msgspec.json.encode(jws(members, payload, self.key))

    def binding(self, kid: str, secret: bytes, url: str, /, **header: object) -> dict[str, str]:
        """Return an external account binding."""
        return jws({"alg": "HS256", "kid": kid, "url": url} | header, self.jwk, secret=secret)


def csr(names: list[str], key: Key | None = None, *extensions: x509.ExtensionType, subject: str = "") -> bytes:
    """Return a certificate signing request (CSR) in DER."""
    attributes = [x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)] if subject else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    signer = key or p256()
    digest = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(signer, digest).public_bytes(Encoding.DER)
