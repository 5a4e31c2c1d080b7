"""Verifies JWTs of configured issuers, and reads the subject.

Sources: RFC 7519, RFC 8725 (best current practices), RFC 9068 (access tokens).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jwt

from sluice.core import InvalidJwt, read_header, verified_claims
from sluice.gateway.config import IssuerConfig
from sluice.gateway.jwt.jwks import KeyCache, KeyNotKnown, KeySet
from sluice.gateway.principal import MAX_GROUPS, Subject, is_group, is_name
from sluice.pki.assertions import Credential, ForeignJwtId

LEEWAY_SECONDS = 30.0
"""Maximum difference between an issuer's clock and ours."""
_TYPES = frozenset({"JWT", "AT+JWT", "APPLICATION/AT+JWT"})


def unverified_issuer(text: str) -> str:
    """The issuer that a token claims, to select the keys for verification; empty if it claims none."""
    try:
        issuer = jwt.decode(text, options={"verify_signature": False}).get("iss")
    except (jwt.PyJWTError, ValueError, RecursionError):
        return ""
    return issuer if isinstance(issuer, str) else ""


def verify_token(text: str, config: IssuerConfig, keys: KeySet, *, now: float) -> tuple[Subject, Mapping[str, Any]]:
    """The subject of ``text``, with the prefix of its issuer, and all claims.

    Raises:
        InvalidJwt: the token is not accepted.
        KeyNotKnown: the key set has no key with the token's key id.
    """
    # 1. The algorithm must be on the allow-list, and the key in the issuer's set and of a type for that algorithm.
    header = read_header(text)
    if header.type.upper() not in _TYPES:
        raise InvalidJwt("the token is of another type")
    if header.algorithm not in config.algorithms:
        raise InvalidJwt("the signature algorithm is not allowed")
    key = keys.find(header.kid, header.algorithm)
    # 2. Verify the signature before any claim is used.
    claims = verified_claims(text, key, header.algorithm, dict[str, Any])
    # 3. Issuer and audience must match exactly.
    if claims.get("iss") != config.issuer:
        raise InvalidJwt("another issuer")
    audience = claims.get("aud")
    if config.audience not in (audience if isinstance(audience, list) else [audience]):
        raise InvalidJwt("made for another audience")
    # 4. An expiry is required. The start must not be in the future, and the lifetime is limited.
    expires_at = _time(claims, "exp")
    if expires_at is None or now >= expires_at + LEEWAY_SECONDS:
        raise InvalidJwt("expired")
    issued_at = _time(claims, "iat")
    for start in (issued_at, _time(claims, "nbf")):
        if start is not None and now < start - LEEWAY_SECONDS:
            raise InvalidJwt("not valid yet")
    if expires_at - (issued_at if issued_at is not None else now) > config.max_lifetime:
        raise InvalidJwt("valid for longer than this issuer's tokens may be")
    # 5. Names must be safe in a header and a log line.
    name = claims.get(config.name_claim)
    full = f"{config.prefix}{name}"
    if not isinstance(name, str) or not name or not is_name(full):
        raise InvalidJwt(f"the claim {config.name_claim} is missing or not a valid name")
    groups = _groups(claims, config.groups_claim)
    credential = Credential.of_jwt(_public_id(claims))
    return Subject(full, "jwt", groups, credential, config.issuer, expires_at), claims


async def verify_with_cache(
    text: str, config: IssuerConfig, cache: KeyCache, clock: Callable[[], float]
) -> tuple[Subject, Mapping[str, Any]]:
    """Like :func:`verify_token`, with the issuer's cached keys. They are fetched again for an unknown key id."""
    try:
        return verify_token(text, config, await cache.get(), now=clock())
    except KeyNotKnown:
        # The issuer may have rotated its keys.
        return verify_token(text, config, await cache.renewed(), now=clock())


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise InvalidJwt(f"the claim {name} is not a time")
    return float(value)


def _groups(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = claims.get(name, [])
    groups = [value] if isinstance(value, str) else value
    if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
        raise InvalidJwt(f"the claim {name} is not a list of at most {MAX_GROUPS} groups")
    # A group name that is not valid in a policy grants nothing. Ignore it instead of refusing the member.
    return tuple(dict.fromkeys(each for each in groups if isinstance(each, str) and is_group(each)))


def _public_id(claims: Mapping[str, Any]) -> ForeignJwtId:
    """The token's public id. It is derived from claims, since the text can be varied without breaking the signature."""
    jti = claims.get("jti")
    told = [jti] if isinstance(jti, str) and jti else [claims.get(key) for key in ("sub", "iat", "exp")]
    digest = hashlib.sha256("\n".join(str(part) for part in [claims["iss"], *told]).encode()).hexdigest()
    return ForeignJwtId(f"jwt-{digest[:24]}")
