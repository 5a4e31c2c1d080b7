"""Signed JSON web tokens, verified in one order: size and shape, header, key, signature, then claims.

PyJWT decodes and verifies; the callers choose the key and the algorithm and compare the claims. Nothing in a token
chooses either (RFC 8725, sections 3.1 and 3.2).
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any, TypeVar

import jwt
import msgspec

from sluice.core.errors import SluiceError

MAX_JWT_CHARACTERS = 16 << 10
"""Longest token that is decoded."""
KEY_HINTS = frozenset({"jku", "jwk", "x5u"})
"""Header parameters that say where the key is. No caller follows them; callers that know all signers refuse them."""

_SHAPE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_JWS = jwt.PyJWS()
_T = TypeVar("_T")


class InvalidJwt(SluiceError):
    """A token that is not accepted; the message is for the log and contains nothing of the token."""


@dataclass(frozen=True, slots=True)
class Header:
    """The unverified header. ``type`` is ``JWT`` when the token does not state one; ``hints``: see KEY_HINTS."""

    algorithm: str
    kid: str | None
    type: str
    hints: frozenset[str]


def looks_like_jwt(text: str) -> bool:
    """Whether ``text`` has three base64url parts; tells JWTs from opaque tokens before anything is decoded."""
    return len(text) <= MAX_JWT_CHARACTERS and _SHAPE.fullmatch(text) is not None


def read_header(text: str) -> Header:
    """The unverified header of a token in canonical compact form; raises :class:`InvalidJwt`."""
    if not looks_like_jwt(text) or not all(_canonical(part) for part in text.split(".")):
        raise InvalidJwt("not of a token's shape")
    try:
        header = jwt.get_unverified_header(text)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise InvalidJwt("the header is not readable") from error
    # RFC 7515 section 4.1.11: an extension that must be understood and is not, makes the token invalid.
    if "crit" in header or header.get("b64", True) is not True:
        raise InvalidJwt("the header demands extensions")
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if not isinstance(algorithm, str) or not isinstance(kind, str) or not (kid is None or isinstance(kid, str)):
        raise InvalidJwt("the header is not readable")
    return Header(algorithm, kid, kind, KEY_HINTS & header.keys())


def verified_claims(text: str, key: Any, algorithm: str, claims: type[_T]) -> _T:  # noqa: ANN401  PyJWT's key classes
    """The claims, as ``claims``, of a token whose signature verifies; none of their values has been checked yet.

    Raises:
        InvalidJwt: the signature does not verify, or the claims are not of this type.
    """
    try:
        payload = _JWS.decode(text, key, algorithms=[algorithm])
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise InvalidJwt("the signature is wrong") from error
    try:
        return msgspec.json.decode(payload, type=claims)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJwt("the claims are missing or of a wrong type") from error


def _canonical(part: str) -> bool:
    """Whether ``part`` is the one spelling of its bytes: otherwise a token could be changed and still verify."""
    try:
        data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        return False
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode() == part
