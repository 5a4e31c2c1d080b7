"""The one decision of the auth service: may this request go on to REST, and as whom? No I/O.

Other credentials (OIDC sessions, JWTs, client certificates) join in :func:`_authenticate`; everything
after it sees only a :class:`~gateway.principal.Principal`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.policy import Policy, Verdict
from gateway.principal import Principal
from gateway.routes import RouteTable, UnsafePath, split_target
from gateway.token_book import Refusal, TokenBook, Unauthenticated

OWNER_CHECKED_BY_REST = frozenset({"jobs.cancel"})
"""Operations that may be granted for one's own jobs: REST compares the owner with the principal it is told."""
MAX_AUTHORIZATION_CHARACTERS = 512
"""Longest ``Authorization`` value that is looked at."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What Envoy tells about the request it holds back.

    ``authorization`` has every value of the header that arrived; more than one is refused.
    """

    method: str
    target: str
    authorization: tuple[str, ...] = ()
    request_id: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with the request.

    Attributes:
        status: 200 to let it go on, else the status of the answer.
        reason: for the audit log.
        detail: for the caller; tells nothing that the caller could not know.
        challenge: value of ``WWW-Authenticate``, for 401.
    """

    status: int
    reason: str
    detail: str = ""
    principal: Principal | None = None
    operation: str = ""
    credential: str = ""
    challenge: str = ""

    @property
    def allowed(self) -> bool:
        """Whether the request may reach REST."""
        return self.status == 200


def decide(
    request: CheckRequest, *, tokens: TokenBook, policy: Policy, routes: RouteTable, realm: str, now: float
) -> Decision:
    """Decide about ``request``; every way through this function that is not the last line refuses it."""
    # 1. Who: nobody unknown learns which routes exist.
    try:
        principal = _authenticate(request.authorization, tokens, now)
    except Unauthenticated as error:
        return _challenge(error, realm)
    # 2. What: a target that only one reading is possible of, and exactly one route for it.
    try:
        path = split_target(request.target)
    except UnsafePath as error:
        return _refuse(400, principal, f"unsafe target: {error}", f"The request was refused: {error}.")
    route = routes.match(request.method, path)
    if route is None:
        return _refuse(404, principal, "no such route", "There is no such resource here.")
    # 3. Whether: some role of this principal must grant the operation, and none deny it.
    ruling = policy.rule(principal, route.operation)
    granted = ruling.verdict is Verdict.ALLOW or (
        ruling.verdict is Verdict.OWN and route.operation in OWNER_CHECKED_BY_REST
    )
    if not granted:
        roles = ", ".join(principal.roles)
        return _refuse(
            403, principal, ruling.reason, f"{principal.name} ({roles}) may not {route.operation}.", route.operation
        )
    return Decision(200, ruling.reason, "", principal, route.operation, principal.credential)


def _authenticate(values: tuple[str, ...], tokens: TokenBook, now: float) -> Principal:
    if not values:
        raise Unauthenticated(Refusal.MISSING)
    if len(values) > 1 or len(values[0]) > MAX_AUTHORIZATION_CHARACTERS:
        raise Unauthenticated(Refusal.MALFORMED)
    scheme, _, credential = values[0].partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated(Refusal.MALFORMED)
    return tokens.authenticate(credential, now=now)


def _challenge(error: Unauthenticated, realm: str) -> Decision:
    """RFC 6750 section 3: no error code when no credential came, ``invalid_token`` otherwise."""
    challenge = f'Bearer realm="{realm}"'
    detail = "This needs a token: Authorization: Bearer slc_... (make one with `sluice token create`)."
    if error.refusal is not Refusal.MISSING:
        challenge += ', error="invalid_token"'
        known = error.refusal in {Refusal.REVOKED, Refusal.EXPIRED}
        detail = f"{error.refusal.value.capitalize()}." if known else "The token is not valid."
    return Decision(401, error.refusal.value, detail, credential=error.credential, challenge=challenge)


def _refuse(status: int, principal: Principal, reason: str, detail: str, operation: str = "") -> Decision:
    return Decision(status, reason, detail, principal, operation, principal.credential)
