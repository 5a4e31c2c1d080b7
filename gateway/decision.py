"""Decides whether a request may go on to REST, and as which principal. No I/O.

:mod:`sluice.gateway.authn.authenticator` authenticates the caller first. This module gets its result: a principal or a
refusal.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from sluice.gateway.authn import PresentedCredentials
from sluice.gateway.authz import OWNED_OPERATIONS, Policy, RouteTable, UnsafePath, Verdict, split_target
from sluice.gateway.credentials import SAFE_METHODS, Authenticated, Refusal, Unauthenticated
from sluice.pki.assertions import Principal


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A request that Envoy wants checked; ``csrf`` holds all values of the CSRF header."""

    method: str
    target: str
    presented: PresentedCredentials = field(default_factory=PresentedCredentials)
    csrf: tuple[str, ...] = ()
    request_id: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a request.

    Attributes:
        status: 200 to allow the request, otherwise the status of the response.
        reason: for the audit log.
        detail: for the caller; reveals nothing that the caller must not know.
        any_owner: whether the operation is granted on resources of every owner, not only on the caller's own.
        challenge: value of ``WWW-Authenticate``, for 401.
        policy: the SHA-256 of the policy file that granted the request.
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
    """Decide about ``request``. Only the last line of this function allows it; every earlier return refuses it."""
    # 1. Who: an unauthenticated caller must not learn which routes exist.
    if isinstance(who, Unauthenticated):
        return challenge(who, realm)
    principal = who.principal
    # 2. What: the target must be unambiguous and match exactly one route.
    try:
        path = split_target(request.target)
    except UnsafePath as error:
        return _refuse(400, principal, f"unsafe target: {error}", f"The request was refused: {error}.")
    route = routes.match(request.method, path)
    if route is None:
        return _refuse(404, principal, "no such route", "There is no such resource here.")
    # 3. From where: a browser also sends cookies with requests that another site's page forged.
    if not csrf_holds(request.method, request.csrf, who):
        detail = "The request needs the header x-sluice-csrf with the value of the cookie __Host-sluice-csrf."
        return _refuse(403, principal, "cookie without CSRF token", detail, route.operation)
    # 4. Whether: a role of the principal must grant the operation, and no role may deny it.
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
    """Whether the request carries its CSRF token. Only unsafe methods with a cookie as credential need one."""
    if who.csrf is None or method in SAFE_METHODS:
        return True
    return len(given) == 1 and bool(who.csrf) and hmac.compare_digest(given[0].encode(), who.csrf.encode())


def challenge(error: Unauthenticated, realm: str) -> Decision:
    """The 401 decision. RFC 6750 section 3: no error code without a credential, ``invalid_token`` otherwise."""
    value = f'Bearer realm="{realm}"'
    detail = "This needs a token: Authorization: Bearer slc_... (`sluice token create`), or sign in: `sluice login`."
    if error.refusal is not Refusal.MISSING:
        value += ', error="invalid_token"'
        known = error.refusal in {Refusal.REVOKED, Refusal.EXPIRED}
        detail = f"{error.refusal.value.capitalize()}." if known else "The token is not valid."
    return Decision(401, error.reason, detail, credential=error.credential, challenge=value)


def _refuse(status: int, principal: Principal, reason: str, detail: str, operation: str = "") -> Decision:
    return Decision(status, reason, detail, principal, operation, principal.credential.id)
