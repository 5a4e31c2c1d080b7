"""HTTP/3 at the real Envoy: the same decisions as over TCP, no early data, and off by default."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aioquic.tls import SessionTicket

from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.principal import AccessRole
from sluice.pki.assertions.principal import Jti
from sluice.pki.authorities import to_pem
from tests.free_ports import free_port
from tests.integration.gateway.authorization.test_access_tokens_at_envoy import access_token_of
from tests.integration.gateway.conftest import DEADLINE_SECONDS, BackgroundLoop, EdgeAuthority, Gateway
from tests.public_authority import DAY, PublicAuthority
from tests.system.gateway.http3_client import Http3, http3

LIMITED_PER_SECOND = 5.0


@contextlib.contextmanager
def a_gateway(authority: EdgeAuthority, loop: BackgroundLoop, per_second: float, **settings: Any) -> Iterator[Gateway]:
    """Run a gateway that answers HTTP/3."""
    directory = Path(tempfile.mkdtemp(prefix="slq"))
    config = GatewayConfig(
        port=free_port(),
        http3=True,
        max_request_bytes=1 << 20,
        authorization_timeout=5.0,
        address_requests_per_second=per_second,
        principal_requests_per_second=1e6,
        **settings,
    )
    gateway = Gateway(Home.at(directory), authority, loop, config)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def one_gateway(edge_authority: EdgeAuthority, background: BackgroundLoop) -> Iterator[Gateway]:
    with a_gateway(edge_authority, background, 1e6) as gateway:
        yield gateway


@pytest.fixture
def gateway(one_gateway: Gateway) -> Gateway:
    """Provide a gateway whose record of requests that reached REST is empty."""
    one_gateway.reached()
    return one_gateway


async def test_a_permitted_user_is_answered_and_named_to_rest(gateway: Gateway) -> None:
    by_token, (by_access_token, _) = gateway.token(AccessRole.VIEWER), access_token_of(gateway, "viewer", name="grace")
    async with http3(gateway) as client:
        for credential, name in ((by_token, "ada"), (by_access_token, "grace")):
            answer = await client.ask("GET", "/v1/jobs?limit=5", token=credential)
            assert (answer.status, answer.body) == (200, b'{"served": "/v1/jobs?limit=5"}')
            assert answer.headers["x-content-type-options"] == "nosniff"
            (reached,) = gateway.reached()
            assert reached.asserted(gateway.home)[0] == name
            assert reached.values("authorization") == []


async def test_a_request_body_arrives_complete(gateway: Gateway) -> None:
    body = bytes(range(256)) * 2000
    async with http3(gateway) as client:
        length = ("content-length", str(len(body)))
        answer = await client.ask("POST", "/v1/jobs", length, token=gateway.token(AccessRole.ADMIN), body=body)
    assert answer.status == 200
    (reached,) = gateway.reached()
    assert (reached.body_bytes, reached.complete) == (len(body), True)


async def test_http3_is_advertised_to_clients_over_tcp(gateway: Gateway) -> None:
    reply = gateway.send("GET", "/v1/jobs", token=gateway.token(AccessRole.VIEWER))
    assert reply.headers["alt-svc"] == f'h3=":{gateway.port}"; ma=3600'


REFUSALS = {
    "nobody": (401, partial(Http3.ask, method="GET", path="/v1/jobs")),
    "a wrong token": (401, partial(Http3.ask, method="GET", path="/v1/jobs", token="slc_wrong")),  # noqa: S106
    "an unsigned token": (401, partial(Http3.ask, method="GET", path="/v1/jobs", token="eyJhbGciOiJub25lIn0.e30.")),  # noqa: S106
    "no such path": (401, partial(Http3.ask, method="GET", path="/v1/nothing")),
    "a foreign host": (401, partial(Http3.ask, method="GET", path="/v1/jobs", host="evil.example")),
}
OF_A_VIEWER = {
    "what its role may not": (403, "POST", "/v1/jobs", [("content-length", "0")]),
    "no such path": (404, "GET", "/v1/nothing", []),
    "encoded slash": (400, "GET", "/v1/jobs%2f..%2foverview", []),
    "encoded percent": (400, "GET", "/v1/jobs/%252e%252e", []),
    "path parameter": (400, "GET", "/v1/jobs;/42", []),
    "no length": (411, "POST", "/v1/jobs", []),
    "too large": (413, "POST", "/v1/jobs", [("content-length", str(2 << 20))]),
    "two credentials": (400, "GET", "/v1/jobs", [("cookie", "__Host-sluice-pass=x")]),
    "an underscore": (400, "GET", "/v1/jobs", [("x_sluice_principal", "root")]),
    "headers without end": (431, "GET", "/v1/jobs", [("x-much", "a" * 40_000)]),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_client_without_a_valid_credential_is_refused(gateway: Gateway, case: str) -> None:
    status, ask = REFUSALS[case]
    async with http3(gateway) as client:
        answer = await ask(client)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert gateway.reached() == []


@pytest.mark.parametrize("case", OF_A_VIEWER)
async def test_a_forbidden_or_malformed_request_of_a_viewer_is_refused(gateway: Gateway, case: str) -> None:
    """The stream may also be reset, or the connection closed, instead of an answer."""
    status, method, path, headers = OF_A_VIEWER[case]
    token, _ = access_token_of(gateway, "viewer")
    async with http3(gateway) as client:
        answer = await client.ask(method, path, *headers, token=token)
    assert answer.status in {0, status}
    assert gateway.reached() == []


async def test_a_request_for_a_foreign_host_name_is_refused(gateway: Gateway) -> None:
    async with http3(gateway) as client:
        answer = await client.ask("GET", "/v1/jobs", token=gateway.token(AccessRole.ADMIN), host="evil.example")
    assert answer.status in {401, 403, 404}
    assert gateway.reached() == []


async def test_tunnels_and_upgrades_are_refused(gateway: Gateway) -> None:
    token, _ = access_token_of(gateway, "admin")
    connect = [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"), (":path", "/v1/jobs")]
    headers = [*connect, (":authority", "localhost"), ("authorization", f"Bearer {token}")]
    async with http3(gateway) as client:
        answer = await client.exchange([(name.encode(), value.encode()) for name, value in headers], b"hello")
    assert answer.status in {0, 400, 403, 404, 405, 411, 501}
    assert gateway.reached() == []


async def test_identity_headers_of_a_client_are_removed(gateway: Gateway) -> None:
    claimed = [
        ("x-sluice-principal", "root"),
        ("x-sluice-role", "admin"),
        ("x-sluice-assertion", "forged"),
        ("x-forwarded-for", "10.1.2.3"),
        ("x-forwarded-client-cert", "URI=spiffe://gateway.test/gateway/envoy"),
        ("x-envoy-original-path", "/v1/overview"),
    ]
    token, _ = access_token_of(gateway, "viewer")
    async with http3(gateway) as client:
        assert (await client.ask("GET", "/v1/jobs", *claimed, token=token)).status == 200
        (reached,) = gateway.reached()
        # Nor does a role that somebody claims open anything.
        length = ("content-length", "0")
        assert (await client.ask("POST", "/v1/jobs", *claimed, length, token=token)).status == 403
    assert reached.asserted(gateway.home) == ("ada", ("viewer",))
    assert reached.values("x-sluice-principal") == ["ada"]
    assert reached.values("x-forwarded-for") == ["127.0.0.1"]
    told = {value for _, value in reached.headers}
    assert not told & {"root", "admin", "forged", "10.1.2.3", "/v1/overview"}
    assert gateway.reached() == []


async def test_a_revocation_takes_effect_on_an_open_connection(gateway: Gateway) -> None:
    text, issued = access_token_of(gateway, "viewer", name="mallory", credential="cred-9")
    async with http3(gateway) as client:
        assert (await client.ask("GET", "/v1/jobs", token=text)).status == 200
        Revocations.of(gateway.home).revoke(("pass", Jti(issued.access_token_id or "")))
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (await client.ask("GET", "/v1/jobs", token=text)).status != 403:
            assert time.monotonic() < deadline, "the revoked access token is still let in"


async def test_no_session_ticket_allows_early_data(gateway: Gateway) -> None:
    """Early data can be replayed by whoever recorded it."""
    tickets: list[SessionTicket] = []
    token, _ = access_token_of(gateway, "viewer")
    async with http3(gateway, tickets) as client:
        for _ in range(3):
            assert (await client.ask("GET", "/v1/jobs", token=token)).status == 200
    assert [each.max_early_data_size for each in tickets if each.max_early_data_size] == []


async def test_requests_of_an_address_are_rate_limited(
    edge_authority: EdgeAuthority, background: BackgroundLoop
) -> None:
    with a_gateway(edge_authority, background, LIMITED_PER_SECOND) as gateway:
        token, _ = access_token_of(gateway, "viewer")
        async with http3(gateway) as client:
            statuses = [(await client.ask("GET", "/v1/jobs", token=token)).status for _ in range(60)]
        assert set(statuses) == {200, 429}
        assert len(gateway.reached()) == statuses.count(200)


async def test_a_certificate_of_another_authority_is_presented_for_its_server_name(
    edge_authority: EdgeAuthority, background: BackgroundLoop, tmp_path: Path
) -> None:
    name, public = "sluice.example.com", PublicAuthority(dt.datetime.now(dt.UTC) - DAY)
    chain, key = public.issue(name).write(tmp_path)
    files = {"server_names": (name,), "certificate_file": str(chain), "key_file": str(key)}
    with a_gateway(edge_authority, background, 1e6, **files) as gateway:
        token = gateway.token(AccessRole.VIEWER)
        async with http3(gateway, name=name, anchors=to_pem(public.root)) as client:
            assert (await client.ask("GET", "/v1/jobs", token=token, host=name)).status == 200
        # Who asks for another name gets the edge authority's.
        async with http3(gateway) as client:
            assert (await client.ask("GET", "/v1/jobs", token=token, host=name)).status == 200
