"""Public keys of accounts as JSON Web Keys: read, identified (RFC 7638), used to verify. No I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from sluice.pki.acme.problems import AcmeProblem, ProblemType, malformed
from sluice.pki.x509 import PublicKey

MIN_RSA_BITS = 2048
"""Of an account's key: what certbot makes. Keys in certificates have :data:`sluice.pki.x509.keys.MIN_RSA_BITS`."""
MAX_RSA_BITS = 4096
RSA_EXPONENT = 65537
MAX_MEMBER_CHARACTERS = 1024

_CURVES: Mapping[str, tuple[type[ec.EllipticCurve], int]] = {
    "P-256": (ec.SECP256R1, 32),
    "P-384": (ec.SECP384R1, 48),
}
_MEMBERS = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}

Jwk = dict[str, str]
"""The members that identify a key, and no others."""


def decode(text: str, what: str) -> bytes:
    """Bytes of canonical base64url without padding (RFC 7515, section 2)."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise malformed(f"{what} is not base64url") from None
    if encode(data) != text:
        raise malformed(f"{what} is not canonical base64url")
    return data


def encode(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def canonical(members: Mapping[str, Any]) -> Jwk:
    """The members of a key that identify it.

    Raises:
        AcmeProblem: a private key, an unsupported kind of key, or a missing member.
    """
    kind = members.get("kty")
    if kind == "oct" or {"d", "p", "q", "k"} & members.keys():
        raise AcmeProblem(
            ProblemType.BAD_PUBLIC_KEY, "this is a secret key: make another one, and send its public part"
        )
    names = _MEMBERS.get(kind) if isinstance(kind, str) else None
    if names is None:
        raise AcmeProblem(ProblemType.BAD_PUBLIC_KEY, "keys are of type EC, OKP or RSA")
    found = {name: members.get(name) for name in names}
    if not all(isinstance(value, str) and len(value) <= MAX_MEMBER_CHARACTERS for value in found.values()):
        raise AcmeProblem(ProblemType.BAD_PUBLIC_KEY, f"a key of type {kind} has the members {', '.join(names)}")
    return {name: str(value) for name, value in found.items()}


def thumbprint(jwk: Jwk) -> str:
    """The thumbprint of a key (RFC 7638): SHA-256 of its members in their order."""
    text = msgspec.json.encode(dict(sorted(jwk.items())))
    return encode(hashlib.sha256(text).digest())


def public_key(jwk: Jwk) -> PublicKey:
    """The key itself.

    Raises:
        AcmeProblem: it is not a point of its curve, too weak, or too large.
    """
    try:
        match jwk["kty"]:
            case "EC" if jwk["crv"] in _CURVES:
                curve, size = _CURVES[jwk["crv"]]
                x, y = (decode(jwk[name], f"member {name}") for name in ("x", "y"))
                if len(x) != size or len(y) != size:
                    raise AcmeProblem(ProblemType.BAD_PUBLIC_KEY, "a coordinate is of the wrong length")
                point = ec.EllipticCurvePublicNumbers(int.from_bytes(x, "big"), int.from_bytes(y, "big"), curve())
                return point.public_key()
            case "OKP" if jwk["crv"] == "Ed25519":
                return ed25519.Ed25519PublicKey.from_public_bytes(decode(jwk["x"], "member x"))
            case "RSA":
                modulus, exponent = (int.from_bytes(decode(jwk[name], f"member {name}"), "big") for name in ("n", "e"))
                if not MIN_RSA_BITS <= modulus.bit_length() <= MAX_RSA_BITS or exponent != RSA_EXPONENT:
                    raise AcmeProblem(
                        ProblemType.BAD_PUBLIC_KEY,
                        f"RSA keys have {MIN_RSA_BITS} to {MAX_RSA_BITS} bits and the exponent {RSA_EXPONENT}",
                    )
                return rsa.RSAPublicNumbers(exponent, modulus).public_key()
    except ValueError:
        raise AcmeProblem(ProblemType.BAD_PUBLIC_KEY, "this is not a point of its curve, or not a modulus") from None
    raise AcmeProblem(ProblemType.BAD_PUBLIC_KEY, "curves are P-256, P-384 and Ed25519")


def of_public_key(key: PublicKey) -> Jwk:
    """The JWK of a key; raises :class:`AcmeProblem` for one that no account can have."""
    match key:
        case ec.EllipticCurvePublicKey():
            numbers = key.public_numbers()
            for name, (curve, size) in _CURVES.items():
                if isinstance(key.curve, curve):
                    x, y = (encode(each.to_bytes(size, "big")) for each in (numbers.x, numbers.y))
                    return {"crv": name, "kty": "EC", "x": x, "y": y}
        case ed25519.Ed25519PublicKey():
            return {"crv": "Ed25519", "kty": "OKP", "x": encode(key.public_bytes_raw())}
        case rsa.RSAPublicKey():
            pair = key.public_numbers()
            e, n = (encode(each.to_bytes((each.bit_length() + 7) // 8, "big")) for each in (pair.e, pair.n))
            return {"e": e, "kty": "RSA", "n": n}
    raise AcmeProblem(ProblemType.BAD_PUBLIC_KEY, "an account cannot have a key of this kind")


def verify(key: PublicKey, algorithm: str, signature: bytes, data: bytes) -> None:
    """Refuse a signature that is not of ``key`` by ``algorithm``, which must be the one for this kind of key.

    Raises:
        AcmeProblem: it is wrong, or the algorithm does not belong to the key.
    """
    try:
        match key, algorithm:
            case ec.EllipticCurvePublicKey(curve=ec.SECP256R1()), "ES256":
                key.verify(_der(signature, 32), data, ec.ECDSA(hashes.SHA256()))
            case ec.EllipticCurvePublicKey(curve=ec.SECP384R1()), "ES384":
                key.verify(_der(signature, 48), data, ec.ECDSA(hashes.SHA384()))
            case ed25519.Ed25519PublicKey(), "EdDSA":
                key.verify(signature, data)
            case rsa.RSAPublicKey(), "RS256":
                key.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
            case _:
                raise AcmeProblem(ProblemType.BAD_SIGNATURE_ALGORITHM, "the algorithm is not one for this key")
    except InvalidSignature:
        raise malformed("the signature is wrong") from None


def _der(signature: bytes, size: int) -> bytes:
    """Convert the pair of an ECDSA signature in a JWS (RFC 7518, 3.4) to DER."""
    if len(signature) != 2 * size:
        raise malformed("the signature is of the wrong length")
    return encode_dss_signature(int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big"))
