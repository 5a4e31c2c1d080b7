"""The HTTP interface under ``/auth/``: a fixed list of paths; all others are refused."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import msgspec
from aiohttp import web

from sluice.core import Home, SluiceError
from sluice.gateway.credentials import SESSION_COOKIE, Unauthenticated, encode_jwks
from sluice.gateway.envoy_config import DENIED_PATH
from sluice.gateway.service.jobmanager_api import JWKS_PATH
from sluice.gateway.signin import (
    AuditNote,
    AuthRequest,
    Device,
    Login,
    Refused,
    SignIn,
    access_token_cookie,
    answer,
    read,
)
from sluice.gateway.ui import AdminPages, RevocationClient

_LOG = logging.getLogger(__name__)

PREFIX = "/auth/"
"""Envoy forwards requests with this prefix without an authorization check."""

_Handler = Callable[[AuthRequest, AuditNote], Awaitable[web.Response]]


class AuthApi:
    """Answers requests to the auth service itself."""

    def __init__(self, sign_in: SignIn, home: Home, authority: RevocationClient) -> None:
        login, device = Login(sign_in), Device(sign_in)
        self._sign_in = sign_in
        self._routes: Mapping[tuple[str, str], tuple[str, _Handler]] = {
            ("GET", "/auth/account"): ("auth.account", login.account),
            ("GET", "/auth/login"): ("auth.login", login.show),
            ("GET", DENIED_PATH): ("auth.login", login.denied),
            ("POST", "/auth/login"): ("auth.login", login.submit),
            ("GET", "/auth/callback"): ("auth.login", login.callback),
            ("POST", "/auth/logout"): ("auth.logout", login.logout),
            ("GET", "/auth/signed-out"): ("auth.logout", login.signed_out_page),
            ("POST", "/auth/exchange"): ("auth.exchange", self._exchange),
            ("GET", "/auth/jwks.json"): ("auth.keys", self._jwks),
            ("GET", JWKS_PATH): ("auth.keys", self._jwks),
            ("GET", "/auth/whoami"): ("auth.whoami", self._whoami),
            ("POST", "/auth/device"): ("auth.device", device.begin),
            ("POST", "/auth/device/token"): ("auth.device", device.token),
            ("GET", "/auth/device"): ("auth.device", device.show),
            ("POST", "/auth/device/decide"): ("auth.device", device.decide),
            **AdminPages(sign_in, home, authority).routes(),
        }

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer one request. The audit log has the outcome before the response is sent."""
        try:
            request = await read(http)
        except Refused as error:
            return self._sign_in.refusal(error, http.headers)
        operation, handler = self._routes.get((request.method, request.path), ("", _nothing_here))
        note = AuditNote(operation)
        try:
            try:
                response = await handler(request, note)
            except (Unauthenticated, Refused) as error:
                response = self._sign_in.refusal(error, http.headers)
                note.reason = error.reason
                if isinstance(error, Unauthenticated):
                    note.credential = error.credential
            await self._sign_in.record(request, note, response.status)
        except SluiceError:
            _LOG.exception("cannot answer request %s", request.request_id)
            away = Refused(503, "cannot answer now", "The gateway cannot answer now; try again.")
            return self._sign_in.refusal(away, http.headers)
        return response

    async def _exchange(self, request: AuthRequest, note: AuditNote) -> web.Response:
        """Exchange a credential for an access token: as JSON, or for a browser as a cookie that scripts cannot read."""
        who = await self._sign_in.who(_without_access_token_cookie(request))
        note.principal, note.credential = who.principal.name, who.principal.credential.id
        if who.access_token_id:
            # Otherwise a stolen access token could be renewed forever, even after its credential has ended.
            raise Refused(403, "an access token cannot be exchanged for another", "Exchange the credential itself.")
        text, seconds = self._sign_in.new_access_token(who)
        note.reason = "exchanged a credential for an access token"
        document: dict[str, object] = {"expires_in": int(seconds)}
        if who.csrf is not None:
            return _json(document, cookies=[access_token_cookie(text, max_age=seconds)])
        return _json({"pass": text, **document})

    async def _whoami(self, request: AuthRequest, note: AuditNote) -> web.Response:
        principal = (await self._sign_in.who(request)).principal
        note.principal, note.credential, note.reason = principal.name, principal.credential.id, "viewed"
        return _json(
            {
                "name": principal.name,
                "roles": principal.roles,
                "groups": principal.groups,
                "scopes": principal.scopes,
                "method": principal.method,
                "credential": principal.credential.id,
                "operations": self._sign_in.authenticator.policy.get().granted(principal),
            }
        )

    async def _jwks(self, _: AuthRequest, note: AuditNote) -> web.Response:
        note.reason = "public keys"
        return answer(200, encode_jwks(self._sign_in.authenticator.access_token_keys), "application/json")


def _without_access_token_cookie(request: AuthRequest) -> AuthRequest:
    """A browser sends its access token cookie with its session cookie; only the session may be exchanged."""
    session = request.cookies.get(SESSION_COOKIE)
    if request.presented.authorization or session is None:
        return request
    return replace(request, presented=replace(request.presented, cookie=(f"{SESSION_COOKIE}={session}",)))


async def _nothing_here(_: AuthRequest, __: AuditNote) -> web.Response:
    raise Refused(404, "no such route", "There is no such resource here.")


def _json(document: object, cookies: list[str] | None = None) -> web.Response:
    return answer(200, msgspec.json.encode(document), "application/json", cookies=cookies or ())
