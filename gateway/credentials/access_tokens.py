"""Short-lived access tokens, which callers get in exchange for a credential.

Envoy verifies them by itself, without asking the auth service. An access token is a JWT (RFC 7519) signed with ES256.
Claims:

==========  ==========================================================================================================
``iss``     ``sluice-gateway``
``aud``     ``sluice``
``sub``     the principal's name
``roles``   its roles
``role``    the one role that alone grants exactly what all roles grant together. **Absent** when there is no such role,
            or when ``scope`` narrows the token: then comparing strings is not enough, and Envoy asks the auth service
``groups``  its groups
``method``  how it was authenticated
``cred``    the public id of the credential that was exchanged for the token
``kind``    the kind of that credential
``all``     only with ``role``: the operations granted on resources of every owner, separated by spaces
``own``     only with ``role``: the operations granted on the principal's own resources only, separated by spaces. REST
            allows nothing beyond ``all`` and ``own``
``scope``   the operations that the token is limited to; absent: everything that the roles grant
``csrf``    for tokens in cookies: the value that header ``x-sluice-csrf`` must have in unsafe requests
``jti``     the id of the token
==========  ==========================================================================================================

and ``iat``, ``exp``. Revocations match ``jti``, ``cred`` and ``sub``, never the text of the token, because an ES256
signature has several encodings.
"""

from __future__ import annotations

import base64
import datetime as dt
import secrets
from typing import Any

import jwt
import msgspec

from sluice.core import InvalidJwt, read_header, verified_claims
from sluice.gateway.authz import Policy
from sluice.gateway.credentials.authenticated import Authenticated
from sluice.gateway.credentials.signing_keys import ALGORITHM, AccessTokenKeys
from sluice.pki.assertions import Credential, CredentialKind, Jti, Method, Principal

ISSUER = "sluice-gateway"
AUDIENCE = "sluice"
DEFAULT_LIFETIME = dt.timedelta(minutes=5)
LEEWAY_SECONDS = 5
"""Maximum difference between the clocks of one cluster."""
MAX_ACCESS_TOKEN_CHARACTERS = 4096
"""Browsers store at least this much per cookie, including its name (RFC 6265 section 6.1)."""

ACCESS_TOKEN_COOKIE = "__Host-sluice-pass"  # noqa: S105  the name of a cookie
SESSION_COOKIE = "__Host-sluice-session"
CSRF_COOKIE = "__Host-sluice-csrf"
"""The page's script can read this cookie and repeats its value in :data:`CSRF_HEADER`."""
CSRF_HEADER = "x-sluice-csrf"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110 section 9.2.1) and need no CSRF token."""

ROLE_CONTENT_TYPE = "role-decides"
"""In the JOSE header (``cty``) of access tokens with a ``role``, followed by the policy's digest. A proxy uses it only
to select the route."""

_JTI_BYTES = 12


def role_content_type(policy: str) -> str:
    """The ``cty`` of access tokens with a ``role``, issued under the policy with this digest."""
    return f"{ROLE_CONTENT_TYPE}-{policy}"


def role_access_token_prefix(policy: str) -> str:
    """The first characters of all access tokens with a ``role`` that were issued under this policy.

    Access tokens of another policy have another prefix; for those, Envoy asks the auth service. With
    :data:`~sluice.gateway.authz.policy.DIGEST_CHARACTERS` as they are, the prefix is a whole number of base64 groups.
    """
    return base64.urlsafe_b64encode(f'{{"alg":"{ALGORITHM}","cty":"{role_content_type(policy)}",'.encode()).decode()


class InvalidAccessToken(Exception):
    """The text is not a valid access token of this gateway, or the token has expired. The message is for the log."""


class _Claims(msgspec.Struct, frozen=True, kw_only=True):
    iss: str
    aud: str
    sub: str
    roles: tuple[str, ...]
    groups: tuple[str, ...]
    method: Method
    cred: str
    kind: CredentialKind
    jti: Jti
    iat: int
    exp: int
    nbf: int = 0
    role: str | None = None
    scope: tuple[str, ...] = ()
    csrf: str = ""


def issue(
    principal: Principal,
    keys: AccessTokenKeys,
    policy: Policy,
    *,
    now: float,
    lifetime: dt.timedelta = DEFAULT_LIFETIME,
    csrf: str = "",
    not_after: float | None = None,
) -> tuple[str, Authenticated]:
    """Issue an access token for ``principal`` that expires at ``not_after`` at the latest.

    Returns its text, and the result that verifying it would give.
    """
    expires_at = int(now + lifetime.total_seconds())
    if not_after is not None:
        expires_at = min(expires_at, int(not_after))
    jti = Jti(secrets.token_hex(_JTI_BYTES))
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": principal.name,
        "roles": list(principal.roles),
        "groups": list(principal.groups),
        "method": principal.method,
        "cred": principal.credential.id,
        "kind": principal.credential.kind,
        "jti": jti,
        "iat": int(now),
        "exp": expires_at,
    }
    if principal.scopes:
        claims["scope"] = list(principal.scopes)
    elif (role := policy.sole_role(principal.roles)) is not None:
        claims["role"] = role
        granted = policy.granted(principal)
        claims["all"] = " ".join(operation for operation, verdict in granted.items() if verdict == "allow")
        claims["own"] = " ".join(operation for operation, verdict in granted.items() if verdict == "own")
    if csrf:
        claims["csrf"] = csrf
    key = keys.signing(now)
    header = {"kid": key.kid} | ({"cty": role_content_type(policy.digest)} if "role" in claims else {})
    text = jwt.encode(claims, key.private, algorithm=ALGORITHM, headers=header)
    return text, Authenticated(principal, expires_at, csrf or None, access_token_id=jti)


def verify(text: str, keys: AccessTokenKeys, *, now: float) -> Authenticated:
    """Verify the access token ``text`` and return its principal. The caller must check revocations.

    ``csrf`` of the result is None for an access token that was not issued for a cookie.

    Raises:
        InvalidAccessToken: the text is not a valid access token of this gateway.
    """
    if len(text) > MAX_ACCESS_TOKEN_CHARACTERS:
        raise InvalidAccessToken("not of an access token's shape")
    try:
        header = read_header(text)
        key = keys.find(header.kid or "")
        if key is None or header.algorithm != ALGORITHM or header.type != "JWT":
            raise InvalidAccessToken("not signed with a key of this gateway")
        claims = verified_claims(text, key.private.public_key(), ALGORITHM, _Claims)
    except InvalidJwt as error:
        raise InvalidAccessToken(f"not an access token of this gateway: {error}") from error
    if claims.iss != ISSUER or claims.aud != AUDIENCE:
        raise InvalidAccessToken("made for another purpose")
    if now >= claims.exp + LEEWAY_SECONDS:
        raise InvalidAccessToken("expired")
    if max(claims.iat, claims.nbf) > now + LEEWAY_SECONDS:
        raise InvalidAccessToken("from the future")
    credential = Credential(claims.kind, claims.cred)
    principal = Principal(claims.sub, claims.roles, claims.method, credential, claims.groups, claims.scope)
    return Authenticated(principal, claims.exp, claims.csrf or None, access_token_id=claims.jti)
