"""JWT-SVIDs: signing and validating them, and their signing keys. No I/O.

Source: JWT-SVID (https://github.com/spiffe/spiffe/blob/main/standards/JWT-SVID.md), RFC 7515, RFC 7517, RFC 7518.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jwt
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from sluice.core import InvalidJwt, PkiError, read_header, verified_claims
from sluice.pki.spiffe_id import SpiffeId

Algorithm = Literal["ES256", "RS256"]
DEFAULT_ALGORITHM: Algorithm = "ES256"
RSA_BITS = 2048
"""NIST SP 800-57: secure until 2030; these keys live for weeks."""
MAX_TOKEN_BYTES = 16 << 10
MAX_LIFETIME = dt.timedelta(hours=1)
"""Longest life of a token."""
KEY_LIFETIME = dt.timedelta(days=30)
"""How long a key signs before the next one is made."""
PUBLISH_AHEAD = dt.timedelta(minutes=10)
"""How long a new key is in the bundle before it signs, so that every validator has it by then."""

MAX_AUDIENCES = 8
"""Most audiences of one token."""
MAX_AUDIENCE_BYTES = 512
MAX_KEYS = 16
"""Most keys of a bundle."""

_TYPES = ("JWT", "JOSE")
_RESERVED = frozenset({"sub", "aud", "iat", "exp", "nbf", "iss", "jti"})
"""Claims that no caller adds."""

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


class TokenRejected(PkiError):
    """A JWT-SVID that does not verify."""


@dataclass(frozen=True, slots=True)
class JwtKey:
    """A signing key of a trust domain."""

    key_id: str
    created: dt.datetime
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = field(repr=False)
    certificate: x509.Certificate | None = None
    """Self-signed certificate of the key, which proves nothing: some programs read keys only from ``x5c``. Keys of
    earlier versions have none."""

    @property
    def algorithm(self) -> Algorithm:
        """The signature algorithm, which follows from the kind of key, never from a token."""
        return algorithm_of(self.key.public_key())

    @classmethod
    def generate(cls, now: dt.datetime, algorithm: Algorithm = DEFAULT_ALGORITHM) -> JwtKey:
        """A new key; its id is the thumbprint of RFC 7638."""
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
        if algorithm == "ES256":
            key = ec.generate_private_key(ec.SECP256R1())
        else:
            key = rsa.generate_private_key(65537, RSA_BITS)
        members = _public_members(key.public_key())
        required = ("crv", "kty", "x", "y") if algorithm == "ES256" else ("e", "kty", "n")
        canonical = msgspec.json.encode({name: members[name] for name in required})
        thumbprint = base64.urlsafe_b64encode(hashlib.sha256(canonical).digest()).rstrip(b"=").decode()
        return cls(thumbprint, now, key, _self_signed(thumbprint, key, now))


KeyRing = tuple[JwtKey, ...]
"""Keys from the oldest to the newest."""


def algorithm_of(key: PublicKey) -> Algorithm:
    """The algorithm of a key."""
    return "ES256" if isinstance(key, ec.EllipticCurvePublicKey) else "RS256"


def advanced(ring: KeyRing, now: dt.datetime, algorithm: Algorithm = DEFAULT_ALGORITHM) -> KeyRing:
    """The key ring as it should be at ``now``.

    Adds a key when the newest is old or not for ``algorithm``; drops keys whose last token has expired, and the oldest
    beyond :data:`MAX_KEYS`: nobody would read the file.
    """
    if not ring or now >= ring[-1].created + KEY_LIFETIME or ring[-1].algorithm != algorithm:
        ring = (*ring, JwtKey.generate(now, algorithm))
    kept = [
        key for key, successor in itertools.pairwise(ring) if now < successor.created + PUBLISH_AHEAD + MAX_LIFETIME
    ]
    return (*kept[1 - MAX_KEYS :], ring[-1])


def signing_key(ring: KeyRing, now: dt.datetime) -> JwtKey:
    """The newest key that has been in the bundle long enough; else the oldest."""
    return next((key for key in reversed(ring) if key.created + PUBLISH_AHEAD <= now), ring[0])


def jwks(ring: KeyRing) -> bytes:
    """The public keys as a JWK Set, in the form of SPIFFE bundles (SPIFFE Trust Domain and Bundle, 4.2)."""
    keys = []
    for key in ring:
        chain: dict[str, object] = {"x5c": [_base64_der(key.certificate)]} if key.certificate is not None else {}
        keys.append({"use": "jwt-svid", "kid": key.key_id, **_public_members(key.key.public_key()), **chain})
    return msgspec.json.encode({"keys": keys})


class _Jwk(msgspec.Struct, frozen=True):
    kty: str
    kid: str
    crv: str = ""
    x: str = ""
    y: str = ""
    n: str = ""
    e: str = ""
    x5c: tuple[str, ...] = ()


class _JwkSet(msgspec.Struct, frozen=True):
    keys: tuple[_Jwk, ...]


def decode_jwks(data: bytes) -> dict[str, PublicKey]:
    """Key id -> public key of a bundle as :func:`jwks` makes it; raises :class:`TokenRejected` when it is damaged."""
    return {jwk.kid: key for jwk, key in _decoded_jwks(data)}


def _decoded_jwks(data: bytes) -> list[tuple[_Jwk, PublicKey]]:
    try:
        keys = msgspec.json.decode(data, type=_JwkSet).keys
        if len(keys) > MAX_KEYS:
            raise TokenRejected(f"the bundle has {len(keys)} keys", f"at most {MAX_KEYS} are possible")
        return [(each, _public_key(each)) for each in keys]
    except (msgspec.MsgspecError, UnicodeDecodeError, jwt.PyJWTError, ValueError) as error:
        raise TokenRejected("the bundle of the trust domain's keys is damaged") from error


def oidc_jwks(bundle: bytes) -> bytes:
    """A bundle in the form of OpenID Connect (RFC 7517): each key with its use and algorithm."""
    keys = []
    for jwk, key in _decoded_jwks(bundle):
        chain: dict[str, object] = {"x5c": jwk.x5c} if jwk.x5c else {}
        keys.append({"use": "sig", "alg": algorithm_of(key), "kid": jwk.kid, **_public_members(key), **chain})
    return msgspec.json.encode({"keys": keys})


def public_keys(ring: KeyRing) -> dict[str, PublicKey]:
    """Key id -> public key."""
    return {key.key_id: key.key.public_key() for key in ring}


def check_audiences(audience: Sequence[str]) -> tuple[str, ...]:
    """``audience`` without duplicates; raises :class:`TokenRejected` if one is invalid, or there are too many."""
    wanted = tuple(dict.fromkeys(audience))
    if not wanted or not all(wanted):
        raise TokenRejected("a JWT-SVID needs an audience", "name whom it is for")
    if len(wanted) > MAX_AUDIENCES:
        raise TokenRejected(f"{len(wanted)} audiences are too many", f"at most {MAX_AUDIENCES} for one token")
    if any(len(each.encode(errors="replace")) > MAX_AUDIENCE_BYTES or not each.isprintable() for each in wanted):
        raise TokenRejected("an audience is too long or cannot be printed", f"at most {MAX_AUDIENCE_BYTES} bytes")
    return wanted


def sign_token(
    key: JwtKey,
    spiffe_id: SpiffeId,
    audience: Sequence[str],
    now: dt.datetime,
    lifetime: dt.timedelta,
    *,
    issuer: str = "",
    extra: Mapping[str, object] | None = None,
) -> str:
    """A JWT-SVID for ``spiffe_id``; raises :class:`TokenRejected` without an audience or for too long a life.

    Args:
        key: signs it.
        spiffe_id: its subject.
        audience: whom it is for.
        now: when it is issued.
        lifetime: at most :data:`MAX_LIFETIME`.
        issuer: the claim ``iss``; empty: left out. JWT-SVIDs need none, OpenID Connect does.
        extra: further claims, without subject, audience or times.
    """
    if not audience or not all(audience):
        raise TokenRejected("a JWT-SVID needs an audience", "name whom it is for")
    if reserved := _RESERVED.intersection(extra or {}):
        raise TokenRejected(f"the claim {min(reserved)!r} of a JWT-SVID is reserved")
    if not dt.timedelta(0) < lifetime <= MAX_LIFETIME:
        raise TokenRejected(f"a JWT-SVID cannot live {lifetime}", f"at most {MAX_LIFETIME}")
    issued = int(now.timestamp())
    claims: dict[str, Any] = {
        "sub": str(spiffe_id),
        "aud": list(dict.fromkeys(audience)),
        "iat": issued,
        "exp": issued + int(lifetime.total_seconds()),
        **({"iss": issuer} if issuer else {}),
        **(extra or {}),
    }
    return jwt.encode(claims, key.key, algorithm=key.algorithm, headers={"kid": key.key_id})


class _Claims(msgspec.Struct, frozen=True):
    sub: str
    aud: str | list[str]
    exp: int | float
    nbf: int | float | None = None


def validate_token(
    token: str,
    audience: str,
    keys: Mapping[str, PublicKey],
    *,
    trust_domain: str,
    now: dt.datetime,
) -> tuple[SpiffeId, dict[str, Any]]:
    """Verify a JWT-SVID of ``trust_domain`` for ``audience``; returns the subject and all claims.

    Raises:
        TokenRejected: the first rule that the token breaks; the token itself is never in the message.
        InvalidIdentity: its subject is no identity.
    """
    if not audience:
        raise TokenRejected("no audience to validate for", "name your own")
    # 1. Size and form, before anything is decoded.
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenRejected(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
    try:
        header = read_header(token)
    except InvalidJwt as error:
        raise TokenRejected(f"the token is not a signed JWT in compact form: {error}") from error
    # 2. A key of the trust domain's bundle, which decides the algorithm, not the token (RFC 8725, 3.1).
    key = keys.get(header.kid or "")
    if key is None:
        raise TokenRejected("the token is signed with a key that is not in the bundle")
    algorithm = algorithm_of(key)
    if header.algorithm != algorithm or header.type not in _TYPES:
        raise TokenRejected("the token is signed or typed in a way that is not accepted", f"only {algorithm} is")
    # 3. Signature.
    # 4. Subject, audience, time (JWT-SVID, section 3).
    try:
        everything = verified_claims(token, key, algorithm, dict[str, Any])
        claims = msgspec.convert(everything, _Claims)
    except InvalidJwt as error:
        raise TokenRejected(f"the token is not accepted: {error}") from error
    except msgspec.ValidationError as error:
        raise TokenRejected("the token lacks sub, aud or exp, or they are damaged") from error
    subject = SpiffeId.parse(claims.sub)
    if subject.trust_domain != trust_domain:
        raise TokenRejected(f"the token's subject is not of trust domain {trust_domain}")
    audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
    if audience not in audiences:
        raise TokenRejected(f"the token is not for {audience[:200]!r}")
    if now.timestamp() >= claims.exp:
        raise TokenRejected("the token has expired", "fetch a new one")
    if claims.nbf is not None and now.timestamp() < claims.nbf:
        raise TokenRejected("the token is not valid yet")
    return subject, everything


def _self_signed(
    key_id: str, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, now: dt.datetime
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"JWT key {key_id}")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - MAX_LIFETIME)
        .not_valid_after(now + 2 * KEY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )


def _base64_der(certificate: x509.Certificate) -> str:
    """As RFC 7517, section 4.7, wants it: base64, not base64url."""
    return base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()


def _public_members(key: PublicKey) -> dict[str, str]:
    if isinstance(key, ec.EllipticCurvePublicKey):
        members = jwt.algorithms.ECAlgorithm.to_jwk(key, as_dict=True)
    else:
        members = jwt.algorithms.RSAAlgorithm.to_jwk(key, as_dict=True)
    return {name: members[name] for name in ("kty", "crv", "x", "y", "n", "e") if name in members}


def _public_key(jwk: _Jwk) -> PublicKey:
    """Of a JWK with public members alone."""
    if jwk.kty == "EC" and jwk.crv == "P-256":
        key = jwt.algorithms.ECAlgorithm.from_jwk({"kty": "EC", "crv": jwk.crv, "x": jwk.x, "y": jwk.y})
        if isinstance(key, ec.EllipticCurvePublicKey):
            return key
    if jwk.kty == "RSA":
        rsa_key = jwt.algorithms.RSAAlgorithm.from_jwk({"kty": "RSA", "n": jwk.n, "e": jwk.e})
        if isinstance(rsa_key, rsa.RSAPublicKey) and rsa_key.key_size >= RSA_BITS:
            return rsa_key
    raise ValueError("a key of an unknown kind")
