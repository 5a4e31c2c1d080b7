"""What the edge requires of every connection, sends in every answer, and allows one client to request."""

from __future__ import annotations

import shutil
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.integration.gateway.authorization.test_access_tokens_at_envoy import access_token_of
from tests.integration.gateway.conftest import TRUST_DOMAIN, BackgroundLoop, EdgeAuthority, Gateway
from tests.outside import OutsideAuthority

ORIGIN = "https://dashboard.example.org"


@pytest.fixture(scope="module")
def narrow(edge_authority: EdgeAuthority, background: BackgroundLoop) -> Iterator[Gateway]:
    """A gateway with rate limits, an allowed CORS origin, and TLS 1.2 enabled."""
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    config = GatewayConfig(
        port=0,
        authorization_timeout=5.0,
        address_requests_per_second=1000.0,
        principal_requests_per_second=1.0,
        tls_minimum="1.2",
        cors_origins=(ORIGIN,),
    )
    gateway = Gateway(Home.at(directory), edge_authority, background, config)
    gateway.start()
    yield gateway
    gateway.stop()
    shutil.rmtree(directory)


def test_every_answer_has_the_security_headers(gateway: Gateway) -> None:
    text, _ = access_token_of(gateway, "viewer")
    for reply in (gateway.send("GET", "/v1/jobs", token=text), gateway.send("GET", "/v1/jobs")):
        assert reply.headers["strict-transport-security"].startswith("max-age=")
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["x-frame-options"] == "DENY"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
        assert reply.headers["cache-control"] == "no-store"


def test_only_the_principal_that_sends_too_many_requests_is_rate_limited(narrow: Gateway) -> None:
    greedy, _ = access_token_of(narrow, "viewer", "greedy")
    answers = [narrow.send("GET", "/v1/jobs", token=greedy) for _ in range(40)]
    limited = [reply for reply in answers if reply.status == 429]
    assert limited
    assert limited[0].problem["detail"] == "Too many requests."
    assert answers[0].status == 200
    modest, _ = access_token_of(narrow, "viewer", "modest")
    assert narrow.send("GET", "/v1/jobs", token=modest).status == 200


def test_a_cors_preflight_is_answered_only_for_an_allowed_origin(narrow: Gateway) -> None:
    narrow.reached()

    def preflight(origin: str) -> str | None:
        asked = ("Access-Control-Request-Method", "POST")
        reply = narrow.send("OPTIONS", "/v1/jobs", ("Origin", origin), asked)
        value: str | None = reply.headers["access-control-allow-origin"]
        return value

    assert preflight(ORIGIN) == ORIGIN
    assert preflight("https://evil.example.org") is None
    assert preflight("null") is None
    assert narrow.reached() == []


def test_no_origin_is_allowed_unless_configured(gateway: Gateway) -> None:
    text, _ = access_token_of(gateway, "viewer")
    reply = gateway.send("GET", "/v1/jobs", ("Origin", ORIGIN), token=text)
    assert reply.headers["access-control-allow-origin"] is None


def test_tls_1_2_if_enabled_uses_only_forward_secret_aead_suites(narrow: Gateway) -> None:
    context = narrow.tls()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with narrow.connect(context) as connection:
        name, version, _ = connection.cipher() or ("", "", 0)
    assert version == "TLSv1.2"
    assert name.startswith("ECDHE-")
    assert "GCM" in name or "POLY1305" in name
    context.set_ciphers("ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES128-SHA:AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError), narrow.connect(context):
        pass


def test_hybrid_key_exchange_is_preferred(gateway: Gateway) -> None:
    """Envoy's own TLS (BoringSSL) supports it; here its group id is sent in a bare ClientHello."""
    # A server that prefers X25519MLKEM768 (0x11ec) asks for its share when a client offers it with another's.
    with socket.create_connection((gateway.host, gateway.port), timeout=20) as plain:
        plain.sendall(_client_hello())
        answer = plain.recv(4096)
    retry = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
    assert retry in answer, "no HelloRetryRequest"
    assert bytes.fromhex("00330002") + bytes.fromhex("11ec") in answer


def _client_hello() -> bytes:
    """Return a TLS 1.3 ClientHello (RFC 8446 section 4.1.2).

    It offers the groups X25519MLKEM768 and X25519, and a key share for X25519 only.
    """

    def extension(kind: int, data: bytes) -> bytes:
        return kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data

    def sized(data: bytes, width: int = 2) -> bytes:
        return len(data).to_bytes(width, "big") + data

    name = b"localhost"
    extensions = b"".join(
        [
            extension(0, sized(b"\x00" + sized(name))),
            extension(10, sized(bytes.fromhex("11ec001d"))),
            extension(13, sized(bytes.fromhex("04030804"))),
            extension(43, sized(bytes.fromhex("0304"), 1)),
            extension(51, sized(bytes.fromhex("001d") + sized(b"\x09" + bytes(31)))),
        ]
    )
    body = b"\x03\x03" + bytes(32) + sized(b"", 1) + sized(bytes.fromhex("1301")) + b"\x01\x00" + sized(extensions)
    return b"\x16\x03\x01" + sized(b"\x01" + sized(body, 3))


def test_certificate_of_another_authority_is_refused_in_the_handshake(gateway: Gateway, tmp_path: Path) -> None:
    mallory = OutsideAuthority(tmp_path / "foreign").imitate(str(SpiffeId.process(TRUST_DOMAIN, Role.USER, "mallory")))
    context = gateway.tls()
    context.load_cert_chain(mallory / "chain.pem", mallory / "key.pem")

    def ask() -> None:
        with gateway.connect(context) as connection:
            connection.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
            gateway.read(connection)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask()
    assert gateway.reached() == []


def test_certificate_of_a_user_is_a_credential(gateway: Gateway, tmp_path: Path) -> None:
    """The user is known but has no role in the policy: 403; an unknown caller gets 401."""
    gateway.authority.issue(tmp_path / "user", role=Role.USER)
    context = gateway.tls()
    context.load_cert_chain(tmp_path / "user" / "chain.pem", tmp_path / "user" / "key.pem")
    with gateway.connect(context) as connection:
        connection.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert gateway.read(connection).status == 403
    assert gateway.send("GET", "/v1/jobs").status == 401
    assert gateway.reached() == []
