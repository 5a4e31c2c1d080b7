"""What the handlers under ``/auth/`` share: the request taken apart, answers, sessions and passes."""

from __future__ import annotations

import asyncio
import datetime as dt
import hmac
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import parse_qsl, urlsplit

from aiohttp import hdrs, web

from sluice.core.http_body import BodyTooLarge, read_body
from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.writer import AuditWriter
from sluice.gateway.authn.authenticator import Authenticator, Presented, parse_cookies
from sluice.gateway.authn.client_certificate import HEADER as CERTIFICATE_HEADER
from sluice.gateway.authz.routes import UnsafePath, split_target
from sluice.gateway.config import GatewayConfig
from sluice.gateway.credentials.access_tokens import (
    CSRF_HEADER,
    SAFE_METHODS,
    SESSION_COOKIE,
    issue,
)
from sluice.gateway.credentials.api_tokens import Unauthenticated, redact
from sluice.gateway.credentials.authenticated import Authenticated
from sluice.gateway.credentials.sessions import NoSession
from sluice.gateway.credentials.token_use import TokenUse
from sluice.gateway.decision import challenge, csrf_holds
from sluice.gateway.principal import Subject
from sluice.gateway.problem import CONTENT_TYPE, problem_body
from sluice.gateway.problem_page import (
    POLICY,
    POLICY_HEADER,
    problem_page,
    wants_page,
)
from sluice.gateway.signin import pages
from sluice.gateway.signin.cookies import (
    LOGIN_COOKIE,
    cleared,
    pass_cookie,
    session_cookies,
    set_cookie,
)
from sluice.gateway.signin.oidc import Provider
from sluice.gateway.signin.waiting import TooManyWait
from sluice.pki.assertions.principal import SessionId

MAX_FORM_BYTES = 16 << 10
MAX_FIELDS = 20
MAX_LOGGED_CHARACTERS = 128
MAX_ID_TOKENS = 2000
_LOGIN_SECONDS = 600
_RESERVED_SECONDS = 60
_LOGIN_TOKEN_CHARACTERS = 43

_SECURITY_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Refused(Exception):
    """The request is answered with a problem; ``reason`` is for the log, ``detail`` for the caller."""

    def __init__(self, status: int, reason: str, detail: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.detail = detail or reason
        self.headers = dict(headers or {})


def too_many(error: TooManyWait, detail: str) -> Refused:
    """What is answered when there is no room for another sign-in."""
    return Refused(429, str(error), f"{detail} Wait a little.", {"Retry-After": str(math.ceil(error.retry_after))})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the auth service itself."""

    method: str
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    presented: Presented
    csrf: tuple[str, ...]
    cookies: Mapping[str, str]
    headers: Mapping[str, str]
    address: str
    request_id: str


@dataclass(slots=True)
class Note:
    """What the audit log is told about one request."""

    operation: str
    reason: str = ""
    principal: str = ""
    credential: str = ""


@dataclass
class Desk:
    """The state of signing in, of one auth service."""

    config: GatewayConfig
    authenticator: Authenticator
    audit: AuditWriter
    realm: str
    provider: Provider | None = None
    token_use: TokenUse | None = None
    clock: Callable[[], float] = time.time
    id_tokens: OrderedDict[SessionId, str] = field(default_factory=OrderedDict)
    """Session id -> ID token, to tell the provider who signs out. In memory: without it the provider asks."""

    async def who(self, asked: Asked) -> Authenticated:
        """Who asks, proven to be on purpose; raises :class:`Refused` or Unauthenticated."""
        who = await self.authenticator.authenticate(asked.presented)
        given = (*asked.csrf, *([asked.form["csrf"]] if "csrf" in asked.form else []))
        if not csrf_holds(asked.method, given[:1], who):
            raise Refused(403, "cookie without CSRF token", "The request needs the session's CSRF token.")
        return who

    def new_pass(self, who: Authenticated) -> tuple[str, float]:
        """A pass for somebody who has shown a credential, and for how many seconds it is good."""
        now = self.clock()
        policy = self.authenticator.policy.get()
        text, made = issue(
            who.principal,
            self.authenticator.pass_keys,
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
        """The cookie with a new pass, for a browser whose session was asked about because the last one has ended."""
        if who.session is None or who.csrf is None:
            return None
        text, seconds = self.new_pass(who)
        return pass_cookie(text, max_age=seconds)

    async def begin_browser_session(self, subject: Subject, asked: Asked) -> tuple[SessionId, list[str]]:
        """A new session: its id, and its cookies. The one that the browser had before ends."""
        await self.end_shown_session(asked)
        record, text = await asyncio.to_thread(self.authenticator.sessions.begin, subject, "browser", asked.address)
        cookies = session_cookies(text, record.csrf, max_age=self.config.session_lifetime)
        # With its first pass, which also takes the place of one that belonged to the session before.
        made, seconds = self.new_pass(self.authenticator.of_session(record))
        return record.id, [*cookies, pass_cookie(made, max_age=seconds)]

    async def end_shown_session(self, asked: Asked) -> SessionId | None:
        """End the session whose cookie came with the request, and every pass got for it; its id."""
        try:
            record = self.authenticator.sessions.authenticate(asked.cookies.get(SESSION_COOKIE, ""))
        except NoSession:
            return None
        await self.end_session(record.id, record.name)
        return record.id

    async def end_session(self, identifier: SessionId, name: str, *, by: str = "") -> None:
        """End a session and every pass got for it; ``by``: whoever does it, when not ``name``."""
        # First the passes, which others check: if that fails the session is still there to try again.
        until = self.clock() + self.config.pass_lifetime + _RESERVED_SECONDS
        revoke = partial(self.authenticator.revocations.revoke, "session", identifier, until=until, by=by or name)
        await asyncio.to_thread(revoke)
        await asyncio.to_thread(self.authenticator.sessions.end, identifier)

    def remember_id_token(self, session: SessionId, id_token: str) -> None:
        """Keep an ID token for signing out."""
        self.id_tokens[session] = id_token
        while len(self.id_tokens) > MAX_ID_TOKENS:
            self.id_tokens.popitem(last=False)

    def login_token(self, asked: Asked) -> tuple[str, list[str]]:
        """The secret between this browser and us before it has a session, and the cookie when it is new."""
        found = asked.cookies.get(LOGIN_COOKIE, "")
        if len(found) == _LOGIN_TOKEN_CHARACTERS and found.isascii():
            return found, []
        made = secrets.token_urlsafe(32)
        return made, [set_cookie(LOGIN_COOKIE, made, max_age=_LOGIN_SECONDS)]

    def holds_login_token(self, asked: Asked) -> bool:
        """Whether a form came from a page that we gave to this browser."""
        cookie, given = asked.cookies.get(LOGIN_COOKIE, ""), asked.form.get("token", "")
        return bool(cookie) and hmac.compare_digest(cookie.encode(), given.encode())

    async def record(self, asked: Asked, note: Note, status: int) -> None:
        """Have it in the audit log before anyone learns of it; raises when that cannot be."""
        await self.audit.append(
            AuditRecord(
                event="decision",
                sequence=0,
                time="",
                previous="",
                request_id=asked.request_id,
                address=asked.address,
                principal=note.principal,
                credential=note.credential,
                method=asked.method,
                path=redact(asked.path)[:MAX_LOGGED_CHARACTERS],
                operation=note.operation,
                decision="allow" if status < 400 else "deny",
                status=status,
                reason=note.reason[:1000],
            )
        )

    def refusal(self, error: Unauthenticated | Refused, headers: Mapping[str, str]) -> web.Response:
        """The answer to a request with these headers that was refused: a page for people, a problem for programs."""
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

    def check_origin(self, asked: Asked) -> None:
        """A browser's own word on where an unsafe request comes from (Fetch Metadata), where it gives one."""
        if asked.method in SAFE_METHODS:
            return
        site, origin = asked.headers.get("sec-fetch-site"), asked.headers.get("origin", "")
        # What a browser says itself is exact; Origin is "null" where the referrer is withheld. Older ones say Origin
        # alone, which is compared without the port that Envoy takes out of Host.
        own = not origin or _host(origin) == _host(f"//{asked.headers.get('host', '')}")
        if not (own if site is None else site in {"same-origin", "none"}):
            raise Refused(403, "a request from another site", "Requests from other sites are refused.")


async def read(request: web.BaseRequest) -> Asked:
    """The request, bounded; raises :class:`Refused`."""
    form: Mapping[str, str] = {}
    if request.method not in SAFE_METHODS:
        try:
            body = await read_body(request.content, MAX_FORM_BYTES)
        except BodyTooLarge as error:
            raise Refused(413, "the form is too large") from error
        if body and request.content_type != "application/x-www-form-urlencoded":
            raise Refused(415, "not a form", "Send application/x-www-form-urlencoded.")
        form = _fields(body.decode("latin-1"))
    path, _, query = request.raw_path.partition("?")
    return Asked(
        method=request.method,
        path=path,
        query=_fields(query),
        form=form,
        presented=presented(request),
        csrf=tuple(request.headers.getall(CSRF_HEADER, ())),
        cookies=parse_cookies(tuple(request.headers.getall(hdrs.COOKIE, ()))),
        headers=request.headers,
        address=request.headers.get("x-forwarded-for", "")[:MAX_LOGGED_CHARACTERS],
        request_id=request.headers.get("x-request-id", "")[:MAX_LOGGED_CHARACTERS],
    )


def presented(request: web.BaseRequest) -> Presented:
    """The credentials in a request's headers."""
    return Presented(
        tuple(request.headers.getall(hdrs.AUTHORIZATION, ())),
        tuple(request.headers.getall(hdrs.COOKIE, ())),
        tuple(request.headers.getall(CERTIFICATE_HEADER, ())),
    )


def answer(
    status: int,
    body: bytes,
    content_type: str,
    *,
    headers: Mapping[str, str] | None = None,
    cookies: Iterable[str] = (),
) -> web.Response:
    """An answer with what every answer of ours has."""
    response = web.Response(
        status=status, body=body, headers={**_SECURITY_HEADERS, **(headers or {})}, content_type=content_type
    )
    for cookie in cookies:
        response.headers.add(hdrs.SET_COOKIE, cookie)
    return response


def page(
    html: str, *, status: int = 200, cookies: Iterable[str] = (), form_targets: Iterable[str] = ()
) -> web.Response:
    """A page for people."""
    policy = {"content-security-policy": pages.content_security_policy(*form_targets)}
    response = answer(status, html.encode(), "text/html", headers=policy, cookies=cookies)
    response.charset = "utf-8"
    return response


def redirect(location: str, *, cookies: Iterable[str] = ()) -> web.Response:
    """Go there with GET (RFC 9110 section 15.4.4)."""
    return answer(303, b"", "text/plain", headers={"location": location}, cookies=cookies)


def signed_out(location: str) -> web.Response:
    """Go there, and forget every cookie of ours."""
    return redirect(location, cookies=cleared())


def return_path(text: str) -> str:
    """Where to go after signing in: a path of this gateway; anything else is its root (no open redirect)."""
    try:
        split_target(text)
    except UnsafePath:
        return "/"
    return text


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _fields(text: str) -> Mapping[str, str]:
    """The fields of a form or a query; one that comes twice makes all of it unusable."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise Refused(400, "the form cannot be read") from error
    if len({name for name, _ in pairs}) != len(pairs):
        raise Refused(400, "the form has a field twice")
    return dict(pairs)
