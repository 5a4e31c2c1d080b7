"""The auth service over HTTP: Envoy's ``ext_authz`` asks it about every request, on a unix socket.

Envoy sends the method and target of the held request with an empty body. The answer 200 carries the
signed assertion for REST; any other answer goes to the caller as it is. A 5xx, no answer, or a late one
makes Envoy refuse the request with 503 (``failure_mode_allow: false``).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import hdrs, web

from gateway.assertion import AssertionSigner
from gateway.audit_chain import AuditRecord
from gateway.audit_log import AuditLog
from gateway.decision import CheckRequest, Decision, decide
from gateway.nginx import PROBLEM_HEADER, PROXY_HEADER, STATUS_HEADER
from gateway.nginx import PROXY as NGINX
from gateway.policy_file import PolicyFile
from gateway.problem import CONTENT_TYPE, problem_body
from gateway.routes import RouteTable
from gateway.snapshot import FileSnapshot
from gateway.token_book import TokenBook, redact
from pki.assertions import HEADER as ASSERTION_HEADER
from pki.errors import SluiceError

_LOG = logging.getLogger(__name__)

PRINCIPAL_HEADER = "x-sluice-principal"
"""For Envoy's own log; nobody behind it believes this header."""
REQUEST_ID_HEADER = "x-sluice-request-id"

MAX_LOGGED_PATH_CHARACTERS = 1024
MAX_LOGGED_FIELD_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class AuthService:
    """Answers one check at a time; reads tokens and routes afresh when their files changed."""

    tokens: FileSnapshot[TokenBook]
    routes: FileSnapshot[RouteTable]
    policy: PolicyFile
    audit: AuditLog
    signer: AssertionSigner
    realm: str
    clock: Callable[[], float] = time.time

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler for aiohttp's low-level server: every method and every path is a check."""
        check = CheckRequest(
            method=request.method,
            # The target as Envoy sent it: aiohttp's own `path` is decoded already.
            target=request.raw_path,
            authorization=tuple(request.headers.getall(hdrs.AUTHORIZATION, ())),
            request_id=request.headers.get("x-request-id", "")[:MAX_LOGGED_FIELD_CHARACTERS],
            address=request.headers.get("x-forwarded-for", "")[:MAX_LOGGED_FIELD_CHARACTERS],
        )
        try:
            decision = self.decide_and_record(check)
            answer = _answer(check, decision, self.signer)
            return for_nginx(answer) if request.headers.get(PROXY_HEADER) == NGINX else answer
        except SluiceError:
            # The caller gets Envoy's own 503, which tells nothing.
            _LOG.exception("refusing request %s: cannot decide", check.request_id)
            return web.Response(status=500)

    def decide_and_record(self, check: CheckRequest) -> Decision:
        """Decide, and have it in the audit log before anyone learns of it."""
        decision = decide(
            check,
            tokens=self.tokens.get(),
            policy=self.policy.get(),
            routes=self.routes.get(),
            realm=self.realm,
            now=self.clock(),
        )
        self.audit.append(_record(check, decision))
        return decision


def _answer(check: CheckRequest, decision: Decision, signer: AssertionSigner) -> web.Response:
    if decision.allowed and decision.principal is not None:
        return web.Response(
            headers={
                PRINCIPAL_HEADER: decision.principal.name,
                ASSERTION_HEADER: signer.sign(
                    decision.principal,
                    method=check.method,
                    path=check.target.partition("?")[0],
                    request_id=check.request_id,
                ),
                REQUEST_ID_HEADER: check.request_id,
            }
        )
    headers = {hdrs.WWW_AUTHENTICATE: decision.challenge} if decision.challenge else {}
    return web.Response(
        status=decision.status,
        headers=headers,
        body=problem_body(decision.status, decision.detail),
        content_type=CONTENT_TYPE,
    )


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
