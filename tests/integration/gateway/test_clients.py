"""The gateway as real clients use it: HTTP/2, and multipart uploads of the kind `sluice submit` makes."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import aiohttp
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset

from sluice.gateway.principal import AccessRole
from tests.integration.gateway.conftest import Gateway


def exchange(connection: ssl.SSLSocket, headers: list[tuple[str, str]], body: bytes | None = None) -> tuple[int, bytes]:
    """Send one HTTP/2 request; return the status (0 if the stream was reset) and the body of the response."""
    # The client's own checks are off: a hostile client has none.
    h2 = H2Connection(
        H2Configuration(
            client_side=True,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
    )
    h2.initiate_connection()
    h2.send_headers(1, headers, end_stream=body is None)
    if body is not None:
        h2.send_data(1, body, end_stream=True)
    connection.sendall(h2.data_to_send())
    status, received = 0, b""
    while data := connection.recv(65536):
        for event in h2.receive_data(data):
            if isinstance(event, ResponseReceived):
                status = int(dict(event.headers)[b":status"])
            elif isinstance(event, DataReceived):
                received += event.data
            elif isinstance(event, StreamEnded | StreamReset):
                return status, received
        connection.sendall(h2.data_to_send())
    return status, received


def request(method: str, path: str, token: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    pseudo = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
    return [*pseudo, ("authorization", f"Bearer {token}"), *more]


def test_http_2_request_is_served_and_its_spoofed_identity_replaced(gateway: Gateway) -> None:
    spoofed = ("x-sluice-principal", "root"), ("x-sluice-roles", "admin"), ("x-forwarded-for", "203.0.113.9")
    with gateway.connect(gateway.tls(alpn=("h2",))) as connection:
        token = gateway.token(AccessRole.VIEWER, "ada")
        status, body = exchange(connection, request("GET", "/v1/jobs", token, *spoofed))
    assert (status, json.loads(body)) == (200, {"served": "/v1/jobs"})
    (seen,) = gateway.reached()
    assert seen.asserted(gateway.home) == ("ada", ("viewer",))
    assert seen.values("x-sluice-principal") == ["ada"]
    assert seen.values("x-forwarded-for") == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param(request("POST", "/v1/jobs", "TOKEN"), b"{}", id="body of undeclared length"),
        pytest.param(request("POST", "/v1/jobs", "TOKEN", ("content-length", "1")), b"{}", id="longer than declared"),
        pytest.param(request("GET", "/v1/jobs", "TOKEN", ("transfer-encoding", "chunked")), None, id="HTTP/1 framing"),
        pytest.param(request("GET", "/v1/jobs", "TOKEN", ("X-Upper", "1")), None, id="upper-case name"),
        pytest.param(request("GET", "/v1/jobs", "TOKEN", ("x-a", "1\r\nx-sluice-roles: admin")), None, id="CR LF"),
        pytest.param(request("GET", "/v1/jobs", "TOKEN", (":path", "/v1/overview")), None, id="two paths"),
        pytest.param(request("GET", "/v1/overview/%252e%252e/jobs", "TOKEN"), None, id="path with two readings"),
        pytest.param(request("GET", "/v1/jobs HTTP/1.1\r\nX: ", "TOKEN"), None, id="request line in the path"),
        pytest.param(request("GET /v1/overview", "/v1/jobs", "TOKEN"), None, id="path in the method"),
    ],
)
def test_malformed_http_2_request_does_not_reach_rest(
    gateway: Gateway, headers: list[tuple[str, str]], body: bytes | None
) -> None:
    token = gateway.token(AccessRole.ADMIN)
    headers = [(name, value.replace("TOKEN", token)) for name, value in headers]
    with gateway.connect(gateway.tls(alpn=("h2",))) as connection:
        status, _ = exchange(connection, headers, body)
    assert status == 0 or status >= 400
    assert not [seen for seen in gateway.reached() if seen.complete]


async def test_multipart_upload_with_files_declares_its_length(gateway: Gateway, tmp_path: Path) -> None:
    """What aiohttp (and so `sluice submit`) sends is accepted; bodies of undeclared length are not."""
    pipeline = tmp_path / "p.py"
    pipeline.write_bytes(b"print()\n" * 100_000)
    token = gateway.token(AccessRole.SUBMITTER)
    with pipeline.open("rb") as file:
        form = aiohttp.FormData()
        form.add_field("request", json.dumps({"args": []}), content_type="application/json")
        form.add_field("pipeline", file, filename="p.py", content_type="text/x-python")
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"https://localhost:{gateway.port}/v1/jobs",
                data=form,
                headers={"authorization": f"Bearer {token}"},
                ssl=gateway.tls(),
            ) as answer,
        ):
            assert answer.status == 200
    (seen,) = gateway.reached()
    assert seen.body_bytes == int(seen.values("content-length")[0]) > 100_000
