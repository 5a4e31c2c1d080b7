"""The auth service over HTTP: Envoy's ``ext_authz`` asks it about requests, and people sign in under ``/auth/``.

Envoy sends the method and target of the held request with an empty body, and of its headers those in
``gateway.envoy_config.check_headers``. The answer 200 carries the signed assertion for REST; any other answer goes to
the caller as it is. A 5xx, no answer, or a late one makes Envoy refuse the request with 503 (``failure_mode_allow:
false``).
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import hdrs, web

from sluice.core import SluiceError
from sluice.core.pages import PREFIX as STATIC_PREFIX, find_asset
from sluice.gateway.credentials import CSRF_HEADER
from sluice.gateway.decision import CheckRequest
from sluice.gateway.problem import CONTENT_TYPE, problem_body
from sluice.gateway.proxy import PROBLEM_HEADER, PROXY as NGINX, PROXY_HEADER, STATUS_HEADER
from sluice.gateway.service.auth_api import PREFIX, AuthApi
from sluice.gateway.service.checks import MAX_LOGGED_FIELD_CHARACTERS, Answer, CheckService
from sluice.gateway.service.discovery import Discovery
from sluice.gateway.signin import presented

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AuthService:
    """Answers Envoy's questions, and the requests under ``/auth/``."""

    checks: CheckService
    api: AuthApi
    discovery: Discovery

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler for aiohttp's low-level server: what is not under ``/auth/`` is a check."""
        if request.raw_path.startswith(STATIC_PREFIX):
            return _static(request)
        if (told := self.discovery.answer(request)) is not None:
            return told
        if request.raw_path.startswith(PREFIX):
            return await self.api.handle(request)
        check = CheckRequest(
            method=request.method,
            # The target as Envoy sent it: aiohttp's own `path` is decoded already.
            target=request.raw_path,
            presented=presented(request),
            csrf=tuple(request.headers.getall(CSRF_HEADER, ())),
            request_id=request.headers.get("x-request-id", "")[:MAX_LOGGED_FIELD_CHARACTERS],
            address=request.headers.get("x-forwarded-for", "")[:MAX_LOGGED_FIELD_CHARACTERS],
        )
        try:
            answer = _http(await self.checks.answer(check, request.headers))
        except SluiceError:
            # The caller gets Envoy's own 503, which tells nothing.
            _LOG.exception("refusing request %s: cannot decide", check.request_id)
            return web.Response(status=500)
        return for_nginx(answer) if request.headers.get(PROXY_HEADER) == NGINX else answer


def _http(answer: Answer) -> web.Response:
    response = web.Response(status=answer.status, headers=answer.headers, body=answer.body or None)
    if answer.cookie is not None:
        response.headers.add(hdrs.SET_COOKIE, answer.cookie)
    return response


def _static(request: web.BaseRequest) -> web.Response:
    """Styles and scripts, for everybody: they say nothing, and are no decision that anyone would look for."""
    asset = find_asset(request.raw_path) if request.method == "GET" else None
    if asset is None:
        return web.Response(status=404, body=problem_body(404, "There is no such file."), content_type=CONTENT_TYPE)
    body, headers = asset.answer(request.headers.get(hdrs.ACCEPT_ENCODING, ""))
    return web.Response(body=body, headers=headers)


def for_nginx(answer: web.Response) -> web.Response:
    """``answer`` as nginx's ``auth_request`` wants it: 401 and 403 are refusals, any other is a failure to it.

    Status and body go into headers, for it drops the one and would not take the other.
    """
    if answer.status < HTTPStatus.BAD_REQUEST or not isinstance(answer.body, bytes):
        return answer
    # In ASCII, as a header must be; the body is our own JSON and has no line break.
    text = json.dumps(json.loads(answer.body), separators=(",", ":"))
    headers = {STATUS_HEADER: str(answer.status), PROBLEM_HEADER: text}
    if challenge := answer.headers.get(hdrs.WWW_AUTHENTICATE):
        headers[hdrs.WWW_AUTHENTICATE] = challenge
    status = answer.status if answer.status == HTTPStatus.UNAUTHORIZED else HTTPStatus.FORBIDDEN
    return web.Response(status=status, headers=headers)
