"""Sign-in of a command with the help of a browser (RFC 8628)."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from sluice.gateway.credentials import Authenticated, Unauthenticated
from sluice.gateway.signin import pages
from sluice.gateway.signin.device_codes import LIFETIME_SECONDS, Answer, Approver, DeviceCodes, Pending
from sluice.gateway.signin.pending_requests import TooManyPending
from sluice.gateway.signin.requests import AuditNote, AuthRequest, Refused, check_origin, too_many
from sluice.gateway.signin.responses import answer, page, redirect
from sluice.gateway.signin.sign_in import SignIn
from sluice.gateway.signin.throttle import Throttle

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"


class Device:
    """The handlers of device codes."""

    def __init__(self, sign_in: SignIn) -> None:
        self._sign_in = sign_in
        self._codes = DeviceCodes(sign_in.store)
        self._guesses = Throttle(sign_in.store, "device-code-failures")

    async def begin(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """``POST /auth/device``: a command requests to be signed in."""
        try:
            address = request.address or "an unknown address"
            code, pending = await asyncio.to_thread(self._codes.begin, address, self._sign_in.clock())
        except TooManyPending as error:
            raise too_many(error, "Too many commands wait to be signed in.") from error
        note.reason = "a command asks to be signed in"
        return _json(
            200,
            {
                "device_code": code,
                "user_code": pending.user_code,
                # Paths only: the command knows the URL of the gateway, which it has just used.
                "verification_uri": "/auth/device",
                "verification_uri_complete": f"/auth/device?{urlencode({'user_code': pending.user_code})}",
                "expires_in": int(LIFETIME_SECONDS),
                "interval": int(pending.interval),
            },
        )

    async def token(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """``POST /auth/device/token``: a command asks whether it has been signed in."""
        if request.form.get("grant_type") != GRANT_TYPE:
            return _error(note, "unsupported_grant_type")
        shown = request.form.get("device_code", "")
        found = await asyncio.to_thread(self._codes.ask, shown, self._sign_in.clock())
        if isinstance(found, Answer):
            return _error(note, found)
        begin = self._sign_in.authenticator.sessions.begin
        record, text = await asyncio.to_thread(begin, found, "command", request.address)
        try:
            self._sign_in.authenticator.of_session(record)
        except Unauthenticated:  # the user got another password since the approval
            await asyncio.to_thread(self._sign_in.authenticator.sessions.end, record.id)
            return _error(note, Answer.DENIED)
        note.principal, note.credential, note.reason = record.name, record.id, "a command was signed in"
        seconds = int(record.expires_at - self._sign_in.clock())
        return _json(
            200,
            {
                "access_token": text,
                "token_type": "Bearer",
                "expires_in": seconds,
                "name": record.name,
                "session": record.id,
            },
        )

    async def show(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """``GET /auth/device``: the page on which a user enters the code of a command."""
        code = request.query.get("user_code", "")
        try:
            who = await self._sign_in.who(request)
        except Unauthenticated:
            note.reason = "not signed in"
            query = f"?{urlencode({'user_code': code})}" if code else ""
            return redirect(f"/auth/login?{urlencode({'return_to': f'/auth/device{query}'})}")
        _require_browser(who)
        note.principal, note.credential, note.reason = who.principal.name, who.principal.credential.id, "viewed"
        name, csrf = who.principal.name, who.csrf or ""
        if not code:
            return page(pages.device(name=name, csrf=csrf))
        pending = await asyncio.to_thread(self._find, code, who, note)
        if pending is None:
            text = "No command is waiting with this code."
            return page(pages.device(name=name, csrf=csrf, error=text), status=404)
        html = pages.device(name=name, csrf=csrf, user_code=pending.user_code, address=pending.address)
        return page(html)

    async def decide(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """``POST /auth/device/decide``: the user approves or denies."""
        check_origin(request)
        now = self._sign_in.clock()  # before the session is checked: a password changed since then ends the command's
        who = await self._sign_in.who(request)
        session = _require_browser(who)
        note.principal, note.credential = who.principal.name, who.principal.credential.id
        code, approved = request.form.get("user_code", ""), request.form.get("decision") == "approve"
        if await asyncio.to_thread(self._find, code, who, note) is not None:
            pending = await asyncio.to_thread(self._codes.decide, code, session if approved else None, now)
        else:
            pending = None
        if pending is None:
            raise Refused(404, "unknown device code", "No command is waiting with this code.")
        if not approved:
            note.reason = "did not sign in a command"
            return page(pages.message("Not signed in", "The command was not signed in. You can close this page."))
        note.reason = f"signed in a command at {pending.address}"
        return page(pages.message("Signed in", "The command is signed in. You can close this page."))

    def _find(self, code: str, who: Authenticated, note: AuditNote) -> Pending | None:
        now, key = self._sign_in.clock(), who.principal.name
        if self._guesses.wait(key, now) > 0:
            note.reason = "too many wrong codes"
            raise Refused(429, note.reason, "Too many wrong codes. Wait a little.")
        pending = self._codes.find(code, now)
        if pending is None:
            self._guesses.failed(key, now)
            note.reason = "unknown device code"
        return pending


def _require_browser(who: Authenticated) -> Approver:
    """The user of a browser session, as the subject of a command.

    Sessions of API tokens are refused, because the command's session would not keep the limits of the token.
    """
    method = who.principal.method
    if who.csrf is None or method not in {"session", "user"}:
        raise Refused(403, "not a session of a browser", "Sign in with a browser to sign in a command.")
    return Approver(who.principal.name, "user" if method == "user" else "session", who.principal.groups)


def _error(note: AuditNote, code: str) -> web.Response:
    """An error response of RFC 6749 section 5.2, not a problem document: OAuth clients expect the field ``error``."""
    note.reason = code
    return _json(400, {"error": str(code)})


def _json(status: int, document: object) -> web.Response:
    return answer(status, msgspec.json.encode(document), "application/json")
