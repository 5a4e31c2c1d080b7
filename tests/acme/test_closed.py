"""What clients get from the listeners for ACME validation if they do not validate.

Over acme-tls/1, they get no HTTP answer. Without TLS, they get nothing but challenges.
"""

from __future__ import annotations

import http.client
import socket
import ssl

import pytest

from sluice.audit import Kind, Options, Subject, examine
from sluice.audit.discovery import declared
from sluice.audit.model import Outcome
from sluice.core import utc_now
from sluice.gateway.acme.challenges import Challenge
from sluice.gateway.acme.store import AcmeStore
from sluice.pki.tls.edge_client import edge_client_context
from sluice.pki.x509 import ACME_IDENTIFIER, ACME_TLS_PROTOCOL
from tests.acme.conftest import NAMES, MakeSite, Site, connected
from tests.integration.gateway.conftest import eventually

TOKEN = "t" * 43
KEY_AUTHORIZATION = f"{TOKEN}.{'k' * 43}"


def careless(*protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    return context


def pending(site: Site, kind: str, name: str = NAMES[0]) -> None:
    """Publish a challenge, as an order does."""
    challenge = Challenge(name=name, kind=kind, token=TOKEN, key_authorization=KEY_AUTHORIZATION)  # type: ignore[arg-type]
    AcmeStore(site.home).challenges.publish((challenge,), utc_now())


def vouches(site: Site, name: str, *protocols: str) -> bool:
    """Return whether a client that offers ``protocols`` gets the certificate of a challenge."""
    leaf = site.shown(name, careless(*protocols))
    return any(each.oid == ACME_IDENTIFIER and each.critical for each in leaf.extensions)


def what_comes(site: Site, name: str | None, *protocols: str) -> tuple[str | None, bytes]:
    """Return the negotiated ALPN protocol, and the answer to an HTTP request sent over the connection."""
    with connected(site.gateway.port, careless(*protocols), name) as connection:
        agreed, answer = connection.selected_alpn_protocol(), b""
        try:
            connection.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: sluice.example.com\r\nConnection: close\r\n\r\n")
            while data := connection.recv(4096):
                answer += data
        except OSError:
            pass
        return agreed, answer


@pytest.fixture
def alpn_site(make_site: MakeSite) -> Site:
    """Provides a started gateway for tls-alpn-01, without an ACME server, so that no order interferes."""
    site = make_site(challenge="tls-alpn-01")
    site.gateway.start()
    return site


@pytest.fixture
def http_site(make_site: MakeSite) -> Site:
    site = make_site(challenge="http-01")
    site.gateway.start()
    return site


def test_a_connection_over_acme_tls_gets_no_http_answer_for_any_server_name(alpn_site: Site) -> None:
    for name in (*NAMES, "other.example.com", "localhost", None):
        for protocols in ((ACME_TLS_PROTOCOL,), ("h2", ACME_TLS_PROTOCOL), ("http/1.1", ACME_TLS_PROTOCOL, "h2")):
            agreed, answer = what_comes(alpn_site, name, *protocols)
            assert (agreed, answer) == (ACME_TLS_PROTOCOL, b""), (name, protocols)
        agreed, answer = what_comes(alpn_site, name, "http/1.1")
        assert agreed == "http/1.1"
        assert answer.startswith(b"HTTP/1.1 40"), answer


def test_the_challenge_certificate_is_served_only_over_acme_tls_and_only_for_its_name(alpn_site: Site) -> None:
    pending(alpn_site, "tls-alpn-01")
    eventually(lambda: vouches(alpn_site, NAMES[0], ACME_TLS_PROTOCOL), "the challenge is not shown")
    for protocols in (("http/1.1",), ("h2",), ("h2", "http/1.1"), ("acme-tls/2",)):
        assert not vouches(alpn_site, NAMES[0], *protocols), protocols
    for name in (NAMES[1], "localhost", "other.example.com"):
        assert not vouches(alpn_site, name, ACME_TLS_PROTOCOL), name
    AcmeStore(alpn_site.home).challenges.withdraw()
    eventually(lambda: not vouches(alpn_site, NAMES[0], ACME_TLS_PROTOCOL), "the challenge is still shown")


def test_a_challenge_for_a_name_that_is_not_configured_is_not_answered(alpn_site: Site) -> None:
    pending(alpn_site, "tls-alpn-01", "other.example.com")
    eventually(lambda: not vouches(alpn_site, "other.example.com", ACME_TLS_PROTOCOL), "it is answered")
    assert not vouches(alpn_site, NAMES[0], ACME_TLS_PROTOCOL)


def test_edge_certificate_is_shown_until_the_server_has_issued_one(alpn_site: Site) -> None:
    edge = alpn_site.gateway.authority.certificate_file
    assert alpn_site.shown() == alpn_site.shown("localhost")
    with connected(alpn_site.gateway.port, edge_client_context(edge), "127.0.0.1") as connection:
        assert connection.version() == "TLSv1.3"


def test_the_plaintext_listener_answers_only_the_exact_http_01_challenge(http_site: Site) -> None:
    pending(http_site, "http-01")
    path = f"/.well-known/acme-challenge/{TOKEN}"

    def ask(method: str, target: str, host: str = NAMES[0]) -> tuple[int, bytes, str]:
        connection = http.client.HTTPConnection("127.0.0.1", http_site.acme.http_port, timeout=10)
        try:
            connection.request(method, target, headers={"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.getheader("content-type") or ""
        finally:
            connection.close()

    eventually(lambda: ask("GET", path)[0] == 200, "the challenge is not answered")
    assert ask("GET", path) == (200, KEY_AUTHORIZATION.encode(), "text/plain")
    assert ask("GET", path, f"{NAMES[0]}:80")[0] == 200
    refused = [
        ("GET", path, NAMES[1]),
        ("GET", path, "127.0.0.1"),
        ("POST", path, NAMES[0]),
        ("GET", path + "/", NAMES[0]),
        ("GET", path + "x", NAMES[0]),
        ("GET", path.upper(), NAMES[0]),
        ("GET", f"/x/..{path}", NAMES[0]),
        ("GET", path.replace("t", "%74"), NAMES[0]),
        ("GET", "/.well-known/acme-challenge/", NAMES[0]),
        ("GET", "/.well-known/acme-challenge/" + "u" * 43, NAMES[0]),
        ("GET", "/", NAMES[0]),
        ("GET", "/v1/jobs", NAMES[0]),
        ("GET", "/login", NAMES[0]),
        ("GET", "/.well-known/openid-configuration", NAMES[0]),
        ("OPTIONS", "*", NAMES[0]),
    ]
    for request in refused:
        status, body, _ = ask(*request)
        assert 400 <= status < 500, (request, status)
        assert KEY_AUTHORIZATION.encode() not in body
    assert not http_site.gateway.reached()


@pytest.mark.parametrize(
    "greeting",
    [
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", id="http-2"),
        pytest.param(b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n", id="connect"),
        pytest.param(b"GET http://127.0.0.1:22/ HTTP/1.1\r\nHost: x\r\n\r\n", id="absolute"),
        pytest.param(
            b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
            id="h2c",
        ),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 10000 + b"\r\n\r\n", id="large"),
        pytest.param(b"\x16\x03\x01\x00\x05hello", id="tls"),
    ],
)
def test_the_plaintext_listener_refuses_other_protocols(http_site: Site, greeting: bytes) -> None:
    with socket.create_connection(("127.0.0.1", http_site.acme.http_port), timeout=20) as plain:
        plain.sendall(greeting)
        answer = b""
        try:
            while data := plain.recv(4096):
                answer += data
        except ConnectionError:
            pass
    assert not answer or answer.split(b" ")[1][:1] == b"4", answer
    assert not http_site.gateway.reached()


def test_slow_client_without_tls_is_disconnected(http_site: Site) -> None:
    with socket.create_connection(("127.0.0.1", http_site.acme.http_port), timeout=60) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        answer = b""
        while data := plain.recv(4096):
            answer += data
    assert not answer or b" 408 " in answer


def test_there_is_no_plaintext_listener_unless_http_01_is_configured(alpn_site: Site) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", alpn_site.acme.http_port), timeout=5)


def test_the_audit_knows_and_checks_the_plaintext_challenge_listener(http_site: Site) -> None:
    pending(http_site, "http-01")
    (listener,) = [each for each in declared(http_site.home) if each.kind is Kind.CHALLENGES]
    assert listener.address == ("127.0.0.1", http_site.acme.http_port)
    report = examine("a test", [Subject(listener, Options())])
    assert [(each.check, each.outcome) for each in report.results if each.check == "LSN-06"] == [
        ("LSN-06", Outcome.PASSED)
    ]
    assert not report.findings()
