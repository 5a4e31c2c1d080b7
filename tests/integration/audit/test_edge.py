"""The gateway checks: a sound gateway gives no finding, each weak one gives exactly its own finding."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.audit.catalogue import CHECKS
from sluice.audit.model import Kind, Outcome, Report
from sluice.audit.runner import examine
from sluice.audit.subject import EdgeAccess, Subject
from sluice.pki.channels import Channel
from tests.hostile import TestPki
from tests.integration.audit.conftest import OPTIONS, found, listener_at, only
from tests.weak_servers import Answer, http, http_answer, server_context, serving

GOOD, VIEWER = "slc_good", "slc_viewer"
PROBLEM = "content-type: application/problem+json\r\nserver: sluice\r\n"
INTRUSIVE = "EDG-10"
EDGE_CHECKS = [check for check in CHECKS if check.id.startswith("EDG") and check.id != INTRUSIVE]


@dataclass(frozen=True)
class Operation:
    """An operation as it appears in the route table."""

    method: str
    path: str
    operation: str


OPERATIONS = (
    Operation("GET", "/v1/overview", "overview.read"),
    Operation("POST", "/v1/jobs", "jobs.submit"),
    Operation("PATCH", "/v1/jobs/{job_id}", "jobs.cancel"),
)


def honest(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, str, str]:
    """A correct gateway: authenticates the caller, finds the operation and checks the permission."""
    token = headers.get("authorization", "")
    if token not in {f"Bearer {VIEWER}", f"Bearer {GOOD}"}:
        return "401 Unauthorized", PROBLEM + "www-authenticate: Bearer\r\n", '{"status": 401}'
    path = target.replace("0" * 32, "{job_id}")
    operation = next((each for each in OPERATIONS if (each.method, each.path) == (method, path)), None)
    if operation is None:
        return "404 Not Found", PROBLEM, '{"status": 404}'
    if token == f"Bearer {VIEWER}" and operation.operation != "overview.read":
        return "403 Forbidden", PROBLEM, '{"status": 403}'
    return "200 OK", PROBLEM, "{}"


def believes_anybody(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, str, str]:
    """A gateway that requires no authentication for one operation."""
    return ("200 OK", "", "") if target == "/v1/jobs" and method == "POST" else honest(method, target, headers)


def takes_any_token(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, str, str]:
    """A gateway that requires a token but does not validate it."""
    claimed = headers.get("authorization", "")
    weak = claimed == f"Bearer {VIEWER}"
    return honest(method, target, {"authorization": f"Bearer {GOOD}"} if claimed and not weak else headers)


def knows_no_roles(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, str, str]:
    """A gateway that lets every holder of a valid token do everything."""
    weak = headers.get("authorization") == f"Bearer {VIEWER}"
    return honest(method, target, {"authorization": f"Bearer {GOOD}"} if weak else headers)


def refuses_viewers(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, str, str]:
    """A gateway that refuses the viewer's token everywhere, so its refusals prove nothing about roles."""
    return honest(method, target, headers if headers.get("authorization") != f"Bearer {VIEWER}" else {})


def believes_headers(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, str, str]:
    """A gateway that treats everybody as an admin who claims to be one in a request header."""
    admin = headers.get("x-sluice-roles") == "admin"
    return honest(method, target, {"authorization": f"Bearer {GOOD}"} if admin else headers)


def traces(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, str, str]:
    """A gateway that returns the request in its answer to TRACE."""
    return ("200 OK", PROBLEM, str(headers)) if method == "TRACE" else honest(method, target, headers)


def tells(headers: str = "", body: str = "") -> Answer:
    """Return a gateway that refuses correctly but discloses too much in ``headers`` or ``body``."""

    def answer(method: str, target: str, given: Mapping[str, str]) -> tuple[str, str, str]:
        status, more, told = honest(method, target, given)
        return status, more + headers, body or told

    return answer


def audited(pki: TestPki, answer: Answer) -> Report:
    """Audit a gateway that gives these answers; returns the report."""
    directory = pki.edge_server()
    access = EdgeAccess(OPERATIONS, VIEWER, frozenset({"jobs.submit", "jobs.cancel"}), directory / "ca.pem")
    with serving(http(answer), server_context(directory, client=ssl.CERT_NONE)) as address:
        subject = Subject(listener_at(address, Kind.SERVER, Channel.EDGE), OPTIONS, edge=access)
        return examine("a test", [subject], checks=EDGE_CHECKS)


def test_an_honest_gateway_passes_every_edge_check(pki: TestPki) -> None:
    report = audited(pki, honest)
    assert found(report) == set()
    assert {str(result.outcome) for result in report.results} == {"passed"}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(believes_anybody, {"EDG-01", "EDG-02", "EDG-03", "EDG-04"}, id="an operation without credential"),
        pytest.param(takes_any_token, {"EDG-02"}, id="any token"),
        pytest.param(knows_no_roles, {"EDG-03"}, id="no roles"),
        pytest.param(refuses_viewers, {"EDG-03"}, id="refuses even what a viewer may"),
        pytest.param(believes_headers, {"EDG-04"}, id="identity headers believed"),
        pytest.param(traces, {"EDG-05"}, id="TRACE"),
        pytest.param(tells("x-powered-by: Express\r\n"), {"EDG-06"}, id="X-Powered-By"),
        pytest.param(tells("x-envoy-upstream-service-time: 3\r\n"), {"EDG-06"}, id="header of the proxy"),
        pytest.param(tells(body="Traceback (most recent call last):"), {"EDG-07"}, id="stack trace"),
        pytest.param(tells(body="open /home/sluice/x: no such file"), {"EDG-07"}, id="path"),
        pytest.param(tells("set-cookie: session=1; Path=/\r\n"), {"EDG-08"}, id="cookie"),
    ],
)
def test_a_weak_gateway_gives_its_finding(answer: Answer, expected: set[str], pki: TestPki) -> None:
    assert found(audited(pki, answer)) == expected


def test_the_audit_sends_no_token_to_a_gateway_that_its_authority_does_not_certify(
    pki: TestPki, server_directory: Path
) -> None:
    seen: list[str] = []

    def listens(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, str, str]:
        seen.append(headers.get("authorization", ""))
        return honest(method, target, headers)

    access = EdgeAccess(OPERATIONS, VIEWER, frozenset({"jobs.submit"}), pki.edge_server() / "ca.pem")
    with serving(http(listens), server_context(server_directory, client=ssl.CERT_NONE)) as address:
        subject = Subject(listener_at(address, Kind.SERVER, Channel.EDGE), OPTIONS, edge=access)
        report = examine("a test", [subject], checks=only("EDG-02", "EDG-03"))
    assert seen
    assert not any(VIEWER in authorization for authorization in seen)
    assert found(report) == {"EDG-03"}  # what it was meant to prove could not be proven


@pytest.mark.parametrize(("status", "expected"), [("503 Service Unavailable", set()), ("200 OK", {INTRUSIVE})])
def test_a_gateway_that_fails_open_without_its_auth_service_is_found(
    status: str, expected: set[str], pki: TestPki
) -> None:
    away: list[bool] = []

    @contextlib.contextmanager
    def without_auth() -> Iterator[None]:
        away.append(True)
        yield
        away.clear()

    def answer(method: str, target: str, headers: Mapping[str, str]) -> tuple[str, str, str]:
        return (status, PROBLEM, "{}") if away else honest(method, target, headers)

    directory = pki.edge_server()
    access = EdgeAccess(OPERATIONS, VIEWER, ca_file=directory / "ca.pem", without_auth=without_auth)
    with serving(http(answer), server_context(directory, client=ssl.CERT_NONE)) as address:
        subject = Subject(listener_at(address, Kind.SERVER, Channel.EDGE), OPTIONS, edge=access)
        assert found(examine("a test", [subject], checks=only(INTRUSIVE))) == expected
        assert not away
        unasked = Subject(listener_at(address, Kind.SERVER, Channel.EDGE), OPTIONS, edge=EdgeAccess(OPERATIONS))
        (result,) = examine("a test", [unasked], checks=only(INTRUSIVE)).results
        assert result.outcome is Outcome.NOT_EXAMINED


def test_an_open_api_like_that_of_a_stock_flink_is_found() -> None:
    def flink(method: str, target: str, _headers: Mapping[str, str]) -> tuple[str, str, str]:
        known = method == "GET" and target in {"/overview", "/jobs", "/jars"}
        return ("200 OK", "", "{}") if known else ("404 Not Found", "", "")

    with serving(http(flink)) as address:
        report = examine("a test", [Subject(listener_at(address, Kind.HTTP, None), OPTIONS)])
    assert found(report) == {"EDG-09"}
    (finding,) = report.findings()
    assert "/jars (200)" in finding.seen
    assert "web.submit.enable=false" in finding.remedy


def test_an_api_that_demands_a_credential_gives_no_finding() -> None:
    with serving(http_answer("401 Unauthorized")) as address:
        report = examine("a test", [Subject(listener_at(address, Kind.HTTP, None), OPTIONS)])
    assert found(report) == set()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(("404 Not Found", "", ""), set(), id="nothing"),
        pytest.param(("200 OK", "", "{}"), {"LSN-06"}, id="an answer"),
        pytest.param(("404 Not Found", "Set-Cookie: a=b\r\n", ""), {"LSN-06"}, id="a cookie"),
        pytest.param(("301 Moved Permanently", "Location: https://localhost/\r\n", ""), {"LSN-06"}, id="a redirect"),
        pytest.param(("503 Service Unavailable", "", ""), {"LSN-06"}, id="passed on"),
    ],
)
def test_an_acme_challenge_listener_that_answers_anything_else_is_found(
    answer: tuple[str, str, str], expected: set[str]
) -> None:
    with serving(http_answer(*answer)) as address:
        report = examine("a test", [Subject(listener_at(address, Kind.CHALLENGES, None), OPTIONS)])
    assert found(report) == expected
