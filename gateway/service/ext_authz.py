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
from urllib.parse import urlencode

from aiohttp import hdrs, web
from prometheus_client import Counter

from sluice.core import REGISTRY, TRACEPARENT_HEADER, TRACING, CachedFile, SluiceError, checked
from sluice.core.pages import PREFIX as STATIC_PREFIX, find_asset
from sluice.gateway.audit_log import AuditRecord, AuditWriter
from sluice.gateway.authn import Authenticator
from sluice.gateway.authz import RouteTable
from sluice.gateway.credentials import CSRF_HEADER, AssertionSigner, Authenticated, Unauthenticated, redact
from sluice.gateway.decision import CheckRequest, Decision, decide
from sluice.gateway.problem import CONTENT_TYPE, problem_body
from sluice.gateway.problem_page import (
    POLICY,
    POLICY_HEADER,
    problem_page,
    wants_page,
)
from sluice.gateway.proxy import PROBLEM_HEADER, PROXY as NGINX, PROXY_HEADER, STATUS_HEADER
from sluice.gateway.service.auth_api import PREFIX, AuthApi
from sluice.gateway.signin import SignIn, presented
from sluice.pki.assertions import HEADER as ASSERTION_HEADER

_LOG = logging.getLogger(__name__)
DECISIONS = Counter(
    "sluice_auth_decisions_total", "Requests that were decided about.", ["decision", "status"], registry=REGISTRY
)

PRINCIPAL_HEADER = "x-sluice-principal"
"""For Envoy's own log; no process behind Envoy trusts this header."""
REQUEST_ID_HEADER = "x-sluice-request-id"
OPERATION_HEADER = "x-sluice-operation"
"""The operation that was granted; Envoy forwards the request only on the route of this operation."""

MAX_LOGGED_PATH_CHARACTERS = 1024
MAX_LOGGED_FIELD_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class AuthService:
    """Answers Envoy's questions; reads tokens, policy and routes afresh when their files changed."""

    authenticator: Authenticator
    routes: CachedFile[RouteTable]
    audit: AuditWriter
    sign_in: SignIn
    api: AuthApi
    signer: AssertionSigner

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler for aiohttp's low-level server: what is not under ``/auth/`` is a check."""
        if request.raw_path.startswith(STATIC_PREFIX):
            return _static(request)
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
        parent = checked(request.headers.get(TRACEPARENT_HEADER, ""))
        try:
            with TRACING.span("auth decide", parent, request_id=check.request_id) as span:
                who = await self._who(check)
                decision = await self.decide_and_record(check, who)
                span.note(operation=decision.operation, status=decision.status)
                if decision.status == 401 and _is_navigation(request):
                    return _to_login(check)
                cookie = self._noted_use(who) if decision.allowed and isinstance(who, Authenticated) else None
                answer = _answer(check, decision, self.signer, cookie, page=wants_page(request.headers))
            if decision.allowed and span.traceparent:
                answer.headers[TRACEPARENT_HEADER] = span.traceparent  # what REST does comes below it
            return for_nginx(answer) if request.headers.get(PROXY_HEADER) == NGINX else answer
        except SluiceError:
            # The caller gets Envoy's own 503, which tells nothing.
            _LOG.exception("refusing request %s: cannot decide", check.request_id)
            return web.Response(status=500)

    async def decide_and_record(self, check: CheckRequest, who: Authenticated | Unauthenticated) -> Decision:
        """Decide, and have it in the audit log before anyone learns of it."""
        policy = self.authenticator.policy.get()
        decision = decide(check, who, policy=policy, routes=self.routes.get(), realm=self.sign_in.realm)
        await self.audit.append(_record(check, decision))
        DECISIONS.labels("allowed" if decision.allowed else "refused", str(decision.status)).inc()
        return decision

    async def _who(self, check: CheckRequest) -> Authenticated | Unauthenticated:
        try:
            return await self.authenticator.authenticate(check.presented)
        except Unauthenticated as error:
            return error

    def _noted_use(self, who: Authenticated) -> str | None:
        """Remember that the credential was used; for a session's cookie, a cookie with a new pass."""
        token = who.principal.credential.token_id
        if token is not None and not who.pass_id and self.sign_in.token_use is not None:
            self.sign_in.token_use.used(token)
        return self.sign_in.renewed_cookie(who)


def _answer(
    check: CheckRequest, decision: Decision, signer: AssertionSigner, cookie: str | None, *, page: bool
) -> web.Response:
    if decision.allowed and decision.principal is not None:
        response = web.Response(
            headers={
                PRINCIPAL_HEADER: decision.principal.name,
                ASSERTION_HEADER: signer.sign(
                    decision.principal,
                    method=check.method,
                    target=check.target,
                    operation=decision.operation,
                    request_id=check.request_id,
                    any_owner=decision.any_owner,
                ),
                REQUEST_ID_HEADER: check.request_id,
                OPERATION_HEADER: decision.operation,
            }
        )
        if cookie is not None:
            response.headers.add(hdrs.SET_COOKIE, cookie)
        return response
    headers = {"www-authenticate": decision.challenge} if decision.challenge else {}
    if page:
        return web.Response(
            status=decision.status,
            headers=headers | {POLICY_HEADER: POLICY, "cache-control": "no-store"},
            text=problem_page(decision.status, decision.detail),
            content_type="text/html",
        )
    return web.Response(
        status=decision.status,
        headers=headers,
        body=problem_body(decision.status, decision.detail),
        content_type=CONTENT_TYPE,
    )


def _static(request: web.BaseRequest) -> web.Response:
    """Styles and scripts, for everybody: they say nothing, and are no decision that anyone would look for."""
    asset = find_asset(request.raw_path) if request.method == "GET" else None
    if asset is None:
        return web.Response(status=404, body=problem_body(404, "There is no such file."), content_type=CONTENT_TYPE)
    body, headers = asset.answer(request.headers.get(hdrs.ACCEPT_ENCODING, ""))
    return web.Response(body=body, headers=headers)


def _is_navigation(request: web.BaseRequest) -> bool:
    """Whether a person looks at a page with a browser, rather than a program at an API."""
    return (
        request.method == "GET"
        and request.headers.get("sec-fetch-mode") == "navigate"
        and "text/html" in request.headers.get(hdrs.ACCEPT, "")
        and hdrs.AUTHORIZATION not in request.headers
        and request.headers.get(PROXY_HEADER) != NGINX
    )


def _to_login(check: CheckRequest) -> web.Response:
    query = urlencode({"return_to": check.target})
    return web.Response(status=302, headers={"location": f"/auth/login?{query}", "cache-control": "no-store"})


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


def _record(check: CheckRequest, decision: Decision) -> AuditRecord:
    path = check.target.partition("?")[0]
    return AuditRecord(
        event="decision",
        sequence=0,
        time="",
        previous="",
        request_id=check.request_id,
        address=check.address,
        principal=decision.principal.name if decision.principal else "",
        credential=decision.credential,
        method=check.method[:MAX_LOGGED_FIELD_CHARACTERS],
        path=redact(path)[:MAX_LOGGED_PATH_CHARACTERS],
        operation=decision.operation,
        decision="allow" if decision.allowed else "deny",
        status=decision.status,
        reason=decision.reason,
    )
