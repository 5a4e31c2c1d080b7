"""Decides whether a request may go on, independently of the protocol of the proxy's check.

Each check has one decision, one audit record and one answer. :mod:`sluice.gateway.service.ext_authz` translates it to
HTTP, :mod:`sluice.gateway.service.grpc_authz` to gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import msgspec
from aiohttp import hdrs
from prometheus_client import Counter

from sluice.core import REGISTRY, TRACEPARENT_HEADER, TRACING, CachedFile, checked
from sluice.gateway.audit_log import AuditRecord, AuditWriter
from sluice.gateway.authn import Authenticator
from sluice.gateway.authz import RouteTable
from sluice.gateway.credentials import AssertionSigner, Authenticated, Unauthenticated, redact
from sluice.gateway.decision import CheckRequest, Decision, decide
from sluice.gateway.problem import CONTENT_TYPE, problem_body
from sluice.gateway.problem_page import POLICY, POLICY_HEADER, problem_page, wants_page
from sluice.gateway.proxy import PROXY as NGINX, PROXY_HEADER
from sluice.gateway.signin import SignIn
from sluice.pki.assertions import HEADER as ASSERTION_HEADER

DECISIONS = Counter(
    "sluice_auth_decisions_total", "Requests that were decided about.", ["decision", "status"], registry=REGISTRY
)

PRINCIPAL_HEADER = "x-sluice-principal"
"""For Envoy's log; no upstream trusts this header."""
REQUEST_ID_HEADER = "x-sluice-request-id"
OPERATION_HEADER = "x-sluice-operation"
"""The granted operation; Envoy forwards the request only on the route of this operation."""

MAX_LOGGED_PATH_CHARACTERS = 1024
MAX_LOGGED_FIELD_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the proxy.

    Attributes:
        status: 200 when the request may go on, otherwise the status of the refusal.
        headers: headers to add to the allowed request, or headers of the refusal; names in lower case.
        body: the body of the refusal.
        cookie: a value of ``set-cookie`` for the response to an allowed request.
        decision: the decision.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    cookie: str | None = None
    decision: Decision | None = None

    @property
    def allowed(self) -> bool:
        """Whether the request may go on."""
        return self.decision is not None and self.decision.allowed


@dataclass(frozen=True, slots=True)
class CheckService:
    """Decides about requests; reads tokens, policy and routes again when their files change."""

    authenticator: Authenticator
    routes: CachedFile[RouteTable]
    audit: AuditWriter
    sign_in: SignIn
    signer: AssertionSigner

    async def answer(self, check: CheckRequest, headers: Mapping[str, str]) -> Answer:
        """Decide about ``check``. ``headers`` are the request's headers (names in lower case, or case-insensitive).

        Raises:
            SluiceError: no decision is possible now; the request must not go on.
        """
        parent = checked(headers.get(TRACEPARENT_HEADER, ""))
        with TRACING.span("auth decide", parent, request_id=check.request_id) as span:
            who = await self._who(check)
            decision = await self.decide_and_record(check, who)
            span.note(operation=decision.operation, status=decision.status)
            if decision.status == 401 and _is_navigation(check.method, headers):
                return _to_login(check, decision)
            if not decision.allowed or decision.principal is None:
                return _refusal(decision, page=wants_page(headers))
            cookie = self._noted_use(who) if isinstance(who, Authenticated) else None
            added = {
                PRINCIPAL_HEADER: decision.principal.name,
                ASSERTION_HEADER: self.signer.sign(
                    decision.principal,
                    method=check.method,
                    target=check.target,
                    operation=decision.operation,
                    request_id=check.request_id,
                    any_owner=decision.any_owner,
                    policy=decision.policy,
                ),
                REQUEST_ID_HEADER: check.request_id,
                OPERATION_HEADER: decision.operation,
            }
        if span.traceparent:
            added[TRACEPARENT_HEADER] = span.traceparent  # the parent of REST's span
        return Answer(200, added, cookie=cookie, decision=decision)

    async def decide_and_record(self, check: CheckRequest, who: Authenticated | Unauthenticated) -> Decision:
        """Decide, and write the decision to the audit log before it is returned."""
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
        """Note the use of the credential; for a session cookie, returns a cookie with a new access token."""
        token = who.principal.credential.token_id
        if token is not None and not who.access_token_id and self.sign_in.token_use is not None:
            self.sign_in.token_use.used(token)
        return self.sign_in.renewed_cookie(who)


def _refusal(decision: Decision, *, page: bool) -> Answer:
    headers = {"www-authenticate": decision.challenge} if decision.challenge else {}
    if page:
        headers |= {
            "content-type": "text/html; charset=utf-8",
            POLICY_HEADER: POLICY,
            "cache-control": "no-store",
        }
        body = problem_page(decision.status, decision.detail).encode()
    else:
        headers["content-type"] = CONTENT_TYPE
        body = problem_body(decision.status, decision.detail)
    return Answer(decision.status, headers, body, decision=decision)


def _is_navigation(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a person opens a page in a browser, as opposed to a program that calls an API."""
    return (
        method == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and "text/html" in headers.get("accept", "")
        and hdrs.AUTHORIZATION.lower() not in headers
        and headers.get(PROXY_HEADER) != NGINX
    )


def _to_login(check: CheckRequest, decision: Decision) -> Answer:
    query = urlencode({"return_to": check.target})
    headers = {"location": f"/auth/login?{query}", "cache-control": "no-store"}
    return Answer(302, headers, decision=decision)


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
        roles=(decision.principal.roles or msgspec.UNSET) if decision.principal else msgspec.UNSET,
        groups=(decision.principal.groups or msgspec.UNSET) if decision.principal else msgspec.UNSET,
    )
