"""The hostile requests that Envoy refuses, sent to nginx.

The table of requests is the same; it says where and how nginx answers differently.
"""

# ruff: noqa: F401  tests of the shared table, collected here with this folder's gateway

from __future__ import annotations

import json

import pytest

from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.audit_log.verification import read_records
from sluice.gateway.principal import AccessRole
from tests.integration.gateway.authorization.test_door import (
    test_a_request_with_a_valid_token_reaches_rest_as_its_principal,
    test_every_request_is_503_while_the_auth_service_is_down,
    test_every_request_is_503_while_the_token_file_is_damaged,
    test_expired_token_is_401_and_says_so,
    test_missing_permission_is_403,
    test_no_token_is_401_with_a_challenge,
    test_revoked_token_is_refused_at_the_next_request_of_an_open_connection,
    test_right_id_with_another_secret_is_401,
    test_route_that_is_no_longer_published_is_closed_at_once,
    test_submitter_may_submit_and_cancel,
    test_the_token_and_cookies_do_not_reach_rest,
    test_token_in_the_query_is_no_credential,
)
from tests.integration.gateway.conftest import DEADLINE_SECONDS, Gateway, eventually
from tests.integration.gateway.hostile.test_hostile_requests import (
    test_a_body_with_an_oversized_content_length_is_refused_before_it_is_sent,
    test_a_large_upload_is_streamed_to_rest_unbuffered,
    test_a_method_override_header_does_not_replace_a_missing_permission,
    test_a_request_with_a_foreign_host_header_does_not_reach_rest,
    test_a_smuggled_second_request_does_not_reach_rest,
    test_an_ambiguous_path_is_refused,
    test_body_of_undeclared_length_is_refused,
    test_client_address_cannot_be_spoofed,
    test_connect_is_refused,
    test_plaintext_gets_no_http_answer,
    test_spoofed_header_is_stripped_or_replaced,
    test_tls_1_2_is_refused,
    test_tls_1_3_is_negotiated_without_tickets_and_with_the_offered_protocol,
    test_websocket_upgrade_is_refused,
)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/overview/../jobs",
        "/v1/overview/%2e%2e/jobs",
        "/v1/overview/..;/jobs",
        "//v1//jobs",
        "/v1/%6aobs",
        "/v1/./jobs",
        "/v1/jobs/",
    ],
)
def test_path_that_needs_normalising_is_refused(gateway: Gateway, target: str) -> None:
    """Envoy normalises once for everything behind it; nginx would forward a path it has not decided about."""
    assert gateway.send("GET", target, token=gateway.token(AccessRole.ADMIN)).status in {400, 404}
    assert gateway.reached() == []


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([("X-Long", "a" * 40_000)], id="one of 40 kB"),
        pytest.param([(f"X-{n}", "a" * 1000) for n in range(40)], id="40 kB in many"),
    ],
)
def test_oversize_headers_are_refused(gateway: Gateway, headers: list[tuple[str, str]]) -> None:
    reply = gateway.send("GET", "/v1/jobs", *headers, token=gateway.token(AccessRole.ADMIN))
    assert reply.status == 431
    assert reply.problem["detail"]
    assert gateway.reached() == []


def test_header_with_an_underscore_is_removed(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.VIEWER, "mallory")
    assert gateway.send("GET", "/v1/jobs", ("X_Sluice_Principal", "root"), token=token).status == 200
    (seen,) = gateway.reached()
    assert seen.values("x-sluice-principal") == ["mallory"]
    assert not [name for name, value in seen.headers if value == "root"]


def test_unknown_header_does_not_reach_rest(gateway: Gateway) -> None:
    """nginx cannot match header names by a pattern: headers that are not on its list are left out."""
    headers = [("X-Brand-New", "1"), ("X-Sluice-Proxy", "envoy"), ("X-Sluice-Status", "200"), ("Te", "trailers")]
    assert gateway.send("GET", "/v1/jobs", *headers, token=gateway.token(AccessRole.VIEWER)).status == 200
    (seen,) = gateway.reached()
    assert {name.lower() for name, _ in seen.headers} <= {
        *("host", "x-forwarded-for", "x-forwarded-proto", "x-request-id"),
        *("x-sluice-request-id", "x-sluice-principal", "x-sluice-assertion"),
    }


def test_client_cannot_impersonate_the_proxy_with_a_forged_decision(gateway: Gateway) -> None:
    headers = [("X-Sluice-Proxy", "nginx"), ("X-Sluice-Assertion", "forged"), ("X-Sluice-Principal", "root")]
    assert gateway.send("GET", "/v1/jobs", *headers).status == 401
    assert gateway.send("GET", "/.sluice/check", token=gateway.token(AccessRole.ADMIN)).status == 404
    assert gateway.send("GET", "/.sluice/refused/403").status == 404
    assert gateway.send("GET", "/.sluice/444").status == 404
    assert gateway.reached() == []


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/"),
        ("GET", "/v1/jobs/42/unknown"),
        ("DELETE", "/v1/jobs/42"),
        ("HEAD", "/v1/jobs"),
        ("GET", "/V1/jobs"),
    ],
)
def test_unpublished_route_is_refused_to_an_admin_too(gateway: Gateway, method: str, target: str) -> None:
    assert gateway.send(method, target, token=gateway.token(AccessRole.ADMIN)).status == 404
    assert gateway.reached() == []


def test_two_authorization_headers_are_refused_even_when_one_is_good(gateway: Gateway) -> None:
    """Refused by nginx itself, or by the auth service, which gets both headers."""
    good = ("Authorization", f"Bearer {gateway.token(AccessRole.ADMIN)}")
    for headers in ((good, ("Authorization", "Bearer x")), (("Authorization", "Bearer x"), good)):
        reply = gateway.send("GET", "/v1/jobs", *headers)
        assert reply.status in {400, 401}
        assert reply.problem["title"]
    assert gateway.reached() == []


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer slc_000000000000_" + "0" * 64, 401),
        ("Bearer", 401),
        ("Bearer  ", 401),
        ("Basic YWRhOmFkYQ==", 401),
        ("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.", 401),
        ("slc_000000000000_" + "0" * 64, 401),
        ("Bearer " + "a" * 5_000, 401),
        ("Bearer " + "a" * 20_000, 431),
    ],
    ids=["unknown id", "no token", "blank token", "other scheme", "unsigned JWT", "no scheme", "long", "very long"],
)
def test_wrong_token_is_refused(gateway: Gateway, authorization: str, status: int) -> None:
    reply = gateway.send("GET", "/v1/jobs", ("Authorization", authorization))
    assert reply.status == status
    assert reply.problem["detail"]
    assert status != 401 or 'error="invalid_token"' in reply.headers["www-authenticate"]
    assert gateway.reached() == []


def test_trace_method_is_refused_with_a_problem_document(gateway: Gateway) -> None:
    reply = gateway.send("TRACE", "/v1/jobs", token=gateway.token(AccessRole.ADMIN))
    assert reply.status == 405
    assert reply.problem["detail"]
    assert gateway.reached() == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"GET /v1/jobs HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"nonsense\r\n\r\n", id="no HTTP"),
        pytest.param(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", id="long target"),
        pytest.param(b"GET /v1/jobs HTTP/1.1\r\nHost: rebound.example\r\n\r\n", id="foreign host"),
        pytest.param(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n", id="no length"),
        pytest.param(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n", id="no credential"),
    ],
)
def test_error_answers_of_nginx_itself_reveal_nothing(gateway: Gateway, request_bytes: bytes) -> None:
    """The answers contain no HTML, no version, and no path of this machine."""
    reply = gateway.raw(request_bytes)
    assert reply.status >= 400
    assert reply.problem["title"]
    assert reply.headers["server"] == "nginx"
    assert b"<" not in reply.body
    assert b"/tmp" not in reply.body
    assert gateway.reached() == []


def test_request_with_slow_headers_is_aborted(gateway: Gateway) -> None:
    """Slow loris: a request whose headers do not end within nginx's time limit."""
    with gateway.connect() as connection:
        connection.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        connection.settimeout(3 * DEADLINE_SECONDS)
        assert connection.recv(4096) in {b"", b"HTTP/1.1 408"}
    assert gateway.reached() == []


def test_request_refused_by_nginx_itself_is_in_the_audit_log(gateway: Gateway) -> None:
    """nginx's access log is imported; decisions of the auth service have the same request id."""
    decided = gateway.send("GET", "/v1/jobs?secret=hunter2", token=gateway.token(AccessRole.VIEWER, "grace"))
    refused = gateway.send("GET", "/v1/jobs", ("X-Long", "a" * 40_000), token=gateway.token(AccessRole.VIEWER))
    gateway.reached()
    ids = {name: reply.headers["x-request-id"] for name, reply in (("decided", decided), ("refused", refused))}

    def records(name: str) -> list[AuditRecord]:
        log = audit_file(gateway.home).parent
        return sorted((each for each in read_records(log) if each.request_id == ids[name]), key=lambda each: each.event)

    eventually(lambda: len(records("decided")) == 2 and records("refused"), "the requests are not taken over")
    decision, traffic = records("decided")
    assert (decision.event, traffic.event) == ("decision", "traffic")
    assert (traffic.principal, traffic.decision, traffic.status, traffic.path) == ("grace", "allow", 200, "/v1/jobs")
    (alone,) = records("refused")
    assert (alone.event, alone.decision, alone.status) == ("traffic", "deny", 431)
    assert b"hunter2" not in audit_file(gateway.home).read_bytes()


def test_sign_in_requests_are_answered_by_the_auth_service(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.VIEWER, "ida")
    exchanged = gateway.send("POST", "/auth/exchange", token=token, body=b"")
    assert exchanged.status == 200
    assert gateway.send("GET", "/v1/jobs", token=json.loads(exchanged.body)["pass"]).status == 200
    assert gateway.send("POST", "/auth/exchange", body=b"").status == 401
