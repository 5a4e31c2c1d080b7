"""Hostile requests with a valid token: REST receives nothing in a form other than announced."""

from __future__ import annotations

import socket
import ssl

import pytest

from sluice.gateway.principal import AccessRole
from tests.integration.gateway.conftest import DEADLINE_SECONDS, Gateway, eventually


@pytest.mark.parametrize(
    "header",
    [
        "X-Sluice-Principal",
        "x-sluice-roles",
        "X-Sluice-Assertion",
        "X-SLUICE-REQUEST-ID",
        "x-sluice-anything-new",
        "X-Forwarded-Host",
        "X-Forwarded-Prefix",
        "X-Forwarded-Port",
        "X-Forwarded-Client-Cert",
        "Forwarded",
        "X-Real-IP",
        "True-Client-IP",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-HTTP-Method-Override",
        "X-Method-Override",
        "X-Envoy-Original-Path",
        "X-Envoy-Upstream-Rq-Timeout-Ms",
        "X-Envoy-Retry-On",
        "X-Request-Id",
    ],
)
def test_spoofed_header_is_stripped_or_replaced(gateway: Gateway, header: str) -> None:
    token = gateway.token(AccessRole.VIEWER, "mallory")
    # Twice: removing only the first of several would let the second through.
    reply = gateway.send("GET", "/v1/jobs", (header, "spoofed-1"), (header, "spoofed-2"), token=token)
    assert reply.status == 200
    (seen,) = gateway.reached()
    assert not [name for name, value in seen.headers if "spoofed" in value]
    assert seen.asserted(gateway.home) == ("mallory", ("viewer",))
    assert seen.values("x-sluice-principal") == ["mallory"]


def test_client_address_cannot_be_spoofed(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.VIEWER)
    gateway.send("GET", "/v1/jobs", ("X-Forwarded-For", "203.0.113.9"), token=token)
    (seen,) = gateway.reached()
    assert seen.values("x-forwarded-for") == ["127.0.0.1"]
    assert seen.values("x-forwarded-proto") == ["https"]


def test_a_method_override_header_does_not_replace_a_missing_permission(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.VIEWER)
    for header in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        assert gateway.send("PATCH", "/v1/jobs/42", (header, "GET"), token=token).status == 403
    assert gateway.reached() == []


@pytest.mark.parametrize(
    "target",
    [
        "/v1/overview/;/../jobs;",
        "/v1/overview;/jobs",
        "/v1/overview/.;/jobs",
        "/v1/overview/%252e%252e/jobs",
        "/v1/overview/%2f../jobs",
        "/v1/jobs%2f42",
        "/v1/jobs%5c42",
        "/v1/jobs/%00",
        "/v1/jobs/42;mode=cancel",
        "/v1/jobs/.42",
        "/v1/jobs/42%0d%0aX-Sluice-Principal:root",
        "/v1/jobs/\\..\\..",
        "/v1/jobs/42#/overview",
        "/v1/jobs/" + "a" * 200,
        "/v1/jobs/42?mode=%zz\"'<>",
        "/v1/jobs/caf\xc3\xa9",
        "http://rest.internal/v1/jobs/../jobs;x",
        "v1/jobs",
        "*",
        "/v1/jobs/%u0041",
        "/v1/jobs/" + "a/" * 600,
    ],
)
def test_an_ambiguous_path_is_refused(gateway: Gateway, target: str) -> None:
    reply = gateway.send("GET", target, token=gateway.token(AccessRole.ADMIN))
    assert reply.status in {400, 404}
    assert gateway.reached() == []


@pytest.mark.parametrize(
    ("target", "seen_as"),
    [
        ("/v1/overview/../jobs", "/v1/jobs"),
        ("/v1/overview/%2e%2e/jobs", "/v1/jobs"),
        ("/v1/overview/..;/jobs", "/v1/jobs"),
        ("//v1//jobs", "/v1/jobs"),
        ("/v1/%6aobs", "/v1/jobs"),
    ],
)
def test_a_path_is_normalised_before_it_is_authorized(gateway: Gateway, target: str, seen_as: str) -> None:
    """Auth service and REST see the same spelling: nothing is allowed for one path and used for another."""
    assert gateway.send("GET", target, token=gateway.token(AccessRole.VIEWER)).status == 200
    (seen,) = gateway.reached()
    assert seen.target == seen_as


def test_a_request_with_a_foreign_host_header_does_not_reach_rest(gateway: Gateway) -> None:
    """DNS rebinding: a browser sends the attacker's name."""
    token = gateway.token(AccessRole.ADMIN)
    request = f"GET /v1/jobs HTTP/1.1\r\nHost: rebound.example\r\nAuthorization: Bearer {token}\r\n\r\n"
    assert gateway.raw(request.encode()).status == 404
    assert gateway.reached() == []


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([("X-Long", "a" * 40_000)], id="one of 40 kB"),
        pytest.param([(f"X-{n}", "a" * 1000) for n in range(40)], id="40 kB in many"),
        pytest.param([(f"X-{n}", "a") for n in range(80)], id="80 headers"),
    ],
)
def test_oversize_headers_are_refused(gateway: Gateway, headers: list[tuple[str, str]]) -> None:
    reply = gateway.send("GET", "/v1/jobs", *headers, token=gateway.token(AccessRole.ADMIN))
    assert reply.status == 431
    assert reply.problem["detail"]
    assert gateway.reached() == []


def test_header_with_an_underscore_is_refused(gateway: Gateway) -> None:
    """Some servers read x_sluice_principal as x-sluice-principal."""
    token = gateway.token(AccessRole.ADMIN)
    assert gateway.send("GET", "/v1/jobs", ("X_Sluice_Principal", "root"), token=token).status == 400
    assert gateway.reached() == []


def test_a_body_with_an_oversized_content_length_is_refused_before_it_is_sent(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.SUBMITTER)
    reply = gateway.send("POST", "/v1/jobs", ("Content-Length", str((64 << 20) + 1)), token=token)
    assert reply.status == 413
    assert reply.problem["title"]
    assert gateway.reached() == []


def test_body_of_undeclared_length_is_refused(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.SUBMITTER)
    reply = gateway.send("POST", "/v1/jobs", ("Transfer-Encoding", "chunked"), token=token)
    assert reply.status == 411
    assert "Content-Length" in reply.problem["detail"]
    assert gateway.reached() == []


@pytest.mark.parametrize(
    "framing",
    [
        pytest.param("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", id="CL.TE"),
        pytest.param("Content-Length: 5\r\nContent-Length: 50\r\n", id="two lengths"),
        pytest.param("Content-Length: +5\r\n", id="signed length"),
        pytest.param("Transfer-Encoding: xchunked\r\n", id="unknown coding"),
        pytest.param("Transfer-Encoding : chunked\r\n", id="space before the colon"),
        pytest.param("Transfer-Encoding:\x0bchunked\r\n", id="vertical tab"),
        pytest.param("X: a\r\n Transfer-Encoding: chunked\r\n", id="folded line"),
        pytest.param("X: a\x00b\r\n", id="NUL in a value"),
    ],
)
def test_a_smuggled_second_request_does_not_reach_rest(gateway: Gateway, framing: str) -> None:
    """Two requests in one: REST must never see the second one, for another path."""
    token = gateway.token(AccessRole.ADMIN)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{framing}\r\n"
    smuggled = "0\r\n\r\nPATCH /v1/jobs/42?mode=cancel HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert gateway.raw((head + smuggled).encode("latin-1")).status >= 400
    assert all(seen.method != "PATCH" for seen in gateway.reached())


def test_websocket_upgrade_is_refused(gateway: Gateway) -> None:
    reply = gateway.send(
        "GET", "/v1/jobs", ("Connection", "Upgrade"), ("Upgrade", "websocket"), token=gateway.token(AccessRole.ADMIN)
    )
    assert reply.status >= 400
    assert gateway.reached() == []


def test_connect_is_refused(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.ADMIN)
    request = f"CONNECT rest.sock:80 HTTP/1.1\r\nHost: rest.sock:80\r\nAuthorization: Bearer {token}\r\n\r\n"
    assert gateway.raw(request.encode()).status >= 400
    assert gateway.reached() == []


def test_plaintext_gets_no_http_answer(gateway: Gateway) -> None:
    with socket.create_connection((gateway.host, gateway.port), timeout=DEADLINE_SECONDS) as plain:
        plain.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/" not in plain.recv(4096)
    assert gateway.reached() == []


def test_tls_1_2_is_refused(gateway: Gateway) -> None:
    context = gateway.tls()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="alert protocol version"), gateway.connect(context):
        pass


def test_tls_1_3_is_negotiated_without_tickets_and_with_the_offered_protocol(gateway: Gateway) -> None:
    for offered, chosen in ((("h2", "http/1.1"), "h2"), (("http/1.1",), "http/1.1")):
        with gateway.connect(gateway.tls(alpn=offered)) as connection:
            assert connection.version() == "TLSv1.3"
            assert connection.selected_alpn_protocol() == chosen
    with gateway.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert gateway.read(connection).status == 401
        session = connection.session
        assert session is None or not session.has_ticket


def test_a_large_upload_is_streamed_to_rest_unbuffered(gateway: Gateway) -> None:
    """REST has the first part of the body before the client has sent the second."""
    token, size, first = gateway.token(AccessRole.SUBMITTER), 48 << 20, 24 << 20
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: {size}\r\n\r\n"
    )
    with gateway.connect() as connection:
        connection.sendall(head.encode())
        connection.sendall(bytes(first))
        requests = gateway.upstream.requests
        eventually(lambda: requests and requests[0].body_bytes == first, "the first part is held back")
        assert not requests[0].complete
        connection.sendall(bytes(size - first))
        assert gateway.read(connection).status == 200
    assert requests[0].body_bytes == size
    assert requests[0].complete
