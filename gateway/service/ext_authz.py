"""The auth service over HTTP: authorization checks of Envoy's ``ext_authz``, and sign-in under ``/auth/``.

Envoy sends the method and target of the request with an empty body, and the headers in
``gateway.envoy_config.check_headers``. A response with status 200 carries the signed assertion for REST; any other
response goes to the caller unchanged. On a 5xx, a timeout or no response, Envoy refuses the request with 503
(``failure_mode_allow: false``).
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
    """Answers Envoy's authorization checks, and requests under ``/auth/``."""

    checks: CheckService
    api: AuthApi
    discovery: Discovery

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler for aiohttp's low-level server. A request for no other known path is an authorization check."""
        if request.raw_path.startswith(STATIC_PREFIX):
            return _static(request)
        if (document := self.discovery.answer(request)) is not None:
            return document
        if request.raw_path.startswith(PREFIX):
            return await self.api.handle(request)
        check = CheckRequest(
            method=request.method,
            # The target exactly as Envoy sent it; aiohttp's `path` is decoded.
            target=request.raw_path,
            presented=presented(request),
            csrf=tuple(request.headers.getall(CSRF_HEADER, ())),
            request_id=request.headers.get("x-request-id", "")[:MAX_LOGGED_FIELD_CHARACTERS],
            address=request.headers.get("x-forwarded-for", "")[:MAX_LOGGED_FIELD_CHARACTERS],
        )
        try:
            answer = _http(await self.checks.answer(check, request.headers))
        except SluiceError:
            # The caller gets Envoy's own 503, which reveals nothing.
            _LOG.exception("refusing request %s: cannot decide", check.request_id)
            return web.Response(status=500)
        return for_nginx(answer) if request.headers.get(PROXY_HEADER) == NGINX else answer


def _http(answer: Answer) -> web.Response:
    response = web.Response(status=answer.status, headers=answer.headers, body=answer.body or None)
    if answer.cookie is not None:
        response.headers.add(hdrs.SET_COOKIE, answer.cookie)
    return response


def _static(request: web.BaseRequest) -> web.Response:
    """Serve style sheets and scripts. They are public and not audited."""
    asset = find_asset(request.raw_path) if request.method == "GET" else None
    if asset is None:
        return web.Response(status=404, body=problem_body(404, "There is no such file."), content_type=CONTENT_TYPE)
    body, headers = asset.answer(request.headers.get(hdrs.ACCEPT_ENCODING, ""))
    return web.Response(body=body, headers=headers)


def for_nginx(answer: web.Response) -> web.Response:
    """``answer`` in the form that NGINX's ``auth_request`` requires.

    It accepts only 401 and 403 as refusals and drops the body, so the real status and the body go into headers.
    """
    if answer.status < HTTPStatus.BAD_REQUEST or not isinstance(answer.body, bytes):
        return answer
    # As ASCII, because it becomes a header; re-encoding also removes line breaks from the JSON.
    text = json.dumps(json.loads(answer.body), separators=(",", ":"))
    headers = {STATUS_HEADER: str(answer.status), PROBLEM_HEADER: text}
    if challenge := answer.headers.get(hdrs.WWW_AUTHENTICATE):
        headers[hdrs.WWW_AUTHENTICATE] = challenge
    status = answer.status if answer.status == HTTPStatus.UNAUTHORIZED else HTTPStatus.FORBIDDEN
    return web.Response(status=status, headers=headers)
