"""Key pairs: the available algorithms, and the minimum strength of certified keys.

Decisions and computation only; no I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificateIssuerPrivateKeyTypes,
    CertificatePublicKeyTypes,
    PrivateKeyTypes,
    PublicKeyTypes,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from sluice.core import CertificateRejected, StoreError

PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey

DEFAULT_ALGORITHM = "ecdsa-p256"
MIN_RSA_BITS = 3072
"""Smallest RSA modulus certified (NIST SP 800-57 part 1, 128-bit strength)."""
MAX_RSA_BITS = 4096
"""Largest RSA modulus certified: a larger one only makes every handshake of its peers slow."""
RSA_EXPONENT = 65537

_GENERATORS: dict[str, Callable[[], PrivateKey]] = {
    DEFAULT_ALGORITHM: lambda: ec.generate_private_key(ec.SECP256R1()),
    "ecdsa-p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
    "rsa-3072": lambda: rsa.generate_private_key(RSA_EXPONENT, 3072),
    "rsa-4096": lambda: rsa.generate_private_key(RSA_EXPONENT, 4096),
}

ALGORITHMS = tuple(_GENERATORS)
"""The names of the supported key algorithms."""


def generate_key(algorithm: str = DEFAULT_ALGORITHM) -> PrivateKey:
    """Make a key pair; an unknown ``algorithm`` is a :class:`CertificateRejected` that names the known ones."""
    try:
        generate = _GENERATORS[algorithm]
    except KeyError:
        raise CertificateRejected(
            f"unknown key algorithm {algorithm[:40]!r}", f"use one of {', '.join(ALGORITHMS)}"
        ) from None
    return generate()


def edge_algorithm(algorithm: str) -> str:
    """The edge authority's algorithm when ``algorithm`` is configured.

    Browsers and Envoy (BoringSSL) do not take Ed25519 certificates, so the edge falls back to ECDSA P-256.
    """
    return DEFAULT_ALGORITHM if algorithm == "ed25519" else algorithm


def signature_hash(key: CertificateIssuerPrivateKeyTypes) -> hashes.SHA256 | hashes.SHA384 | None:
    """The hash to sign with: none for Ed25519 (RFC 8032), SHA-384 for P-384, SHA-256 otherwise."""
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return None
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.key_size > 256:
        return hashes.SHA384()
    return hashes.SHA256()


def describe_key(key: CertificatePublicKeyTypes | PublicKeyTypes) -> str:
    """Short name of a key's algorithm and size: one of :data:`ALGORITHMS`, or a description."""
    match key:
        case ec.EllipticCurvePublicKey(curve=ec.SECP256R1()):
            return "ecdsa-p256"
        case ec.EllipticCurvePublicKey(curve=ec.SECP384R1()):
            return "ecdsa-p384"
        case ec.EllipticCurvePublicKey():
            return f"ecdsa-{key.curve.name}"
        case ed25519.Ed25519PublicKey():
            return "ed25519"
        case rsa.RSAPublicKey():
            return f"rsa-{key.key_size}"
        case _:
            return type(key).__name__.removesuffix("PublicKey").lower()


def check_strength(key: CertificatePublicKeyTypes | PublicKeyTypes) -> PublicKey:
    """Return ``key`` if its algorithm is supported and it is strong enough; else :class:`CertificateRejected`."""
    remedy = f"use one of {', '.join(ALGORITHMS)}"
    match key:
        case ec.EllipticCurvePublicKey(curve=ec.SECP256R1() | ec.SECP384R1()) | ed25519.Ed25519PublicKey():
            return key
        case rsa.RSAPublicKey():
            if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
                raise CertificateRejected(
                    f"RSA key of {key.key_size} bits: {MIN_RSA_BITS} to {MAX_RSA_BITS} are accepted", remedy
                )
            if key.public_numbers().e != RSA_EXPONENT:
                raise CertificateRejected(f"RSA key with an exponent other than {RSA_EXPONENT}", remedy)
            return key
        case _:
            raise CertificateRejected(f"key algorithm {describe_key(key)} is not accepted", remedy)


def key_to_pem(key: PrivateKey) -> bytes:
    """The private key as unencrypted PKCS#8 PEM (RFC 5958): for files of mode 0600 only."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_from_pem(pem: bytes, where: str, passphrase: bytes | None = None) -> PrivateKey:
    """Parse a PEM private key; errors name ``where`` it was found and never its content."""
    encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in pem
    try:
        # The library refuses a passphrase for a key without one; we accept it.
        key: PrivateKeyTypes = load_pem_private_key(pem, password=passphrase if encrypted else None)
    except TypeError:
        raise StoreError(f"{where} is encrypted", f"decrypt it first: openssl pkey -in {where} -out key.pem") from None
    except (ValueError, UnsupportedAlgorithm):
        if encrypted and passphrase is not None:
            raise StoreError(f"{where} does not open with this passphrase", "or it is damaged: try a copy") from None
        # The library's message may describe the content: leave it out, and out of the traceback.
        raise StoreError(f"{where} is not a readable PEM private key", "issue the identity again") from None
    if not isinstance(key, PrivateKey):
        raise StoreError(f"{where} holds a {describe_key(key.public_key())} key", f"use {', '.join(ALGORITHMS)}")
    return key


def same_public_key(one: CertificatePublicKeyTypes | PublicKeyTypes, other: CertificatePublicKeyTypes) -> bool:
    """Whether two public keys are the same key."""
    return public_key_der(one) == public_key_der(other)


def public_key_der(key: CertificatePublicKeyTypes | PublicKeyTypes) -> bytes:
    """The SubjectPublicKeyInfo in DER (RFC 5280, 4.1.2.7)."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
