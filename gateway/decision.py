"""The decision of the auth service: whether a request may go on to REST, and as which principal. No I/O.

Who sends it has been found out before (:mod:`sluice.gateway.authn.authenticator`); here it is a principal or a refusal.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from sluice.gateway.authn import Presented
from sluice.gateway.authz import OWNED_OPERATIONS, Policy, RouteTable, UnsafePath, Verdict, split_target
from sluice.gateway.credentials import SAFE_METHODS, Authenticated, Refusal, Unauthenticated
from sluice.pki.assertions import Principal


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A request that Envoy asks about; ``csrf`` has every value of that header."""

    method: str
    target: str
    presented: Presented = field(default_factory=Presented)
    csrf: tuple[str, ...] = ()
    request_id: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a request.

    Attributes:
        status: 200 to let it go on, else the status of the answer.
        reason: for the audit log.
        detail: for the caller; tells nothing that the caller could not know.
        any_owner: whether it was granted whoever owns what it concerns.
        challenge: value of ``WWW-Authenticate``, for 401.
        policy: the SHA-256 of the policy file that granted it.
    """

    status: int
    reason: str
    detail: str = ""
    principal: Principal | None = None
    operation: str = ""
    credential: str = ""
    challenge: str = ""
    any_owner: bool = False
    policy: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the request may reach REST."""
        return self.status == 200


def decide(
    request: CheckRequest, who: Authenticated | Unauthenticated, *, policy: Policy, routes: RouteTable, realm: str
) -> Decision:
    """Decide about ``request``; every way through this function that is not the last line refuses it."""
    # 1. Who: nobody unknown learns which routes exist.
    if isinstance(who, Unauthenticated):
        return challenge(who, realm)
    principal = who.principal
    # 2. What: a target that only one reading is possible of, and exactly one route for it.
    try:
        path = split_target(request.target)
    except UnsafePath as error:
        return _refuse(400, principal, f"unsafe target: {error}", f"The request was refused: {error}.")
    route = routes.match(request.method, path)
    if route is None:
        return _refuse(404, principal, "no such route", "There is no such resource here.")
    # 3. From where: a browser sends cookies with requests that some other page has made up.
    if not csrf_holds(request.method, request.csrf, who):
        detail = "The request needs the header x-sluice-csrf with the value of the cookie __Host-sluice-csrf."
        return _refuse(403, principal, "cookie without CSRF token", detail, route.operation)
    # 4. Whether: some role of this principal must grant the operation, and none deny it.
    ruling = policy.rule(principal, route.operation)
    granted = ruling.verdict is Verdict.ALLOW or (ruling.verdict is Verdict.OWN and route.operation in OWNED_OPERATIONS)
    if not granted:
        roles = ", ".join(principal.roles) or "no role"
        return _refuse(
            403, principal, ruling.reason, f"{principal.name} ({roles}) may not {route.operation}.", route.operation
        )
    return Decision(
        200,
        ruling.reason,
        principal=principal,
        operation=route.operation,
        credential=principal.credential.id,
        any_owner=ruling.verdict is Verdict.ALLOW,
        policy=policy.source,
    )


def csrf_holds(method: str, given: tuple[str, ...], who: Authenticated) -> bool:
    """Whether the request proves that a page of ours has sent it; only unsafe ones by cookie have to."""
    if who.csrf is None or method in SAFE_METHODS:
        return True
    return len(given) == 1 and bool(who.csrf) and hmac.compare_digest(given[0].encode(), who.csrf.encode())


def challenge(error: Unauthenticated, realm: str) -> Decision:
    """RFC 6750 section 3: no error code when no credential came, ``invalid_token`` otherwise."""
    told = f'Bearer realm="{realm}"'
    detail = "This needs a token: Authorization: Bearer slc_... (`sluice token create`), or sign in: `sluice login`."
    if error.refusal is not Refusal.MISSING:
        told += ', error="invalid_token"'
        known = error.refusal in {Refusal.REVOKED, Refusal.EXPIRED}
        detail = f"{error.refusal.value.capitalize()}." if known else "The token is not valid."
    return Decision(401, error.reason, detail, credential=error.credential, challenge=told)


def _refuse(status: int, principal: Principal, reason: str, detail: str, operation: str = "") -> Decision:
    return Decision(status, reason, detail, principal, operation, principal.credential.id)
