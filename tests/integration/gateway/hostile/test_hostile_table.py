"""The table of hostile requests: the real Envoy refuses each of them, and none reaches REST.

The tests check what reached the upstream. Envoy answers with a problem document that discloses nothing
about what is behind it.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h2.config
import h2.connection
import h2.events
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sluice.gateway.credentials.signing_keys import AccessTokenKeys
from sluice.gateway.principal import AccessRole
from tests.integration.gateway.authorization.test_access_tokens_at_envoy import access_token_of
from tests.integration.gateway.conftest import DEADLINE_SECONDS, Gateway, Recorded, Reply

LEAKS = (b"envoy", b"rbac", b"jwt", b"jwks", b"upstream", b"python", b"aiohttp", b"traceback", b"sock")
"""Words that would disclose what is behind the gateway."""


def refused(gateway: Gateway, request: bytes, statuses: Sequence[int]) -> None:
    """Send exactly these bytes; check the status and that nothing reached REST.

    The status must be one of ``statuses``; 0 means that the connection was closed without an answer.
    """
    try:
        reply = gateway.raw(request)
    except (http.client.HTTPException, ConnectionError):
        status = 0
    else:
        status = reply.status
        tells_nothing(reply)
    assert status in statuses
    assert gateway.reached() == []


def tells_nothing(reply: Reply) -> None:
    """Check that a refusal discloses nothing and has the same form whichever component sent it."""
    assert reply.status >= 400
    assert reply.problem.keys() <= {"type", "title", "status", "detail"}
    assert not [word for word in LEAKS if word in reply.body.lower()]
    assert reply.headers["server"] == "sluice"
    assert not [name for name in reply.headers if name.lower().startswith(("x-envoy", "x-sluice", "x-powered"))]


def head(method: str, target: str, *headers: str) -> bytes:
    """A request without a body."""
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode("latin-1")


# --- credentials -----------------------------------------------------------------------------------------------------

Claims = dict[str, Any]


def good(gateway: Gateway, role: str = "admin") -> tuple[Claims, dict[str, Any], AccessTokenKeys]:
    """Return the claims and header of a valid access token, and the signing keys."""
    text, _ = access_token_of(gateway, role)
    keys = AccessTokenKeys.of(gateway.home)
    keys.load()
    return jwt.decode(text, options={"verify_signature": False}), jwt.get_unverified_header(text), keys


def signed(gateway: Gateway, change: Callable[[Claims], Claims]) -> str:
    """Return an access token with changed claims and a valid signature."""
    claims, header, keys = good(gateway)
    return jwt.encode(change(claims), keys.signing(time.time()).private, algorithm="ES256", headers=header)


def _part(document: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


def unsigned(gateway: Gateway, algorithm: str) -> str:
    claims, header, _ = good(gateway)
    return f"{_part(header | {'alg': algorithm})}.{_part(claims)}."


def with_public_key_as_secret(gateway: Gateway, form: str) -> str:
    """Return a token for a key confusion attack: its HMAC key is the public key."""
    claims, header, keys = good(gateway)
    public = keys.signing(time.time()).private.public_key()
    secret = {
        "pem": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "jwks": json.dumps(keys.jwks()).encode(),
        "point": public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint),
    }[form]
    body = f"{_part(header | {'alg': 'HS256'})}.{_part(claims)}"
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = algorithm.sign(body.encode(), secret)
    return f"{body}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def by_another_key(gateway: Gateway, **header: object) -> str:
    claims, known, _ = good(gateway)
    key = ec.generate_private_key(ec.SECP256R1())
    if "jwk" in header:
        header["jwk"] = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return jwt.encode(claims, key, algorithm="ES256", headers={**known, **header})


def by_rsa(gateway: Gateway) -> str:
    claims, header, _ = good(gateway)
    key = rsa.generate_private_key(65537, 2048)
    return jwt.encode(claims, key, algorithm="RS256", headers=header | {"alg": "RS256"})


def tampered(gateway: Gateway) -> str:
    """Return the access token of a viewer with the role changed to admin and the old signature."""
    text, _ = access_token_of(gateway, "viewer")
    first, payload, signature = text.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return f"{first}.{_part(claims | {'role': 'admin', 'roles': ['admin']})}.{signature}"


def cut(gateway: Gateway) -> str:
    return access_token_of(gateway, "admin")[0][:-8]


CREDENTIALS: dict[str, Callable[[Gateway], str]] = {
    "none": lambda _: "",
    "empty": lambda _: "Authorization: ",
    "scheme alone": lambda _: "Authorization: Bearer",
    "basic": lambda _: "Authorization: Basic YWRhOmFkYQ==",
    "unknown token": lambda _: "Authorization: Bearer slc_0000000000000000_nobody",
    "expired token": lambda g: f"Authorization: Bearer {g.expired_token()}",
    "expired": lambda g: f"Authorization: Bearer {signed(g, lambda c: c | {'exp': c['iat'] - 60})}",
    "without an end": lambda g: "Authorization: Bearer " + signed(g, lambda c: {k: c[k] for k in c if k != "exp"}),
    "not yet": lambda g: f"Authorization: Bearer {signed(g, lambda c: c | {'nbf': c['iat'] + 3600})}",
    "wrong audience": lambda g: f"Authorization: Bearer {signed(g, lambda c: c | {'aud': 'sluice-rest'})}",
    "no audience": lambda g: "Authorization: Bearer " + signed(g, lambda c: {k: c[k] for k in c if k != "aud"}),
    "wrong issuer": lambda g: f"Authorization: Bearer {signed(g, lambda c: c | {'iss': 'sluice-gateway.evil'})}",
    "no issuer": lambda g: "Authorization: Bearer " + signed(g, lambda c: {k: c[k] for k in c if k != "iss"}),
    "alg none": lambda g: f"Authorization: Bearer {unsigned(g, 'none')}",
    "alg NoNe": lambda g: f"Authorization: Bearer {unsigned(g, 'NoNe')}",
    "alg without a signature": lambda g: f"Authorization: Bearer {unsigned(g, 'ES256')}",
    "key confusion, PEM": lambda g: f"Authorization: Bearer {with_public_key_as_secret(g, 'pem')}",
    "key confusion, JWKS": lambda g: f"Authorization: Bearer {with_public_key_as_secret(g, 'jwks')}",
    "key confusion, point": lambda g: f"Authorization: Bearer {with_public_key_as_secret(g, 'point')}",
    "another key under our kid": lambda g: f"Authorization: Bearer {by_another_key(g)}",
    "unknown kid": lambda g: f"Authorization: Bearer {by_another_key(g, kid='0')}",
    "kid that is a path": lambda g: f"Authorization: Bearer {by_another_key(g, kid='../../dev/null')}",
    "key in the token": lambda g: f"Authorization: Bearer {by_another_key(g, jwk={})}",
    "key at an address": lambda g: f"Authorization: Bearer {by_another_key(g, jku='https://evil.test/keys')}",
    "RSA": lambda g: f"Authorization: Bearer {by_rsa(g)}",
    "tampered role": lambda g: f"Authorization: Bearer {tampered(g)}",
    "cut signature": lambda g: f"Authorization: Bearer {cut(g)}",
    "another scheme's name": lambda g: f"Authorization: Token {access_token_of(g, 'admin')[0]}",
    "two headers": lambda g: f"Authorization: Bearer {access_token_of(g, 'viewer')[0]}\r\nAuthorization: Bearer slc_x",
    "two credentials": lambda g: (
        f"Authorization: Bearer {access_token_of(g, 'viewer')[0]}\r\n"
        f"Cookie: __Host-sluice-pass={access_token_of(g, 'admin')[0]}"
    ),
    "two cookies": lambda g: (
        f"Cookie: __Host-sluice-pass={access_token_of(g, 'viewer')[0]}; "
        f"__Host-sluice-pass={access_token_of(g, 'admin')[0]}"
    ),
    "expired cookie": lambda g: f"Cookie: __Host-sluice-pass={signed(g, lambda c: c | {'exp': c['iat'] - 60})}",
    "another cookie's name": lambda g: f"Cookie: sluice-pass={access_token_of(g, 'admin')[0]}",
    "access token in a header of ours": lambda g: f"X-Sluice-Assertion: {access_token_of(g, 'admin')[0]}",
    "principal in a header": lambda _: (
        "X-Sluice-Principal: root\r\nX-Sluice-Operation: jobs.list\r\nX-Sluice-Role: admin"
    ),
    "certificate in a header": lambda _: f"X-Forwarded-Client-Cert: Hash={'0' * 64};URI=spiffe://gateway.test/user/ada",
}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_missing_or_invalid_credential_is_refused(gateway: Gateway, name: str) -> None:
    line = CREDENTIALS[name](gateway)
    refused(gateway, head("GET", "/v1/jobs", *([line] if line else [])), [400, 401, 403])


def test_an_access_token_in_the_query_string_is_not_a_credential(gateway: Gateway) -> None:
    text, _ = access_token_of(gateway, "admin")
    refused(gateway, head("GET", f"/v1/jobs?access_token={text}"), [400, 401])


@pytest.mark.parametrize("csrf", ["", "X-Sluice-Csrf: ", "X-Sluice-Csrf: guessed", "Origin: https://localhost"])
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_stolen_cookie_without_its_csrf_token_can_change_nothing(gateway: Gateway, method: str, csrf: str) -> None:
    text, _ = access_token_of(gateway, "admin")
    target = "/v1/jobs" if method == "POST" else "/v1/jobs/42?mode=cancel"
    lines = [f"Cookie: __Host-sluice-pass={text}", "Content-Length: 0", *([csrf] if csrf else [])]
    refused(gateway, head(method, target, *lines), [401, 403])


@pytest.mark.parametrize(
    ("method", "target"), [("POST", "/v1/jobs"), ("PATCH", "/v1/jobs/42?mode=cancel"), ("DELETE", "/v1/jobs/42")]
)
@pytest.mark.parametrize(
    "spoofed",
    [
        "X-Sluice-Operation: jobs.submit",
        "X-Sluice-Roles: admin",
        "X-HTTP-Method-Override: GET",
        "X-Original-URL: /v1/jobs",
        "X-Envoy-Original-Path: /auth/login",
        "X-Sluice-Decision: allow",
    ],
)
def test_a_viewer_gains_no_permission_by_spoofed_headers(
    gateway: Gateway, method: str, target: str, spoofed: str
) -> None:
    text, _ = access_token_of(gateway, "viewer")
    lines = [f"Authorization: Bearer {text}", "Content-Length: 0", spoofed]
    refused(gateway, head(method, target, *lines), [401, 403, 404])


# --- paths, sizes, methods, hosts ------------------------------------------------------------------------------------

PATHS = [
    "/v1/overview/;/../jobs;",
    "/v1/overview;/jobs",
    "/v1/overview/.;/jobs",
    "/v1/jobs;/42",
    "/v1/overview/%252e%252e/jobs",
    "/v1/overview/%2f../jobs",
    "/v1/jobs%2f42",
    "/v1/jobs%5c42",
    "/v1/jobs%2F..%2Foverview",
    "/v1/jobs/%00",
    "/v1/jobs/42;mode=cancel",
    "/v1/jobs/.42",
    "/v1/jobs/\\..\\..",
    "/v1/jobs/42%0d%0aX-Sluice-Principal:root",
    "/v1/jobs/42#/overview",
    "/v1/jobs/" + "a" * 200,
    "/v1/jobs/" + "a/" * 600,
    "/v1/jobs?" + "q=" + "a" * 9000,
    "/v1/jobs?mode=%zz\"'<>",
    "/v1/jobs?a\\b",
    "/v1/jobs/caf\xc3\xa9",
    "/v1/jobs/%u0041",
    "/auth/../v1/jobs;x",
    "/v1/jobs/%c0%af",
    "v1/jobs",
    "*",
    "/auth%2f../v1/jobs",
    "http://rest.internal/v1/jobs",
    "http://localhost@evil.test/v1/jobs",
]


@pytest.mark.parametrize("target", PATHS)
def test_an_ambiguous_path_is_refused_even_with_an_access_token(gateway: Gateway, target: str) -> None:
    text, _ = access_token_of(gateway, "admin")
    refused(gateway, head("GET", target, f"Authorization: Bearer {text}"), [400, 403, 404])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["X-Long: " + "a" * 40_000], id="a header of 40 kB"),
        pytest.param([f"X-{n}: {'a' * 1000}" for n in range(40)], id="40 kB of headers"),
        pytest.param([f"X-{n}: a" for n in range(80)], id="80 headers"),
        pytest.param(["Cookie: " + "a=b; " * 8_000], id="40 kB of cookies"),
        pytest.param([f"Content-Length: {2**40}"], id="a terabyte announced"),
        pytest.param([f"Content-Length: {'9' * 40}"], id="a length that no integer holds"),
        pytest.param(["X-" + "n" * 40_000 + ": a"], id="a name of 40 kB"),
    ],
)
def test_an_oversized_request_is_refused_even_with_an_access_token(gateway: Gateway, lines: list[str]) -> None:
    text, _ = access_token_of(gateway, "admin")
    refused(gateway, head("POST", "/v1/jobs", f"Authorization: Bearer {text}", *lines), [0, 400, 413, 431])


@pytest.mark.parametrize("method", ["TRACE", "TRACK", "CONNECT", "OPTIONS", "get", "PROPFIND", "G" * 5000])
def test_method_that_no_route_has_is_refused(gateway: Gateway, method: str) -> None:
    text, _ = access_token_of(gateway, "admin")
    refused(gateway, head(method, "/v1/jobs", f"Authorization: Bearer {text}"), [0, 400, 403, 404, 405, 431])


@pytest.mark.parametrize(
    "hosts",
    [
        pytest.param("Host: rebound.example\r\n", id="foreign"),
        pytest.param("", id="none"),
        pytest.param("Host: localhost\r\nHost: evil.test\r\n", id="two"),
        pytest.param("Host: localhost, evil.test\r\n", id="list"),
        pytest.param("Host: localhost.evil.test\r\n", id="longer"),
        pytest.param("Host: user@localhost\r\n", id="with a user"),
        pytest.param("Host: \r\n", id="empty"),
    ],
)
def test_a_request_with_a_foreign_host_header_is_refused(gateway: Gateway, hosts: str) -> None:
    text, _ = access_token_of(gateway, "admin")
    request = f"GET /v1/jobs HTTP/1.1\r\n{hosts}Authorization: Bearer {text}\r\n\r\n"
    refused(gateway, request.encode(), [400, 403, 404])


@pytest.mark.parametrize("role", [None, "viewer", "admin"])
@pytest.mark.parametrize("protocol", ["websocket", "spdy/3.1", "websocket, h2c"])
def test_upgrade_is_refused(gateway: Gateway, role: str | None, protocol: str) -> None:
    lines = ["Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    if role:
        lines.append(f"Authorization: Bearer {access_token_of(gateway, role)[0]}")
    refused(gateway, head("GET", "/v1/jobs", *lines), [400, 401, 403, 404])


# --- HTTP/1.1 framing ------------------------------------------------------------------------------------------------

SMUGGLED = "GET /v1/overview HTTP/1.1\r\nHost: localhost\r\nX-Smuggled: yes\r\n\r\n"
FRAMINGS = {
    "CL.TE": f"Content-Length: {5 + len(SMUGGLED)}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}",
    "TE.CL": f"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{len(SMUGGLED):x}\r\n{SMUGGLED}\r\n0\r\n\r\n",
    "TE.TE, second unknown": f"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n{SMUGGLED}",
    "TE.TE, list": f"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{SMUGGLED}",
    "TE.TE, twice": f"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}",
    "TE in quotes": f'Transfer-Encoding: "chunked"\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{SMUGGLED}',
    "TE after a vertical tab": f"Transfer-Encoding:\x0bchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{SMUGGLED}",
    "space before the colon": f"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{SMUGGLED}",
    "TE with a NUL": f"Transfer-Encoding: chunked\x00\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{SMUGGLED}",
    "two lengths": f"Content-Length: 0\r\nContent-Length: {len(SMUGGLED)}\r\n\r\n{SMUGGLED}",
    "list of lengths": f"Content-Length: 0, {len(SMUGGLED)}\r\n\r\n{SMUGGLED}",
    "signed length": f"Content-Length: +5\r\n\r\n{SMUGGLED}",
    "negative length": f"Content-Length: -1\r\n\r\n{SMUGGLED}",
    "hexadecimal length": f"Content-Length: 0x10\r\n\r\n{SMUGGLED}",
    "length with a space": f"Content-Length: 1 0\r\n\r\n{SMUGGLED}",
    "bare LF between headers": f"Content-Length: 0\nX: a\nTransfer-Encoding: chunked\r\n\r\n{SMUGGLED}",
    "bare CR in a value": f"X: a\rContent-Length: 5\r\n\r\n{SMUGGLED}",
    "folded line": f"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}",
    "NUL in a value": f"X: a\x00b\r\n\r\n{SMUGGLED}",
    "chunk size that overflows": f"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\n{SMUGGLED}",
    "header without a name": f": chunked\r\n\r\n{SMUGGLED}",
    "header without a colon": f"Transfer-Encoding\r\n\r\n{SMUGGLED}",
}


@pytest.mark.parametrize("name", FRAMINGS)
def test_a_request_that_hides_a_second_request_is_refused(gateway: Gateway, name: str) -> None:
    """The first request gets an error, and the connection ends before the second one is read."""
    text, _ = access_token_of(gateway, "admin")
    opening = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n"
    refused(gateway, (opening + FRAMINGS[name]).encode("latin-1"), [0, 400, 411, 501])


@pytest.mark.parametrize(
    "line",
    ["GET /v1/jobs", "GET /v1/jobs HTTP/0.9", "GET /v1/jobs HTTP/1.2.3", "\x16\x03\x01"],
)
def test_a_malformed_request_line_is_refused(gateway: Gateway, line: str) -> None:
    text, _ = access_token_of(gateway, "admin")
    request = f"{line}\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n\r\n"
    refused(gateway, request.encode("latin-1"), [0, 400, 426])


ONE_READING = {
    "folded length": f"GET /v1/jobs HTTP/1.1\r\nContent-Length:\r\n {len(SMUGGLED)}\r\n@\r\n{SMUGGLED}",
    "two spaces": "GET  /v1/jobs HTTP/1.1\r\n@\r\n",
    "tabulator": "GET\t /v1/jobs HTTP/1.1\r\n@\r\n",
    "h2c": "GET /v1/jobs HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n@\r\n",
}


@pytest.mark.parametrize("name", ONE_READING)
def test_a_request_that_is_parsed_leniently_reaches_rest_in_one_unambiguous_form(gateway: Gateway, name: str) -> None:
    """Servers may accept these (RFC 9112 sections 3 and 5.2, RFC 9110 section 7.8); none of their ambiguity reaches
    REST.
    """
    text, _ = access_token_of(gateway, "admin")
    request = ONE_READING[name].replace("@", f"Host: localhost\r\nAuthorization: Bearer {text}\r\n")
    assert gateway.raw(request.encode()).status == 200
    (seen,) = gateway.reached()
    assert (seen.method, seen.target) == ("GET", "/v1/jobs")
    assert seen.values("x-smuggled") == seen.values("upgrade") == seen.values("http2-settings") == []
    assert seen.body_bytes == (len(SMUGGLED) if "length" in name else 0)


# --- HTTP/2 ----------------------------------------------------------------------------------------------------------

Fields = list[tuple[str, str]]


def usual(text: str, method: str = "GET", path: str = "/v1/jobs") -> Fields:
    return [
        (":method", method),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
        ("authorization", f"Bearer {text}"),
    ]


def swapped(fields: Fields, name: str, value: str) -> Fields:
    return [(key, value if key == name else old) for key, old in fields]


H2: dict[str, Callable[[str], Fields]] = {
    "pseudo header after others": lambda t: [*usual(t)[1:], (":method", "GET")],
    "two paths": lambda t: [*usual(t)[:4], (":path", "/v1/overview"), *usual(t)[4:]],
    "two methods": lambda t: [(":method", "POST"), *usual(t)],
    "no path": lambda t: [field for field in usual(t) if field[0] != ":path"],
    "empty path": lambda t: swapped(usual(t), ":path", ""),
    "path with a space": lambda t: swapped(usual(t), ":path", "/v1/jobs HTTP/1.1\r\nX: "),
    "method with a line": lambda t: swapped(usual(t), ":method", "GET /v1/overview HTTP/1.1\r\nx: "),
    "authority of another": lambda t: swapped(usual(t), ":authority", "evil.test"),
    "authority with a user": lambda t: swapped(usual(t), ":authority", "localhost@evil.test"),
    "unknown pseudo header": lambda t: [(":x", "y"), *usual(t)],
    "upper case name": lambda t: [*usual(t), ("X-Upper", "y")],
    "line in a value": lambda t: [*usual(t), ("x", "a\r\nx-sluice-principal: root")],
    "line in a name": lambda t: [*usual(t), ("x\r\nx-sluice-principal", "root")],
    "colon in a name": lambda t: [*usual(t), ("x: y", "z")],
    "NUL in a value": lambda t: [*usual(t), ("x", "a\x00b")],
    "connection": lambda t: [*usual(t), ("connection", "keep-alive")],
    "transfer-encoding": lambda t: [*usual(t, "POST"), ("transfer-encoding", "chunked")],
    "te": lambda t: [*usual(t), ("te", "gzip")],
    "upgrade": lambda t: [*usual(t), ("upgrade", "websocket")],
    "underscore": lambda t: [*usual(t), ("x_sluice_principal", "root")],
    "length that lies": lambda t: [*usual(t, "POST"), ("content-length", "10")],
    "two lengths": lambda t: [*usual(t, "POST"), ("content-length", "0"), ("content-length", "5")],
    "connect": lambda t: [(":method", "CONNECT"), (":authority", "rest:80"), ("authorization", f"Bearer {t}")],
    "extended connect": lambda t: [(":protocol", "websocket"), *usual(t, "CONNECT")],
    "no credential": lambda t: usual(t)[:4],
    "header list of 40 kB": lambda t: [*usual(t), *((f"x-{n}", "a" * 1000) for n in range(40))],
    "path trick": lambda t: swapped(usual(t), ":path", "/v1/overview/..;/jobs;"),
    "fragment": lambda t: swapped(usual(t), ":path", "/v1/jobs#/overview"),
}


def h2_status(gateway: Gateway, fields: Fields) -> int:
    """Send one HTTP/2 request without client-side checks; return its status, or 0 if reset or cut off."""
    config = h2.config.H2Configuration(
        client_side=True,
        header_encoding="latin-1",
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
    )
    client = h2.connection.H2Connection(config)
    client.initiate_connection()
    with gateway.connect(gateway.tls(alpn=("h2",))) as connection:
        client.send_headers(1, [(k.encode("latin-1"), v.encode("latin-1")) for k, v in fields], end_stream=True)
        connection.sendall(client.data_to_send())
        while data := _received(connection):
            for event in client.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    return next(int(value) for name, value in event.headers or () if name == ":status")  # type: ignore[comparison-overlap]
                if isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                    return 0
            connection.sendall(client.data_to_send())
    return 0


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionError:
        return b""


@pytest.fixture(scope="module")
def h2_answers(running_gateway: Gateway) -> tuple[dict[str, int], list[Recorded]]:
    """The status of each HTTP/2 trick, and the requests that reached REST.

    All requests are sent at once: Envoy keeps a connection with a protocol error for a second before it
    closes it.
    """
    running_gateway.reached()
    text, _ = access_token_of(running_gateway, "admin")
    with ThreadPoolExecutor(len(H2)) as pool:
        statuses = list(pool.map(lambda trick: h2_status(running_gateway, trick(text)), H2.values()))
    return dict(zip(H2, statuses, strict=True)), running_gateway.reached()


@pytest.mark.parametrize("name", H2)
def test_a_hostile_http2_request_is_refused(h2_answers: tuple[dict[str, int], list[Recorded]], name: str) -> None:
    assert h2_answers[0][name] in {0, 400, 401, 403, 404, 411, 431}


def test_no_hostile_http2_request_reaches_rest(h2_answers: tuple[dict[str, int], list[Recorded]]) -> None:
    assert h2_answers[1] == []


def test_an_ordinary_http2_request_is_served(gateway: Gateway) -> None:
    """The same client is served an ordinary request, so the table does not pass because everything fails."""
    text, _ = access_token_of(gateway, "admin")
    assert h2_status(gateway, usual(text)) == 200
    assert len(gateway.reached()) == 1


# --- slow -------------------------------------------------------------------------------------------------------------


def _arrived(connection: ssl.SSLSocket) -> bytes | None:
    """Return what arrived within the connection's time limit: None for nothing, b"" for its end, or bytes."""
    try:
        return connection.recv(4096)
    except TimeoutError:
        return None


@pytest.mark.parametrize("sent", [b"", b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_client_that_does_not_finish_its_headers_is_cut_off(gateway: Gateway, sent: bytes) -> None:
    """Slow loris: sending one byte now and then does not keep a connection open."""
    with gateway.connect() as connection:
        connection.sendall(sent)
        connection.settimeout(0.1)
        began, answer = time.monotonic(), b""
        while time.monotonic() - began < DEADLINE_SECONDS:
            try:
                data = _arrived(connection)
                if data is None and sent:
                    connection.sendall(b"a")
            except OSError:  # Envoy may cut the connection off at any moment, before a byte is sent as well
                break
            if data == b"":
                break
            answer += data or b""
        assert time.monotonic() - began < DEADLINE_SECONDS, "it is served on"
    assert not answer or b" 408 " in answer.split(b"\r\n", 1)[0]
    assert gateway.reached() == []


def test_client_that_does_not_finish_its_handshake_is_cut_off(gateway: Gateway) -> None:
    with socket.create_connection((gateway.host, gateway.port), timeout=DEADLINE_SECONDS) as plain:
        plain.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert plain.recv(4096) == b""


def test_an_api_token_never_reaches_rest(gateway: Gateway) -> None:
    """Not even in the header in which REST gets the assertion."""
    token = gateway.token(AccessRole.VIEWER)
    assert gateway.send("GET", "/v1/jobs", token=token).status == 200
    (seen,) = gateway.reached()
    assert not [name for name, value in seen.headers if token in value]
