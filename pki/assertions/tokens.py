"""Signed assertions of the gateway: the principal of a request and what it was granted, and their verification.

The token is a JWT (RFC 7519) signed with ES256, in header :data:`HEADER`. Its claims:

=========  ===========================================================================================================
``iss``    ``sluice-gateway``
``aud``    whom it is for: ``sluice-rest``, ``sluice-connect``; in a short-lived access token ``sluice``
``sub``    the principal's name
``roles``  its roles
``groups`` its groups
``mth``    how it was authenticated (in an access token: ``method``)
``cred``   the public id of its credential
``op``     the operation that was granted
``any``    whether it was granted whoever owns what it concerns; else for the principal's own alone
``rid``    the id of the request, as in the audit log
``pol``    the SHA-256 of the policy file that granted it
``htm``    the method of the one request that it is for,
``htu``    the path of that request (as in RFC 9449), and
``htq``    the SHA-256 of its query
``jti``    its own id: an assertion is good for one request, once
=========  ===========================================================================================================

and ``iat``, ``exp``. An access token is valid for many requests until it expires; Envoy has checked
revocations. Instead of ``op``, ``any``, ``htm``, ``htu`` and ``htq`` it has

=========  ===========================================================================================================
``all``    the operations that it grants on resources of every owner, separated by spaces
``own``    the operations that it grants on the principal's own resources only, separated by spaces
=========  ===========================================================================================================

and it never suffices for requests that change something. No I/O here: the caller passes a function that returns keys.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Literal

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.core import AssertionRefused, InvalidJwt, read_header, verified_claims
from sluice.pki.assertions.principal import Credential, CredentialKind, Jti, Method, Principal

HEADER = "x-sluice-assertion"
ALGORITHM = "ES256"
ISSUER = "sluice-gateway"
REST_AUDIENCE = "sluice-rest"
CONNECT_AUDIENCE = "sluice-connect"
ACCESS_TOKEN_AUDIENCE = "sluice"  # noqa: S105  the name of an audience, not a secret

ACCESS_TOKEN_SCHEME = "Bearer "  # noqa: S105  likewise

MAX_ASSERTION_CHARACTERS = 8192
MAX_LIFETIME_SECONDS = 900
"""A token with a longer lifetime is refused, whoever signed it."""
LEEWAY_SECONDS = 5
"""How much clocks of one cluster may differ."""
MAX_REMEMBERED = 1 << 17
"""Ids of used assertions that are kept; see :class:`UsedIds`."""
MAX_KEYS = 16
MAX_NAME_CHARACTERS = 256
MAX_LIST_ENTRIES = 1000
MAX_REQUEST_ID_CHARACTERS = 128
MAX_POLICY_CHARACTERS = 64


class AssertionClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of an assertion or an access token on the wire, as the module's documentation lists them."""

    iss: str
    aud: str
    sub: str
    roles: tuple[str, ...]
    iat: int
    exp: int
    jti: Jti
    groups: tuple[str, ...] = ()
    mth: Method | Literal[""] = ""
    method: Method | Literal[""] = ""
    cred: str
    kind: CredentialKind
    rid: str = ""
    op: str = ""
    any: bool = False
    pol: str = ""
    htm: str | None = None
    htu: str | None = None
    htq: str | None = None
    all: str = ""
    own: str = ""


@dataclass(frozen=True, slots=True)
class Assertion:
    """A verified assertion or access token: a principal, and what it was granted with this request.

    Attributes:
        principal: the caller; without scopes, since the granted operations are listed.
        request_id: as in the audit log; empty for an access token.
        id: of the assertion or access token.
        may_any: operations that are granted whoever owns what they concern.
        may_own: operations that are granted where the principal owns that.
        bound: whether it is valid for one request only; an access token is valid for many.
        policy: the SHA-256 of the policy file that granted it; empty: it does not say.
        operation: the operation of the request, as the server that got it determined; see :meth:`for_operation`.
    """

    principal: Principal
    request_id: str
    id: Jti | None = None
    may_any: frozenset[str] = frozenset()
    may_own: frozenset[str] = frozenset()
    bound: bool = True
    operation: str = ""
    policy: str = ""

    @property
    def name(self) -> str:
        """The principal's name."""
        return self.principal.name

    @property
    def any_owner(self) -> bool:
        """Whether the operation is granted for what belongs to others, too."""
        return self.operation in self.may_any

    def for_operation(self, operation: str, *, changes: bool) -> Assertion:
        """This assertion for ``operation``; raises :class:`AssertionRefused` if that was not granted.

        ``changes``: the request changes something, so it needs its own assertion.
        """
        if operation not in self.may_any | self.may_own:
            raise AssertionRefused(f"{self.name} was not granted {operation}")
        if changes and not self.bound:
            raise AssertionRefused(f"an access token is not enough for {operation}, which changes something")
        return replace(self, operation=operation)


def query_digest(query: str) -> str:
    """The claim ``htq`` for a query; empty for an empty query."""
    return hashlib.sha256(query.encode()).hexdigest() if query else ""


KeySet = Mapping[str, ec.EllipticCurvePublicKey]
"""Public keys (P-256) by their ids."""


class _Jwk(msgspec.Struct, frozen=True):
    kty: str
    crv: str
    kid: str
    x: str
    y: str
    alg: str = ALGORITHM
    use: str = "sig"


class _Jwks(msgspec.Struct, frozen=True):
    keys: tuple[dict[str, Any], ...]


def decode_jwks(data: bytes) -> KeySet:
    """The keys of a key set (RFC 7517); raises :class:`AssertionRefused` unless each is a public one for ES256."""
    try:
        entries = msgspec.json.decode(data, type=_Jwks).keys
        if len(entries) > MAX_KEYS:
            raise AssertionRefused(f"a key set of {len(entries)} keys", f"at most {MAX_KEYS} are taken")
        keys: dict[str, ec.EllipticCurvePublicKey] = {}
        for entry in entries:
            declared = msgspec.convert(entry, _Jwk)
            # 1. Only public keys of P-256 signing keys: no symmetric key, and no private key.
            if (declared.kty, declared.crv, declared.alg, declared.use) != ("EC", "P-256", ALGORITHM, "sig"):
                raise AssertionRefused(f"key {declared.kid[:40]!r} is not one for {ALGORITHM}")
            key = None if "d" in entry else jwt.algorithms.ECAlgorithm.from_jwk(entry)
            if not isinstance(key, ec.EllipticCurvePublicKey) or declared.kid in keys:
                raise AssertionRefused(f"key {declared.kid[:40]!r} is private, or there twice")
            keys[declared.kid] = key
    except (msgspec.MsgspecError, jwt.PyJWTError, ValueError) as error:
        raise AssertionRefused("the key set of the gateway is malformed") from error
    return keys


def _granted(bound: bool, one: str, many: str) -> frozenset[str]:
    """The operations of an assertion, or those of an access token; empty text grants nothing."""
    return frozenset([one] if bound and one else [] if bound else many.split())


class UsedIds:
    """Ids of assertions that were used and have not expired.

    Bounded and safe: when the oldest id must go before it expires, tokens issued up to then are refused.
    """

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._used: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._floor = -1

    def use(self, jti: str, *, issued_at: int, expires_at: int, now: float) -> bool:
        """Mark ``jti`` as used; False if it was used already, or may have been."""
        while self._used and next(iter(self._used.values()))[1] + LEEWAY_SECONDS < now:
            self._used.popitem(last=False)
        if jti in self._used or issued_at <= self._floor:
            return False
        if len(self._used) >= self._limit:
            _, (oldest, _) = self._used.popitem(last=False)
            self._floor = max(self._floor, oldest)
        self._used[jti] = (issued_at, expires_at)
        return True


class AssertionVerifier:
    """Checks assertions for one audience.

    Args:
        keys: the key set now; asked again with ``refresh=True`` when a key is unknown.
        audiences: whom an assertion may be for.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        keys: Callable[[bool], KeySet],
        audiences: AbstractSet[str],
        *,
        clock: Callable[[], float] = time.time,
        limit: int = MAX_REMEMBERED,
    ) -> None:
        self._keys = keys
        self._audiences = frozenset(audiences)
        self._clock = clock
        self._used = UsedIds(limit)

    def verify(self, values: list[str], *, method: str, target: str) -> Assertion:
        """The assertion of a request with ``method`` for ``target``; raises :class:`AssertionRefused`.

        Args:
            values: all values of :data:`HEADER`; exactly one is taken.
            method: of the request.
            target: of the request, path and query, exactly as it arrived.
        """
        if len(values) != 1:
            raise AssertionRefused(f"{len(values)} assertions", "the gateway adds exactly one")
        # An access token arrives with its scheme, as the client sent it: Envoy can copy a header, but not cut it.
        claims = self._signed(values[0].removeprefix(ACCESS_TOKEN_SCHEME))
        now = self._clock()
        # 3. From the gateway, for here, for now (RFC 8725, 3.8 to 3.10).
        if claims.iss != ISSUER or claims.aud not in self._audiences:
            raise AssertionRefused(f"an assertion of {claims.iss[:40]!r} for {claims.aud[:40]!r}")
        if now >= claims.exp + LEEWAY_SECONDS:
            raise AssertionRefused("the assertion has expired")
        if claims.iat > now + LEEWAY_SECONDS or claims.exp - claims.iat > MAX_LIFETIME_SECONDS:
            raise AssertionRefused("the assertion is from the future, or lives too long")
        if not claims.sub or len(claims.sub) > MAX_NAME_CHARACTERS or not claims.sub.isprintable():
            raise AssertionRefused("the assertion names no principal")
        if max(len(claims.roles), len(claims.groups)) > MAX_LIST_ENTRIES:
            raise AssertionRefused("the assertion names too many roles or groups")
        # 4. For this request only, once. An access token is for many requests, and Envoy has checked it each time.
        bound = claims.aud != ACCESS_TOKEN_AUDIENCE
        if bound:
            path, _, query = target.partition("?")
            if (claims.htm, claims.htu, claims.htq) != (method, path, query_digest(query)):
                raise AssertionRefused("the assertion is for another request")
            if not self._used.use(claims.jti, issued_at=claims.iat, expires_at=claims.exp, now=now):
                raise AssertionRefused("the assertion was used before")
        method_used = claims.mth or claims.method
        if not method_used:
            raise AssertionRefused("the assertion does not say how its principal was authenticated")
        credential = Credential(claims.kind, claims.cred)
        return Assertion(
            Principal(claims.sub, claims.roles, method_used, credential, claims.groups),
            request_id=claims.rid[:MAX_REQUEST_ID_CHARACTERS],
            id=claims.jti,
            may_any=_granted(bound, claims.op if claims.any else "", claims.all),
            may_own=_granted(bound, claims.op, claims.own),
            bound=bound,
            policy=claims.pol[:MAX_POLICY_CHARACTERS],
        )

    def _signed(self, text: str) -> AssertionClaims:
        if len(text) > MAX_ASSERTION_CHARACTERS:
            raise AssertionRefused("the assertion is too long")
        try:
            header = read_header(text)
        except InvalidJwt as error:
            raise AssertionRefused("that is not an assertion") from error
        # 1. The key decides the algorithm, not the token (RFC 8725, 3.1): this refuses `none`, and HMAC with a public
        # key as its secret. The token does not say where keys are either.
        if header.algorithm != ALGORITHM or header.kid is None or header.hints:
            raise AssertionRefused(f"the assertion is not signed with {ALGORITHM} and a key that the gateway published")
        key = self._keys(False).get(header.kid) or self._keys(True).get(header.kid)
        if key is None:
            raise AssertionRefused("the assertion is signed with a key that the gateway did not publish")
        # 2. The signature, then the claims' types; the caller compares times and audience.
        try:
            return verified_claims(text, key, ALGORITHM, AssertionClaims)
        except InvalidJwt as error:
            raise AssertionRefused("the assertion's signature or its claims are wrong") from error
