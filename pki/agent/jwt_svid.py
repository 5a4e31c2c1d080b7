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
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.core import InvalidJwt, PkiError, read_header, verified_claims
from sluice.pki.spiffe_id import SpiffeId

ALGORITHM = "ES256"
MAX_TOKEN_BYTES = 16 << 10
MAX_LIFETIME = dt.timedelta(hours=1)
"""Longest life of a token."""
KEY_LIFETIME = dt.timedelta(days=30)
"""How long a key signs before the next one is made."""
PUBLISH_AHEAD = dt.timedelta(minutes=10)
"""How long a new key is in the bundle before it signs, so that every validator has it by then."""

_TYPES = ("JWT", "JOSE")


class TokenRejected(PkiError):
    """A JWT-SVID that does not verify."""


@dataclass(frozen=True, slots=True)
class JwtKey:
    """A signing key of a trust domain."""

    key_id: str
    created: dt.datetime
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def generate(cls, now: dt.datetime) -> JwtKey:
        """A new P-256 key; its id is the thumbprint of RFC 7638."""
        key = ec.generate_private_key(ec.SECP256R1())
        members = _public_members(key.public_key())
        canonical = msgspec.json.encode({name: members[name] for name in ("crv", "kty", "x", "y")})
        thumbprint = base64.urlsafe_b64encode(hashlib.sha256(canonical).digest()).rstrip(b"=").decode()
        return cls(thumbprint, now, key)


KeyRing = tuple[JwtKey, ...]
"""Keys from the oldest to the newest."""


def advanced(ring: KeyRing, now: dt.datetime) -> KeyRing:
    """The ring as it should be at ``now``: a new key when the newest is old, none whose last token has expired."""
    if not ring or now >= ring[-1].created + KEY_LIFETIME:
        ring = (*ring, JwtKey.generate(now))
    kept = [
        key for key, successor in itertools.pairwise(ring) if now < successor.created + PUBLISH_AHEAD + MAX_LIFETIME
    ]
    return (*kept, ring[-1])


def signing_key(ring: KeyRing, now: dt.datetime) -> JwtKey:
    """The newest key that has been in the bundle long enough; the oldest when none has."""
    return next((key for key in reversed(ring) if key.created + PUBLISH_AHEAD <= now), ring[0])


def jwks(ring: KeyRing) -> bytes:
    """The public keys as a JWK Set, in the form of SPIFFE bundles (SPIFFE Trust Domain and Bundle, 4.2)."""
    keys = [{"use": "jwt-svid", "kid": key.key_id, **_public_members(key.key.public_key())} for key in ring]
    return msgspec.json.encode({"keys": keys})


def public_keys(ring: KeyRing) -> dict[str, ec.EllipticCurvePublicKey]:
    """Key id -> public key."""
    return {key.key_id: key.key.public_key() for key in ring}


def sign_token(
    key: JwtKey, spiffe_id: SpiffeId, audience: Sequence[str], now: dt.datetime, lifetime: dt.timedelta
) -> str:
    """A JWT-SVID for ``spiffe_id``; raises :class:`TokenRejected` without an audience or for too long a life."""
    if not audience or not all(audience):
        raise TokenRejected("a JWT-SVID needs an audience", "name whom it is for")
    if not dt.timedelta(0) < lifetime <= MAX_LIFETIME:
        raise TokenRejected(f"a JWT-SVID cannot live {lifetime}", f"at most {MAX_LIFETIME}")
    issued = int(now.timestamp())
    claims: dict[str, Any] = {
        "sub": str(spiffe_id),
        "aud": list(dict.fromkeys(audience)),
        "iat": issued,
        "exp": issued + int(lifetime.total_seconds()),
    }
    return jwt.encode(claims, key.key, algorithm=ALGORITHM, headers={"kid": key.key_id})


class _Claims(msgspec.Struct, frozen=True):
    sub: str
    aud: str | list[str]
    exp: int | float
    nbf: int | float | None = None


def validate_token(
    token: str,
    audience: str,
    keys: Mapping[str, ec.EllipticCurvePublicKey],
    *,
    trust_domain: str,
    now: dt.datetime,
) -> tuple[SpiffeId, dict[str, Any]]:
    """Verify a JWT-SVID of ``trust_domain`` for ``audience``; returns the subject and all claims.

    Raises:
        TokenRejected: the first rule that the token breaks; the token itself is never in the message.
        InvalidIdentity: its subject is none.
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
    # 2. The algorithm is ours, never the token's choice (RFC 8725, 3.1).
    if header.algorithm != ALGORITHM or header.type not in _TYPES:
        raise TokenRejected("the token is signed or typed in a way that is not accepted", f"only {ALGORITHM} is")
    # 3. Signature, with a key of the trust domain's bundle.
    key = keys.get(header.kid or "")
    if key is None:
        raise TokenRejected("the token is signed with a key that is not in the bundle")
    # 4. Subject, audience, time (JWT-SVID, section 3).
    try:
        everything = verified_claims(token, key, ALGORITHM, dict[str, Any])
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


def _public_members(key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    return jwt.algorithms.ECAlgorithm.to_jwk(key, as_dict=True)
