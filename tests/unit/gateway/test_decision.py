"""From an intercepted request to an answer, without Envoy and without a socket."""

from __future__ import annotations

import datetime as dt

import pytest

from sluice.gateway.authz.operations import known_operations
from sluice.gateway.authz.policy_file import DEFAULT_POLICY, read_policy
from sluice.gateway.authz.routes import Route, RouteTable
from sluice.gateway.credentials.api_tokens import Refusal, TokenBook, Unauthenticated
from sluice.gateway.credentials.authenticated import Authenticated
from sluice.gateway.decision import CheckRequest, Decision, decide
from sluice.gateway.principal import AccessRole
from sluice.pki.assertions.principal import Credential, Principal
from sluice.runtime.rest_server.routes import published_routes

NOW = 1_800_000_000.0
ROUTES = RouteTable(
    [Route("GET", "/v1/jobs", "jobs.list"), Route("POST", "/v1/jobs", "jobs.submit"), Route("GET", "/v1/x", "x.y")]
)
BOOK, RECORD, TOKEN = TokenBook().mint("ada", AccessRole.VIEWER, ttl=dt.timedelta(hours=1), now=NOW)
POLICY = read_policy(
    DEFAULT_POLICY,
    known_operations([Route(each["method"], each["path"], each["operation"]) for each in published_routes()]),
)
BEARER = f"Bearer {TOKEN}"


def shown(*authorization: str, now: float = NOW) -> Authenticated | Unauthenticated:
    """Return who these values of the header authenticate, by tokens alone."""
    if not authorization:
        return Unauthenticated(Refusal.MISSING)
    try:
        principal = BOOK.authenticate(authorization[0].removeprefix("Bearer "), now=now)
    except Unauthenticated as error:
        return error
    return Authenticated(principal, NOW + 3600)


def decided(*authorization: str, method: str = "GET", target: str = "/v1/jobs", now: float = NOW) -> Decision:
    who = shown(*authorization, now=now)
    return decide(CheckRequest(method, target), who, policy=POLICY, routes=ROUTES, realm="test")


def test_an_authorized_request_is_granted_with_its_audit_details() -> None:
    decision = decided(BEARER)
    assert decision.allowed
    assert decision.principal is not None
    assert (decision.principal.name, decision.operation, decision.credential) == ("ada", "jobs.list", RECORD.id)


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        pytest.param(decided(), 401, id="no credential"),
        pytest.param(decided(BEARER, now=NOW + 3600), 401, id="expired"),
        pytest.param(decided(BEARER, target="/v1//jobs"), 400, id="unsafe path"),
        pytest.param(decided(BEARER, target="/v1/nothing"), 404, id="no route"),
        pytest.param(decided(BEARER, method="DELETE"), 404, id="no such method"),
        pytest.param(decided(BEARER, method="POST"), 403, id="no permission"),
        pytest.param(decided(BEARER, target="/v1/x"), 403, id="operation unknown to the policy"),
        pytest.param(decided(target="/v1//jobs"), 401, id="unsafe path, nobody"),
        pytest.param(decided(target="/v1/nothing"), 401, id="no route, nobody"),
    ],
)
def test_unauthenticated_unauthorized_and_unknown_requests_are_refused(decision: Decision, status: int) -> None:
    assert not decision.allowed
    assert decision.status == status
    assert decision.reason
    assert decision.detail
    assert bool(decision.challenge) is (status == 401)
    assert TOKEN not in f"{decision}"


def test_expired_token_is_named_in_the_audit_log_but_a_forged_one_is_not() -> None:
    assert decided(BEARER, now=NOW + 3600).credential == RECORD.id
    assert decided(f"Bearer slc_{RECORD.id}_{'0' * 64}").credential == ""


def with_cookie(method: str, *given: str, csrf: str = "c5rf") -> Decision:
    ada = Authenticated(Principal("ada", ("admin",), "session", Credential("session", "5e55")), NOW + 60, csrf=csrf)
    return decide(CheckRequest(method, "/v1/jobs", csrf=given), ada, policy=POLICY, routes=ROUTES, realm="test")


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        pytest.param(with_cookie("GET"), 200, id="reading needs none"),
        pytest.param(with_cookie("POST", "c5rf"), 200, id="the session's own"),
        pytest.param(with_cookie("POST"), 403, id="none"),
        pytest.param(with_cookie("POST", ""), 403, id="empty"),
        pytest.param(with_cookie("POST", "other"), 403, id="another"),
        pytest.param(with_cookie("POST", "c5rf", "c5rf"), 403, id="two headers"),
        pytest.param(with_cookie("POST", "", csrf=""), 403, id="a session without one"),
        pytest.param(with_cookie("POST", "\u00e4"), 403, id="not ASCII"),
    ],
)
def test_a_changing_request_with_a_cookie_needs_the_csrf_token(decision: Decision, status: int) -> None:
    assert decision.status == status


@pytest.mark.parametrize(("role", "any_owner"), [("submitter", False), ("admin", True)])
def test_the_decision_says_whether_the_role_covers_jobs_of_any_owner(role: str, any_owner: bool) -> None:
    who = Authenticated(Principal("ada", (role,), "token", Credential("token", "id")), NOW + 60)
    routes = RouteTable([Route("PATCH", "/v1/jobs/{id}", "jobs.cancel")])
    decision = decide(CheckRequest("PATCH", "/v1/jobs/42"), who, policy=POLICY, routes=routes, realm="test")
    assert (decision.allowed, decision.any_owner) == (True, any_owner)
