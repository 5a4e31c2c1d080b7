"""Passes: what a credential is exchanged for, once; short-lived, signed, and checked by Envoy without asking anyone.

A pass is a JWT (RFC 7519) signed with ES256. Its claims:

==========  ==========================================================================================================
``iss``     ``sluice-gateway``
``aud``     ``sluice``
``sub``     the principal's name
``roles``   its roles
``role``    the one role that alone grants exactly what all of them do together. **Absent** when there is none, or when
            ``scope`` narrows the pass: then no comparison of strings can decide, and the auth service is to be asked
``groups``  its groups
``method``  how it was authenticated
``cred``    the public id of the credential that the pass was got for
``kind``    the kind of that credential
``all``     beside ``role``: the operations that it grants whoever owns what they concern, and
``own``     those that it grants for one's own alone, each separated by spaces: REST does nothing else for it
``scope``   the operations it is narrowed to; absent: all that the roles grant
``csrf``    for passes in cookies: what header ``x-sluice-csrf`` must hold in unsafe requests
``jti``     the pass's own id
==========  ==========================================================================================================

and ``iat``, ``exp``. Revocation goes by ``jti``, ``cred`` and ``sub``, never by the text of the pass: an ES256
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
from sluice.gateway.credentials.signing_keys import ALGORITHM, PassKeys
from sluice.pki.assertions import Credential, CredentialKind, Jti, Method, Principal

ISSUER = "sluice-gateway"
AUDIENCE = "sluice"
DEFAULT_LIFETIME = dt.timedelta(minutes=5)
LEEWAY_SECONDS = 5
"""How far clocks of one cluster may differ."""
MAX_PASS_CHARACTERS = 4096
"""A cookie of browsers holds this much (RFC 6265 section 6.1), its name included."""

PASS_COOKIE = "__Host-sluice-pass"  # noqa: S105  the name of a cookie
SESSION_COOKIE = "__Host-sluice-session"
CSRF_COOKIE = "__Host-sluice-csrf"
"""Readable by the page's own script, which repeats it in :data:`CSRF_HEADER`."""
CSRF_HEADER = "x-sluice-csrf"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110 section 9.2.1) and need no CSRF token."""

ROLE_DECIDES = "role-decides"
"""In the header (``cty``) of passes with a ``role``, followed by the policy's digest: by it a proxy sees which way a
request goes, and nothing else."""

_JTI_BYTES = 12


def role_decides(policy: str) -> str:
    """The ``cty`` of passes with a ``role`` that were made by the policy with this digest."""
    return f"{ROLE_DECIDES}-{policy}"


def role_pass_prefix(policy: str) -> str:
    """How the text of such passes begins: those of another policy begin otherwise, and are asked about.

    It is a whole number of base64's groups, for :data:`~sluice.gateway.authz.policy.DIGEST_CHARACTERS` as they are.
    """
    return base64.urlsafe_b64encode(f'{{"alg":"{ALGORITHM}","cty":"{role_decides(policy)}",'.encode()).decode()


class InvalidPass(Exception):
    """Not a pass of this gateway, or no longer; the message is for the log."""


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
    keys: PassKeys,
    policy: Policy,
    *,
    now: float,
    lifetime: dt.timedelta = DEFAULT_LIFETIME,
    csrf: str = "",
    not_after: float | None = None,
) -> tuple[str, Authenticated]:
    """A pass for ``principal``: its text, and what verifying it gives. It never outlives ``not_after``."""
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
    header = {"kid": key.kid} | ({"cty": role_decides(policy.digest)} if "role" in claims else {})
    text = jwt.encode(claims, key.private, algorithm=ALGORITHM, headers=header)
    return text, Authenticated(principal, expires_at, csrf or None, pass_id=jti)


def verify(text: str, keys: PassKeys, *, now: float) -> Authenticated:
    """The principal that the pass ``text`` names; the caller checks revocations.

    ``csrf`` of the result is None for a pass that was not made for cookies.

    Raises:
        InvalidPass: it is not a valid pass of this gateway.
    """
    if len(text) > MAX_PASS_CHARACTERS:
        raise InvalidPass("not of a pass's shape")
    try:
        header = read_header(text)
        key = keys.find(header.kid or "")
        if key is None or header.algorithm != ALGORITHM or header.type != "JWT":
            raise InvalidPass("not signed with a key of this gateway")
        claims = verified_claims(text, key.private.public_key(), ALGORITHM, _Claims)
    except InvalidJwt as error:
        raise InvalidPass(f"not a pass of this gateway: {error}") from error
    if claims.iss != ISSUER or claims.aud != AUDIENCE:
        raise InvalidPass("made for another purpose")
    if now >= claims.exp + LEEWAY_SECONDS:
        raise InvalidPass("expired")
    if max(claims.iat, claims.nbf) > now + LEEWAY_SECONDS:
        raise InvalidPass("from the future")
    credential = Credential(claims.kind, claims.cred)
    principal = Principal(claims.sub, claims.roles, claims.method, credential, claims.groups, claims.scope)
    return Authenticated(principal, claims.exp, claims.csrf or None, pass_id=claims.jti)
