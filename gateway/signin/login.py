"""Sign-in and sign-out with a browser."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlencode, urlsplit

from aiohttp import web

from sluice.gateway.authn import MAX_TOKEN_CHARACTERS
from sluice.gateway.credentials import ACCESS_TOKEN_COOKIE, MAX_PASSWORD_BYTES, Unauthenticated
from sluice.gateway.errors import IssuerError, LoginError
from sluice.gateway.principal import Subject
from sluice.gateway.signin import pages
from sluice.gateway.signin.attempts import Attempts
from sluice.gateway.signin.cookies import LOGIN_COOKIE, clear_cookie
from sluice.gateway.signin.pending_requests import TooManyPending
from sluice.gateway.signin.requests import AuditNote, AuthRequest, Refused, check_origin, return_path, too_many
from sluice.gateway.signin.responses import page, redirect, signed_out
from sluice.gateway.signin.sign_in import SignIn
from sluice.gateway.signin.throttle import Throttle
from sluice.pki.tls import network_of

_LOG = logging.getLogger(__name__)

HOME_PAGE = "/ui"
CONCURRENT_HASHES = 2
"""Number of passwords checked at the same time; each check takes 32 MiB and a CPU core."""
MAX_WAITING_HASHES = 16
FREE_FAILURES_PER_ADDRESS = 20


class Login:
    """The handlers of sign-in and sign-out."""

    def __init__(self, sign_in: SignIn) -> None:
        self._sign_in = sign_in
        self._attempts = Attempts(sign_in.store)
        self._by_name = Throttle(sign_in.store, "failures-by-name")
        self._by_address = Throttle(sign_in.store, "failures-by-address", FREE_FAILURES_PER_ADDRESS)
        self._hashing = asyncio.Semaphore(CONCURRENT_HASHES)
        self._waiting = 0

    async def show(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """``GET /auth/login``: show the form, or redirect to the provider when there is nothing to choose."""
        note.reason = "asked to sign in"
        back = return_path(request.query.get("return_to", HOME_PAGE))
        wanted = request.query.get("with")
        if self._sign_in.provider is not None and (
            wanted == "provider" or (wanted != "token" and not self._with_users())
        ):
            return await self._to_provider(request, back)
        return self._form(request, back)

    async def submit(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """``POST /auth/login``: name and password, or an API token."""
        sign_in, now = self._sign_in, self._sign_in.clock()
        check_origin(request)
        back = return_path(request.form.get("return_to", HOME_PAGE))
        if not sign_in.holds_login_token(request):
            # Another site made the browser send this form, or the page is too old. Ignore its content.
            note.reason = "sign-in form without this browser's login token"
            return self._form(request, back, "The page has expired. Please try again.", status=403)
        name, password = request.form.get("name", "")[:200], request.form.get("password", "")
        keys = throttle_keys(name, request.address)
        if "api_token" in request.form:
            return await self._with_token(request, back, note)
        wait = await asyncio.to_thread(self._wait, keys, now)
        if wait > 0 or self._waiting >= MAX_WAITING_HASHES:
            note.reason = "too many failed sign-ins"
            return self._form(request, back, f"Too many attempts. Wait {int(wait) + 1} seconds.", status=429)
        user = None
        if len(password) <= MAX_PASSWORD_BYTES:
            self._waiting += 1
            try:
                async with self._hashing:
                    user = await asyncio.to_thread(sign_in.authenticator.users.get().check, name, password)
            finally:
                self._waiting -= 1
        if user is None or self._locked_out(name):
            await asyncio.to_thread(self._failed, keys, now)
            note.reason = "wrong name or password, or locked out"
            return self._form(request, back, "Name or password is wrong.", status=403)
        await asyncio.to_thread(self._by_name.succeeded, keys[0], now)
        subject = Subject(user.name, "user", user.groups, authenticated_at=now)
        session, cookies = await sign_in.begin_browser_session(subject, request)
        note.principal, note.credential, note.reason = user.name, session, "signed in with a password"
        return redirect(back, cookies=[*cookies, clear_cookie(LOGIN_COOKIE)])

    async def _with_token(self, request: AuthRequest, back: str, note: AuditNote) -> web.Response:
        """Exchange an API token for a browser session, which has the token's permissions and expires with it."""
        sign_in, now = self._sign_in, self._sign_in.clock()
        network = network_of(request.address)
        if (wait := await asyncio.to_thread(self._by_address.wait, network, now)) > 0:
            note.reason = "too many failed sign-ins"
            return self._form(request, back, f"Too many attempts. Wait {int(wait) + 1} seconds.", status=429)
        try:
            who = sign_in.authenticator.authenticate_token(request.form["api_token"].strip()[:MAX_TOKEN_CHARACTERS])
        except Unauthenticated as error:
            await asyncio.to_thread(self._by_address.failed, network, now)
            note.credential, note.reason = error.credential, f"sign-in with a token: {error.reason}"
            return self._form(request, back, "The token is not valid.", status=403)
        name, token = who.principal.name, who.principal.credential
        subject = Subject(name, "token", credential=token, expires_at=who.expires_at)
        session, cookies = await sign_in.begin_browser_session(subject, request)
        if sign_in.token_use is not None and token.token_id is not None:
            sign_in.token_use.used(token.token_id)
        note.principal, note.credential, note.reason = name, session, f"signed in with token {token.id}"
        return redirect(back, cookies=[*cookies, clear_cookie(LOGIN_COOKIE)])

    async def callback(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """``GET /auth/callback``: the browser returns from the provider with a code."""
        sign_in, provider = self._sign_in, self._sign_in.provider
        if provider is None:
            raise Refused(404, "no identity provider", "There is no such resource here.")
        # 1. The sign-in must have begun here, in this browser, recently, and must not be finished.
        state, browser = request.query.get("state", ""), request.cookies.get(LOGIN_COOKIE, "")
        attempt = await asyncio.to_thread(self._attempts.finish, state, browser, sign_in.clock())
        if attempt is None:
            note.reason = "no pending sign-in of this browser with this state"
            return _failed(400)
        # 2. The provider names the user.
        try:
            redeemed = await provider.redeem(request.query, attempt, now=sign_in.clock())
        except (LoginError, IssuerError) as error:
            note.reason = f"sign-in failed: {error}"
            _LOG.warning("%s", note.reason)
            return _failed(403 if isinstance(error, LoginError) else 503)
        name = redeemed.subject.name
        if self._locked_out(name):
            note.principal, note.reason = name, "the user is locked out"
            return _failed(403)
        # 3. A session with a new id (prevents session fixation).
        session, cookies = await sign_in.begin_browser_session(redeemed.subject, request)
        await asyncio.to_thread(sign_in.remember_id_token, session, redeemed.id_token)
        note.principal, note.credential, note.reason = name, session, "signed in with the identity provider"
        return redirect(attempt.return_to, cookies=[*cookies, clear_cookie(LOGIN_COOKIE)])

    async def denied(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """``GET /auth/denied``: Envoy refused the access token in the browser's cookie; show the reason."""
        back = return_path(request.query.get("return_to", "/"))
        try:
            who = await self._sign_in.who(request)
        except Unauthenticated as error:
            note.reason, note.credential = f"led to the sign-in page: {error.reason}", error.credential
            query = urlencode({"return_to": back})
            return redirect(f"/auth/login?{query}", cookies=[clear_cookie(ACCESS_TOKEN_COOKIE)])
        note.principal, note.credential = who.principal.name, who.principal.credential.id
        note.reason = "was refused a page"
        text = "You may not see this page. Sign in as another user, or ask the administrator of this cluster."
        return page(pages.message("Not allowed", text, link="/auth/account"), status=403)

    async def logout(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """``POST /auth/logout``: end the session, here and at the provider."""
        sign_in = self._sign_in
        check_origin(request)
        try:
            who = await sign_in.who(request)
        except Unauthenticated:
            # Without a session there is nothing to protect: clear the remaining cookies.
            note.reason = "signed out, had no session"
            return signed_out("/auth/signed-out")
        identifier = who.principal.credential.session_id
        if identifier is None:
            raise Refused(403, "not a session", "Only sessions can be signed out; see `sluice token revoke`.")
        await sign_in.end_session(identifier, who.principal.name)
        note.principal, note.credential, note.reason = who.principal.name, identifier, "signed out"
        id_token = await asyncio.to_thread(sign_in.take_id_token, identifier)
        url = None
        if sign_in.provider is not None and who.principal.method == "session":
            url = await sign_in.provider.logout_url(id_token)
        return signed_out(url or "/auth/signed-out")

    async def account(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """``GET /auth/account``: the account page."""
        sign_in = self._sign_in
        try:
            who = await sign_in.who(request)
        except Unauthenticated:
            note.reason = "not signed in"
            return redirect("/auth/login?return_to=/auth/account")
        note.principal, note.credential, note.reason = who.principal.name, who.principal.credential.id, "viewed"
        targets = []
        if sign_in.provider is not None and (url := await sign_in.provider.logout_url(None)):
            parts = urlsplit(url)
            targets = [f"{parts.scheme}://{parts.netloc}"]
        html = pages.account(name=who.principal.name, roles=who.principal.roles, csrf=who.csrf or "")
        return page(html, form_targets=targets)

    async def signed_out_page(self, _: AuthRequest, note: AuditNote) -> web.Response:
        """``GET /auth/signed-out``: the page after sign-out."""
        note.reason = "viewed"
        return page(pages.message("Signed out", "You have signed out of Sluice.", link="/auth/login"))

    async def _to_provider(self, request: AuthRequest, back: str) -> web.Response:
        sign_in = self._sign_in
        if sign_in.provider is None:
            raise Refused(404, "no identity provider", "There is no such resource here.")
        token, cookies = sign_in.login_token(request)
        try:
            attempt = await asyncio.to_thread(self._attempts.begin, token, back, request.address, sign_in.clock())
        except TooManyPending as error:
            raise too_many(error, "Too many people are signing in.") from error
        try:
            return redirect(await sign_in.provider.authorization_url(attempt), cookies=cookies)
        except IssuerError as error:
            _LOG.warning("sign-in is not possible: the identity provider does not answer: %s", error)
            raise Refused(
                503, f"no answer from the provider: {error}", "The identity provider is not available."
            ) from error

    def _form(self, request: AuthRequest, back: str, error: str = "", *, status: int = 200) -> web.Response:
        token, cookies = self._sign_in.login_token(request)
        html = pages.sign_in(
            token=token,
            return_to=back,
            provider=self._sign_in.provider is not None,
            users=self._with_users(),
            error=error,
        )
        return page(html, status=status, cookies=cookies)

    def _wait(self, keys: tuple[str, str], now: float) -> float:
        """Seconds until the next attempt is allowed, for this name at this address and for the address."""
        return max(self._by_name.wait(keys[0], now), self._by_address.wait(keys[1], now))

    def _failed(self, keys: tuple[str, str], now: float) -> None:
        self._by_name.failed(keys[0], now)
        self._by_address.failed(keys[1], now)

    def _with_users(self) -> bool:
        return bool(self._sign_in.authenticator.users.get().records)

    def _locked_out(self, name: str) -> bool:
        return self._sign_in.authenticator.revocations.is_revoked(("user", name))


def throttle_keys(name: str, address: str) -> tuple[str, str]:
    """The keys of failed sign-ins: the name at an address, and the address (IPv6: its /64 network)."""
    network = network_of(address)
    return f"{name}\n{network}", network


def _failed(status: int) -> web.Response:
    """A page without details; the details are in the log."""
    text = "Sign-in failed. Please try again, or ask the administrator of this cluster."
    return page(pages.message("Not signed in", text, link="/auth/login"), status=status)
