"""Authenticates requests: turns any kind of credential into a principal. The only I/O is fetching an issuer's keys.

Exactly one credential counts: the ``Authorization`` header if present, else the cookies, else the client certificate.
An invalid bearer token is refused even if the request also has a valid weaker credential.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from sluice.core import MAX_JWT_CHARACTERS, CachedFile, InvalidJwt, looks_like_jwt
from sluice.gateway.authn import client_certificate
from sluice.gateway.authz import PolicyFile
from sluice.gateway.config import IssuerConfig
from sluice.gateway.credentials import (
    ACCESS_TOKEN_COOKIE,
    ISSUER,
    SESSION_COOKIE,
    AccessTokenKeys,
    Authenticated,
    InvalidAccessToken,
    NoSession,
    Refusal,
    Revocations,
    SessionRecord,
    SessionStore,
    TokenBook,
    Unauthenticated,
    UserBook,
    is_session,
    verify,
)
from sluice.gateway.jwt import KeyCache, KeyNotKnown, unverified_issuer, verify_with_cache
from sluice.gateway.principal import Subject
from sluice.pki.assertions import Credential, Jti, Principal, TokenId

MAX_AUTHORIZATION_CHARACTERS = MAX_JWT_CHARACTERS + len("Bearer ")
MAX_COOKIE_CHARACTERS = 16 << 10
MAX_TOKEN_CHARACTERS = 512
"""Opaque bearer tokens that are longer are refused without a lookup."""

_COOKIE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(.*)")


@dataclass(frozen=True, slots=True)
class PresentedCredentials:
    """The credentials of a request: every value of each header that can contain one."""

    authorization: tuple[str, ...] = ()
    cookie: tuple[str, ...] = ()
    certificate: tuple[str, ...] = ()


_MAYBE_NOT_SYNCED = frozenset({Refusal.UNKNOWN, Refusal.NOT_ACCEPTED})
"""Refusals of a credential that another machine has issued and whose record has not arrived here yet."""


@dataclass
class Authenticator:
    """Authenticates requests, with all stores in which credentials are looked up."""

    tokens: CachedFile[TokenBook]
    users: CachedFile[UserBook]
    sessions: SessionStore
    revocations: Revocations
    access_token_keys: AccessTokenKeys
    policy: PolicyFile
    trust_domain: str
    issuers: Mapping[str, tuple[IssuerConfig, KeyCache]] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    wait_until_fresh: Callable[[], Awaitable[None]] | None = None
    """Waits until the local files are up to date, if they are copies of a shared store."""

    async def authenticate(self, presented: PresentedCredentials) -> Authenticated:
        """The principal of a request. Raises ``Unauthenticated``, or ``SluiceError`` if no decision is possible now."""
        try:
            return self._not_revoked(await self._find(presented))
        except Unauthenticated as error:
            # Another machine may just have issued the credential. Update the local files and try again.
            if self.wait_until_fresh is None or error.refusal not in _MAYBE_NOT_SYNCED:
                raise
        await self.wait_until_fresh()
        return self._not_revoked(await self._find(presented))

    def _not_revoked(self, found: Authenticated) -> Authenticated:
        # For every credential: the principal may be locked, and the credential may have been revoked while in use.
        revoked = self.revocations.current().refuses(
            name=found.principal.name,
            credential=found.principal.credential,
            jti=found.access_token_id or Jti(""),
            now=self.clock(),
        )
        if revoked is not None:
            refusal = Refusal.LOCKED if revoked.kind == "user" else Refusal.REVOKED
            raise Unauthenticated(
                refusal, found.principal.credential.id, f"the {revoked.kind} {revoked.id} was revoked"
            )
        return found

    async def _find(self, presented: PresentedCredentials) -> Authenticated:
        if presented.authorization:
            return await self._bearer(presented.authorization)
        missing = Unauthenticated(Refusal.MISSING)
        try:
            return self._cookies(presented.cookie)
        except Unauthenticated as error:
            if error.refusal is not Refusal.MISSING:
                missing = error
        if presented.certificate:
            return self._certificate(presented.certificate)
        raise missing

    async def _bearer(self, values: tuple[str, ...]) -> Authenticated:
        if len(values) > 1 or len(values[0]) > MAX_AUTHORIZATION_CHARACTERS:
            raise Unauthenticated(Refusal.MALFORMED)
        scheme, _, credential = values[0].partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated(Refusal.MALFORMED)
        if looks_like_jwt(credential):
            issuer = unverified_issuer(credential)
            if issuer == ISSUER:
                return self._by_access_token(credential, by_cookie=False)
            return await self._foreign(credential, issuer)
        if len(credential) > MAX_TOKEN_CHARACTERS:
            raise Unauthenticated(Refusal.MALFORMED)
        if is_session(credential):
            return self._session(credential, by_cookie=False)
        return self._token(credential)

    def authenticate_token(self, text: str) -> Authenticated:
        """The owner of an API token. Raises ``Unauthenticated``, also if the token or its owner is revoked."""
        return self._not_revoked(self._token(text))

    def _token(self, text: str) -> Authenticated:
        book = self.tokens.get()
        principal = book.authenticate(text, now=self.clock())
        return Authenticated(principal, book.find(TokenId(principal.credential.id)).expires_at)

    def _cookies(self, values: tuple[str, ...]) -> Authenticated:
        cookies = parse_cookies(values)
        refused = Unauthenticated(Refusal.MISSING)
        if (text := cookies.get(ACCESS_TOKEN_COOKIE)) is not None:
            try:
                return self._by_access_token(text, by_cookie=True)
            except Unauthenticated as error:
                refused = error
        # An access token lives for minutes only. If it has expired, the session may still be valid.
        if (text := cookies.get(SESSION_COOKIE)) is not None:
            return self._session(text, by_cookie=True)
        raise refused

    def _by_access_token(self, text: str, *, by_cookie: bool) -> Authenticated:
        try:
            found = verify(text, self.access_token_keys, now=self.clock())
        except InvalidAccessToken as error:
            raise Unauthenticated(Refusal.NOT_ACCEPTED, reason=str(error)) from error
        # Browsers send cookies by themselves, so an access token in a cookie needs a CSRF token. A bearer does not.
        if by_cookie and found.csrf is None:
            raise Unauthenticated(Refusal.NOT_ACCEPTED, reason="an access token that was not made for cookies")
        return found if by_cookie else replace(found, csrf=None)

    def _session(self, text: str, *, by_cookie: bool) -> Authenticated:
        try:
            record = self.sessions.authenticate(text)
        except NoSession as error:
            raise Unauthenticated(Refusal.NOT_ACCEPTED, reason=f"session: {error}") from error
        if by_cookie is not (record.client == "browser"):
            raise Unauthenticated(Refusal.NOT_ACCEPTED, record.id, "a session in the wrong place")
        return self.of_session(record)

    def of_session(self, record: SessionRecord) -> Authenticated:
        """The principal of a session. Raises ``Unauthenticated`` if its user or token no longer exists."""
        csrf = record.csrf if record.client == "browser" else None
        return Authenticated(self._principal(record), record.expires_at, csrf, record)

    def _principal(self, record: SessionRecord) -> Principal:
        """The principal with its current roles, which may differ from those at sign-in."""
        policy = self.policy.get()
        if record.method == "token":
            return self._of_token(record)
        if record.method != "user":
            roles = policy.roles_of(record.name, record.groups)
            return Principal(record.name, roles, record.method, Credential.of_session(record.id), record.groups)
        user = self.users.get().get(record.name)
        if user is None or record.created_at < user.changed_at:
            raise Unauthenticated(Refusal.NOT_ACCEPTED, record.id, "the user was removed, or has another password")
        roles = tuple(dict.fromkeys([*user.roles, *policy.roles_of(user.name, user.groups)]))
        return Principal(user.name, roles, record.method, Credential.of_session(record.id), user.groups)

    def _of_token(self, record: SessionRecord) -> Principal:
        """The principal of a session started with an API token. It has the token's permissions and expires with it."""
        token = self.tokens.get().get(record.token)
        if token is None or token.name != record.name or token.state(self.clock()) != "active":
            raise Unauthenticated(Refusal.NOT_ACCEPTED, record.id, f"the token {record.token} of the session has ended")
        if self.revocations.is_revoked(("token", token.id)):
            raise Unauthenticated(Refusal.REVOKED, record.id, f"the token {token.id} of the session was revoked")
        return Principal(token.name, (token.role,), "token", Credential.of_session(record.id), scopes=token.scopes)

    def _certificate(self, values: tuple[str, ...]) -> Authenticated:
        if len(values) > 1:
            raise Unauthenticated(Refusal.MALFORMED)
        try:
            subject = client_certificate.parse(values[0], self.trust_domain)
        except client_certificate.NoClientCertificate as error:
            raise Unauthenticated(Refusal.NOT_ACCEPTED, reason=f"client certificate: {error}") from error
        # Envoy verifies the certificate on each connection. The hour only limits access tokens issued for it.
        return self._with_roles(replace(subject, expires_at=self.clock() + 3600))

    async def _foreign(self, text: str, issuer: str) -> Authenticated:
        config, cache = self.issuers.get(issuer, (None, None))
        if config is None or cache is None:
            raise Unauthenticated(Refusal.NOT_ACCEPTED, reason="the issuer of the token is not configured")
        try:
            return self._with_roles((await verify_with_cache(text, config, cache, self.clock))[0])
        except (InvalidJwt, KeyNotKnown) as error:
            reason = str(error) or "the issuer has no key with this id"
            raise Unauthenticated(Refusal.NOT_ACCEPTED, reason=f"token of {issuer}: {reason}") from error

    def _with_roles(self, subject: Subject) -> Authenticated:
        """The principal for an authenticated subject, with the roles that the policy assigns."""
        if subject.credential is None:
            raise Unauthenticated(Refusal.MISSING)
        roles = self.policy.get().roles_of(subject.name, subject.groups)
        principal = Principal(subject.name, roles, subject.method, subject.credential, subject.groups)
        return Authenticated(principal, subject.expires_at)


def parse_cookies(values: tuple[str, ...]) -> Mapping[str, str]:
    """The cookies by name. Names that occur twice are dropped."""
    found: dict[str, str] = {}
    twice: set[str] = set()
    if sum(map(len, values)) > MAX_COOKIE_CHARACTERS:
        return found
    for part in ";".join(values).split(";"):
        if match := _COOKIE.fullmatch(part.strip(" \t")):
            if match[1] in found:
                twice.add(match[1])
            found[match[1]] = match[2].strip('"')
    return {name: value for name, value in found.items() if name not in twice}
