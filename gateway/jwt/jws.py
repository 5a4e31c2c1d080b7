"""Signed JSON web tokens, taken apart in the one safe order: shape, header, key, signature, then claims.

The caller chooses key and algorithm; nothing in a token ever does (RFC 8725 sections 3.1 and 3.2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import jwt

MAX_JWT_CHARACTERS = 16 << 10
"""Longest token that is looked at."""

_SHAPE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TYPES = frozenset({"JWT", "AT+JWT", "APPLICATION/AT+JWT"})


class InvalidJwt(Exception):
    """Not a token that can be accepted; the message is for the log and holds nothing of the token."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a token says about how it was signed: a claim like any other."""

    algorithm: str
    kid: str | None


def looks_like_jwt(text: str) -> bool:
    """Three base64url parts: tells JWTs from opaque tokens before anything is parsed."""
    return len(text) <= MAX_JWT_CHARACTERS and _SHAPE.fullmatch(text) is not None


def read_header(text: str) -> Header:
    """The unverified header; raises :class:`InvalidJwt`."""
    if not looks_like_jwt(text):
        raise InvalidJwt("not of a token's shape")
    try:
        header = jwt.get_unverified_header(text)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise InvalidJwt("the header is not readable") from error
    # RFC 7515 section 4.1.11: what must be understood and is not, is refused. So is a header that brings its own key.
    if "crit" in header or header.get("b64", True) is not True:
        raise InvalidJwt("the header demands extensions")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.upper() not in _TYPES:
        raise InvalidJwt("the token is of another type")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not (kid is None or isinstance(kid, str)):
        raise InvalidJwt("the header is not readable")
    return Header(algorithm, kid)


def verified_claims(text: str, key: Any, algorithm: str) -> dict[str, Any]:  # noqa: ANN401  whatever PyJWT verifies with
    """The claims of a token whose signature by ``key`` is right; nothing in them has been checked yet."""
    try:
        claims: dict[str, Any] = jwt.decode(
            text,
            key,
            algorithms=[algorithm],
            options={
                "verify_exp": False,
                "verify_iat": False,
                "verify_nbf": False,
                "verify_aud": False,
                "verify_iss": False,
                "verify_sub": False,
                "verify_jti": False,
            },
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise InvalidJwt("the signature is wrong") from error
    return claims
