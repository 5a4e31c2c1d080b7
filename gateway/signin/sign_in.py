"""Sessions, access tokens and audit records for the handlers under ``/auth/``."""

from __future__ import annotations

import asyncio
import datetime as dt
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import hdrs, web

from sluice.gateway.audit_log import AuditRecord, AuditWriter
from sluice.gateway.authn import Authenticator
from sluice.gateway.config import GatewayConfig
from sluice.gateway.credentials import (
    SESSION_COOKIE,
    Authenticated,
    NoSession,
    TokensLastUsed,
    Unauthenticated,
    issue,
    redact,
)
from sluice.gateway.decision import challenge, csrf_holds
from sluice.gateway.principal import Subject
from sluice.gateway.problem import CONTENT_TYPE, problem_body
from sluice.gateway.problem_page import POLICY, POLICY_HEADER, problem_page, wants_page
from sluice.gateway.shared_store import MAX_VALUE_BYTES, Entry, SharedStore
from sluice.gateway.signin.cookies import LOGIN_COOKIE, access_token_cookie, session_cookies, set_cookie
from sluice.gateway.signin.oidc import Provider
from sluice.gateway.signin.requests import MAX_LOGGED_CHARACTERS, AuditNote, AuthRequest, Refused
from sluice.gateway.signin.responses import answer
from sluice.pki.assertions import SessionId

MAX_ID_TOKENS = 2000
_ID_TOKENS = "id-tokens"
_LOGIN_SECONDS = 600
_RESERVED_SECONDS = 60
_LOGIN_TOKEN_CHARACTERS = 43


@dataclass
class SignIn:
    """The common state of the handlers. Pending sign-ins are in ``store``, which all auth services share."""

    config: GatewayConfig
    authenticator: Authenticator
    audit: AuditWriter
    realm: str
    store: SharedStore
    provider: Provider | None = None
    token_use: TokensLastUsed | None = None
    clock: Callable[[], float] = time.time

    async def who(self, request: AuthRequest) -> Authenticated:
        """The caller, after the CSRF check; raises :class:`Refused` or ``Unauthenticated``."""
        who = await self.authenticator.authenticate(request.presented)
        given = (*request.csrf, *([request.form["csrf"]] if "csrf" in request.form else []))
        if not csrf_holds(request.method, given[:1], who):
            raise Refused(403, "cookie without CSRF token", "The request needs the session's CSRF token.")
        return who

    def new_access_token(self, who: Authenticated) -> tuple[str, float]:
        """Issue an access token for an authenticated caller; returns it with its lifetime in seconds."""
        now = self.clock()
        policy = self.authenticator.policy.get()
        text, made = issue(
            who.principal,
            self.authenticator.access_token_keys,
            policy,
            now=now,
            lifetime=dt.timedelta(seconds=self.config.pass_lifetime),
            csrf=who.csrf or "",
            not_after=who.expires_at,
        )
        if who.session is not None:
            self.authenticator.sessions.used(who.session.id)
        elif (token := who.principal.credential.token_id) is not None and self.token_use is not None:
            self.token_use.used(token)
        return text, made.expires_at - now

    def renewed_cookie(self, who: Authenticated) -> str | None:
        """A cookie with a new access token, for a browser whose session's last one has expired; None for others."""
        if who.session is None or who.csrf is None:
            return None
        text, seconds = self.new_access_token(who)
        return access_token_cookie(text, max_age=seconds)

    async def begin_browser_session(self, subject: Subject, request: AuthRequest) -> tuple[SessionId, list[str]]:
        """Begin a session and end the browser's previous one; returns its id and its cookies."""
        await self.end_shown_session(request)
        record, text = await asyncio.to_thread(self.authenticator.sessions.begin, subject, "browser", request.address)
        cookies = session_cookies(text, record.csrf, max_age=self.config.session_lifetime)
        # Includes the first access token, which also replaces an access token of the previous session.
        try:
            who = self.authenticator.of_session(record)
        except Unauthenticated:  # the user got another password meanwhile
            await asyncio.to_thread(self.authenticator.sessions.end, record.id)
            raise
        made, seconds = self.new_access_token(who)
        return record.id, [*cookies, access_token_cookie(made, max_age=seconds)]

    async def end_shown_session(self, request: AuthRequest) -> SessionId | None:
        """End the session whose cookie the request has, and all its access tokens; returns its id."""
        try:
            record = self.authenticator.sessions.authenticate(request.cookies.get(SESSION_COOKIE, ""))
        except NoSession:
            return None
        await self.end_session(record.id, record.name)
        return record.id

    async def end_session(self, identifier: SessionId, name: str, *, by: str = "") -> None:
        """End a session and all its access tokens; ``by`` is the acting principal when it is not ``name``."""
        # The access tokens first, which other processes check. If this fails, the session still exists for another try.
        until = self.clock() + self.config.pass_lifetime + _RESERVED_SECONDS
        revoke = self.authenticator.revocations.revoke
        await asyncio.to_thread(revoke, ("session", identifier), until=until, by=by or name)
        await asyncio.to_thread(self.authenticator.sessions.end, identifier)

    def remember_id_token(self, session: SessionId, id_token: str) -> None:
        """Store an ID token, which tells the provider at sign-out which user it is. Waits for a disk."""
        now, data = self.clock(), id_token.encode()
        if len(data) > MAX_VALUE_BYTES:
            return  # without an ID token, the provider asks the user to confirm
        with self.store.transaction(_ID_TOKENS, now) as entries:
            while entries.count() >= MAX_ID_TOKENS and (oldest := entries.oldest()) is not None:
                entries.remove(oldest.key)
            entries.put(Entry(session, data, since=now, until=now + self.config.session_lifetime))

    def take_id_token(self, session: SessionId) -> str | None:
        """Remove and return the ID token of a session that ends. Waits for a disk."""
        with self.store.transaction(_ID_TOKENS, self.clock()) as entries:
            found = entries.get(session)
            entries.remove(session)
        return None if found is None else found.value.decode()

    def login_token(self, request: AuthRequest) -> tuple[str, list[str]]:
        """The login token of a browser without a session, and the cookies to set when the token is new."""
        found = request.cookies.get(LOGIN_COOKIE, "")
        if len(found) == _LOGIN_TOKEN_CHARACTERS and found.isascii():
            return found, []
        made = secrets.token_urlsafe(32)
        return made, [set_cookie(LOGIN_COOKIE, made, max_age=_LOGIN_SECONDS)]

    def holds_login_token(self, request: AuthRequest) -> bool:
        """Whether a form was submitted from a page that we sent to this browser."""
        cookie, given = request.cookies.get(LOGIN_COOKIE, ""), request.form.get("token", "")
        return bool(cookie) and hmac.compare_digest(cookie.encode(), given.encode())

    async def record(self, request: AuthRequest, note: AuditNote, status: int) -> None:
        """Write the decision to the audit log, before the response; raises ``SluiceError`` when that fails."""
        await self.audit.append(
            AuditRecord(
                event="decision",
                sequence=0,
                time="",
                previous="",
                request_id=request.request_id,
                address=request.address,
                principal=note.principal,
                credential=note.credential,
                method=request.method,
                path=redact(request.path)[:MAX_LOGGED_CHARACTERS],
                operation=note.operation,
                decision="allow" if status < 400 else "deny",
                status=status,
                reason=note.reason[:1000],
            )
        )

    def refusal(self, error: Unauthenticated | Refused, headers: Mapping[str, str]) -> web.Response:
        """The response to a refused request: a page for browsers, a problem document for programs."""
        if isinstance(error, Unauthenticated):
            decision = challenge(error, self.realm)
            error = Refused(401, decision.reason, decision.detail, {hdrs.WWW_AUTHENTICATE: decision.challenge})
        if wants_page(headers):
            html = problem_page(error.status, error.detail).encode()
            response = answer(error.status, html, "text/html", headers={**error.headers, POLICY_HEADER: POLICY})
            response.charset = "utf-8"
            return response
        body = problem_body(error.status, error.detail)
        return answer(error.status, body, CONTENT_TYPE, headers=error.headers)
