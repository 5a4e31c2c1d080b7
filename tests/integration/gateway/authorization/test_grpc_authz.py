"""The two protocols of the auth service, HTTP and gRPC.

Both give the same answers to the same table of requests. The gRPC listener also refuses some clients
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import grpc.aio  # type: ignore[import-untyped]  # the packages have no type information
import pytest
import yarl
from cryptography.hazmat.primitives.hashes import SHA256
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from sluice.core.errors import PkiError
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.config import EDGE_NAME, ExtAuthzConfig, GatewayConfig
from sluice.gateway.credentials.token_file import create_token
from sluice.gateway.principal import AccessRole
from sluice.gateway.service import route_file, run_auth
from sluice.gateway.service.announcements import ext_authz_announcement
from sluice.gateway.service.assembly import auth_service
from sluice.gateway.service.checks import CheckService
from sluice.gateway.service.grpc_authz import SERVICE
from sluice.gateway.service.grpc_server import MAX_MESSAGE_BYTES, allowed_clients, ext_authz_listener
from sluice.pki.assertions.tokens import HEADER, REST_AUDIENCE
from sluice.pki.identities.directory import write_identity
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from tests.assertions import asserted_by
from tests.integration.gateway.authorization.grpc_client import Told, ask, bare_context, channel, question, told
from tests.integration.gateway.conftest import ROUTES, TRUST_DOMAIN, BackgroundLoop, EdgeAuthority, eventually
from tests.integration.gateway.network import AUTH, Generation, install
from tests.outside import OutsideAuthority

POLICY = """
version = 1
[roles.viewer]
allow = ["jobs.list"]
[users]
"envoy" = ["viewer"]
"""
EDGE = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "edge-1")
OTHER = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "edge-2")
JOBMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jm-1")
"""Every other role that may come to the auth service; users' certificates are of another authority."""
SECONDS = 20


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Generation:
    return Generation(tmp_path_factory.mktemp("internal"))


@dataclass
class House:
    """A running auth service that tests query over HTTP and gRPC."""

    home: Home
    authority: EdgeAuthority
    generation: Generation
    directory: Path
    address: str
    seen: int = 0

    def identity(self, spiffe_id: SpiffeId) -> Path:
        """Return a directory with an internal identity of the cluster."""
        directory = self.directory / spiffe_id.name
        if not directory.exists():
            install(directory, spiffe_id, self.generation, [self.generation])
        return directory

    async def by_http(self, method: str, target: str, headers: Sequence[tuple[str, str]], certificate: str) -> Told:
        more = [("x-forwarded-client-cert", certificate)] if certificate else []
        connector = aiohttp.UnixConnector(str(self.home.sockets / "auth.sock"))
        async with (
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(
                method,
                yarl.URL(f"http://auth{target}", encoded=True),
                headers=[*headers, *more],
                allow_redirects=False,
                skip_auto_headers=("Accept", "User-Agent"),
            ) as reply,
        ):
            return Told(reply.status, {k.lower(): v for k, v in reply.headers.items()}, await reply.read())

    async def by_grpc(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], certificate: str = "", *, raw: bool = False
    ) -> Told:
        async with channel(self.address, self.identity(EDGE)) as at:
            return told(await ask(at, question(method, target, headers, raw=raw, certificate=certificate)))

    def user(self, authority: EdgeAuthority | None = None, name: str = "user") -> tuple[str, str]:
        """Issue a user's certificate; returns it in both forms in which an Envoy reports it.

        They are the header (HTTP) and the URL-encoded PEM (gRPC).
        """
        directory = self.directory / name
        (authority or self.authority).issue(directory, role=Role.USER)
        leaf = TlsIdentity(directory).material.leaf
        pem = (directory / "chain.pem").read_text().partition("-----END CERTIFICATE-----\n")
        return xfcc(leaf.fingerprint), quote(pem[0] + pem[1])

    def records(self) -> list[dict[str, Any]]:
        """Return the decisions in the audit log."""
        records = [json.loads(line) for line in audit_file(self.home).read_text().splitlines()]
        return [record for record in records if record["event"] == "decision"]

    def decisions(self) -> list[dict[str, Any]]:
        """Return the decisions of this test."""
        return self.records()[self.seen :]


def xfcc(fingerprint: Any) -> str:
    return f"Hash={fingerprint(SHA256()).hex()};URI=spiffe://{TRUST_DOMAIN}/user/envoy"


@contextlib.contextmanager
def running(
    home: Home, authority: EdgeAuthority, generation: Generation, directory: Path, loop: BackgroundLoop
) -> Iterator[House]:
    authority.issue(home.identity(Role.GATEWAY, EDGE_NAME))
    install(home.identity(Role.AUTH, AUTH.name), AUTH, generation, [generation], dns=["localhost"])
    write_secret(route_file(home), json.dumps(ROUTES).encode())
    write_secret(home.gateway / "policy.toml", POLICY.encode())
    config = GatewayConfig(ext_authz=ExtAuthzConfig(host="127.0.0.1", port=0, clients=(str(EDGE),)))
    announced = ext_authz_announcement(home)
    auth = loop.start(run_auth(home, config, TRUST_DOMAIN))
    try:
        eventually(lambda: announced.exists() or auth.done(), "the auth service does not come up")
        if auth.done():
            auth.result()
        document = json.loads(announced.read_bytes())
        yield House(home, authority, generation, directory, f"{document['host']}:{document['port']}")
    finally:
        loop.stop(auth)


@pytest.fixture(scope="module")
def shared(
    edge_authority: EdgeAuthority,
    generation: Generation,
    background: BackgroundLoop,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    identities = tmp_path_factory.mktemp("identities")
    with running(Home.at(directory).create(), edge_authority, generation, identities, background) as house:
        yield house
    shutil.rmtree(directory)


@pytest.fixture
def house(shared: House) -> House:
    """The auth service that the tests share unless they damage it.

    ``decisions()`` starts empty in each test.
    """
    shared.seen = len(shared.records())
    return shared


@pytest.fixture
def own_house(
    short_home: Home, edge_authority: EdgeAuthority, generation: Generation, background: BackgroundLoop, tmp_path: Path
) -> Iterator[House]:
    with running(short_home, edge_authority, generation, tmp_path, background) as house:
        yield house


# --- the table -------------------------------------------------------------------------------------------------------

Headers = tuple[tuple[str, str], ...]
BROWSER: Headers = (("Accept", "text/html,*/*"), ("Sec-Fetch-Mode", "navigate"))
TOKEN = "TOKEN"  # noqa: S105  where the token goes
ROWS: Mapping[str, tuple[str, str, Headers, int]] = {
    "good": ("GET", "/v1/jobs", (("Authorization", f"Bearer {TOKEN}"),), 200),
    "with a query": ("GET", "/v1/jobs?state=RUNNING&q=a%20b", (("Authorization", f"Bearer {TOKEN}"),), 200),
    "nobody": ("GET", "/v1/jobs", (), 401),
    "nobody, no such route": ("GET", "/v1/nothing", (), 401),
    "empty": ("GET", "/v1/jobs", (("Authorization", ""),), 401),
    "basic": ("GET", "/v1/jobs", (("Authorization", "Basic YWRhOmFkYQ=="),), 401),
    "unknown": ("GET", "/v1/jobs", (("Authorization", "Bearer slc_0000000000000000_nobody"),), 401),
    "unsigned": ("GET", "/v1/jobs", (("Authorization", "Bearer eyJhbGciOiJub25lIn0.e30."),), 401),
    "two bearers": ("GET", "/v1/jobs", (("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")), 401),
    "the same twice": ("GET", "/v1/jobs", (("Authorization", f"Bearer {TOKEN}"),) * 2, 401),
    "bad bearer beside a good cookie's name": (
        "GET", "/v1/jobs", (("Authorization", "Bearer x"), ("Cookie", "__Host-sluice=x")), 401,
    ),
    "forged cookie": ("GET", "/v1/jobs", (("Cookie", "__Host-sluice-pass=eyJhbGciOiJub25lIn0.e30."),), 401),
    "not granted": ("POST", "/v1/jobs", (("Authorization", f"Bearer {TOKEN}"),), 403),
    "no route": ("GET", "/v1/nothing", (("Authorization", f"Bearer {TOKEN}"),), 404),
    "no method": ("DELETE", "/v1/jobs", (("Authorization", f"Bearer {TOKEN}"),), 404),
    "unsafe path": ("GET", "/v1//jobs", (("Authorization", f"Bearer {TOKEN}"),), 400),
    "encoded path": ("GET", "/v1/%6aobs", (("Authorization", f"Bearer {TOKEN}"),), 400),
    "browser": ("GET", "/v1/jobs", BROWSER, 302),
    "page": ("GET", "/v1/jobs", (("Accept", "text/html"),), 401),
    "browser that is refused": ("POST", "/v1/jobs", BROWSER, 401),
    "asserts by itself": ("GET", "/v1/jobs", ((HEADER, "forged"), ("x-sluice-principal", "ada")), 401),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
async def test_the_http_and_grpc_authorization_listeners_give_the_same_answer(house: House, row: str) -> None:
    method, target, headers, status = ROWS[row]
    token = create_token(house.home, name="ada", role=AccessRole.VIEWER, lifetime=dt.timedelta(hours=1))
    sent = [(name, value.replace(TOKEN, token)) for name, value in (*headers, ("x-request-id", "42"))]
    answers = [
        await house.by_http(method, target, sent, ""),
        await house.by_grpc(method, target, sent),
        await house.by_grpc(method, target, sent, raw=True),
    ]
    assert [each.status for each in answers] == [status] * 3
    first = answers[0]
    for each in answers[1:]:
        assert each.body == first.body
        for name in ("www-authenticate", "location", "content-security-policy", "x-sluice-operation"):
            assert each.headers.get(name) == first.headers.get(name), name
        if status != 302:
            assert each.headers.get("content-type", "") == (first.headers["content-type"] if first.body else "")
    if status == 200:
        for each in answers:
            who = asserted_by(house.home, each.headers[HEADER], method=method, target=target, audience=REST_AUDIENCE)
            assert (who.name, who.principal.roles) == ("ada", ("viewer",))
    by_http, *by_grpc = house.decisions()
    compared = ("principal", "credential", "method", "path", "operation", "decision", "status", "request_id")
    for record in by_grpc:
        assert [record[key] for key in compared] == [by_http[key] for key in compared]
        assert record["address"] == "192.0.2.7"
    assert len(by_grpc) == 2


async def test_a_client_certificate_is_accepted_over_http_and_over_grpc(house: House) -> None:
    header, pem = house.user()
    assert (await house.by_http("GET", "/v1/jobs", (), header)).status == 200
    assert (await house.by_grpc("GET", "/v1/jobs", (), pem)).status == 200
    by_http, by_grpc = house.decisions()
    assert by_http["principal"] == by_grpc["principal"] == "envoy"
    assert by_http["credential"] == by_grpc["credential"]
    for other in (
        await house.by_http("POST", "/v1/jobs", (), header),
        await house.by_grpc("POST", "/v1/jobs", (), pem),
    ):
        assert other.status == 403


async def test_untrusted_damaged_and_non_user_certificates_are_not_credentials(
    house: House, foreign_authority: EdgeAuthority, tmp_path: Path
) -> None:
    """Of another authority, self-made, of a process, or damaged; and a header without a certificate."""
    _, foreign = house.user(foreign_authority, "foreign")
    imitated = OutsideAuthority(tmp_path / "outside").imitate(f"spiffe://{TRUST_DOMAIN}/user/envoy")
    process = (house.identity(EDGE) / "chain.pem").read_text()
    server = (house.home.identity(Role.GATEWAY, EDGE_NAME) / "chain.pem").read_text()
    damaged = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
    for text in (
        foreign,
        *map(quote, ((imitated / "chain.pem").read_text(), process, server, damaged)),
        "x",
        "%" * 70_000,
    ):
        assert (await house.by_grpc("GET", "/v1/jobs", (), text)).status == 401
    header, _ = house.user(name="mine")
    assert (await house.by_grpc("GET", "/v1/jobs", [("x-forwarded-client-cert", header)])).status == 401
    # A token beside it is what counts, as in the other way.
    token = create_token(house.home, name="ada", role=AccessRole.VIEWER, lifetime=dt.timedelta(hours=1))
    assert (await house.by_grpc("GET", "/v1/jobs", [("authorization", f"Bearer {token}")], foreign)).status == 200


async def test_allowed_request_loses_its_credentials(house: House) -> None:
    token = create_token(house.home, name="ada", role=AccessRole.VIEWER, lifetime=dt.timedelta(hours=1))
    async with channel(house.address, house.identity(EDGE)) as at:
        response = await ask(at, question("GET", "/v1/jobs", [("Authorization", f"Bearer {token}")]))
    removed = set(response.ok_response.headers_to_remove)
    assert {"authorization", "proxy-authorization", "cookie", "x-forwarded-client-cert", "x-sluice-role"} <= removed
    assert HEADER not in removed
    written = {each.header.key: each.append_action for each in response.ok_response.headers}
    assert set(written.values()) == {2}, "what a client has sent under these names would stay"
    assert dict(response.dynamic_metadata) == {"x-sluice-operation": "jobs.list", "x-sluice-principal": "ada"}
    assert token not in str(response)


# --- who may ask, and how much ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [OTHER, JOBMANAGER, SpiffeId.executor(TRUST_DOMAIN, "0" * 32, 1)], ids=str)
async def test_identities_of_the_cluster_that_are_not_named_as_clients_are_refused(house: House, who: SpiffeId) -> None:
    async with channel(house.address, house.identity(who)) as at:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(at, question("GET", "/v1/jobs", []), timeout=SECONDS)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "verif" not in str(refused.value.details()).lower(), "it is the client that refuses"
    assert house.decisions() == []


async def test_strangers_are_refused_in_the_handshake(house: House, tmp_path: Path) -> None:
    forged = OutsideAuthority(tmp_path / "outside").imitate(str(EDGE))
    own_anchor = write_anchor(forged, house.identity(EDGE), tmp_path)
    async with channel(house.address, own_anchor) as at:
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(at, question("GET", "/v1/jobs", []), timeout=SECONDS)
    host, _, port = house.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=bare_context(None))
    with contextlib.suppress(OSError):
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert await reader.read() == b""
    writer.close()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
    with contextlib.suppress(OSError):
        # An alert of TLS at most, never a frame of HTTP/2.
        assert (await reader.read(64))[:1] in {b"", b"\x15"}
    writer.close()
    assert house.decisions() == []


def write_anchor(forged: Path, real: Path, directory: Path) -> Path:
    """Write an identity with the forged leaf that trusts the real server; returns its directory."""
    target = directory / "forged"
    write_identity(
        target,
        key_pem=(forged / "key.pem").read_bytes(),
        chain_pem=(forged / "chain.pem").read_bytes(),
        ca_pem=(real / "ca.pem").read_bytes(),
    )
    return target


async def test_an_oversized_check_request_is_refused_and_the_next_one_is_answered(house: House) -> None:
    async with channel(house.address, house.identity(EDGE)) as at:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(at, question("GET", "/v1/jobs", [("x", "y" * MAX_MESSAGE_BYTES)]))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert told(await ask(at, question("GET", "/v1/jobs", []))).status == 401


async def test_a_malformed_check_request_gets_an_error_and_no_decision(house: House) -> None:
    both = question("GET", "/v1/jobs", [("a", "b")])
    both.attributes.request.http.header_map.headers.add(key="a", raw_value=b"c")
    async with channel(house.address, house.identity(EDGE)) as at:
        for request in (question("", "/v1/jobs", []), question("GET", "", []), both):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(at, request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as unreadable:
            await at.unary_unary(f"/{SERVICE}/Check")(b"\xff\xff\xff", timeout=SECONDS)
        assert unreadable.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await at.unary_unary(f"/{SERVICE}/Other")(b"", timeout=SECONDS)
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert house.decisions() == []


async def test_a_check_request_that_cannot_be_decided_is_an_error_without_details(own_house: House) -> None:
    house = own_house
    async with channel(house.address, house.identity(EDGE)) as at:
        token = create_token(house.home, name="ada", role=AccessRole.VIEWER, lifetime=dt.timedelta(hours=1))
        route_file(house.home).unlink()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(at, question("GET", "/v1/jobs", [("authorization", f"Bearer {token}")]))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert refused.value.details() == "cannot decide now"


async def test_the_health_service_reports_serving(house: House) -> None:
    async with channel(house.address, house.identity(EDGE)) as at:
        stub = health_pb2_grpc.HealthStub(at)
        for service in ("", SERVICE):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_open_check_requests_are_still_answered_when_the_service_ends(
    short_home: Home, generation: Generation, tmp_path: Path
) -> None:
    """Health first reports NOT_SERVING; no new request is taken; the open one gets its answer."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Slow(CheckService):
        __slots__ = ()

        async def answer(self, check: Any, headers: Any) -> Any:
            asked.set()
            await go_on.wait()
            return await super().answer(check, headers)

    install(tmp_path / "auth", AUTH, generation, [generation], dns=["localhost"])
    install(tmp_path / "edge-1", EDGE, generation, [generation])
    write_secret(route_file(short_home), json.dumps(ROUTES).encode())
    config = ExtAuthzConfig(host="127.0.0.1", port=0, clients=(str(EDGE),))
    async with auth_service(short_home, GatewayConfig(), TRUST_DOMAIN) as service:
        real = service.checks
        slow = Slow(real.authenticator, real.routes, real.audit, real.sign_in, real.signer)
        serving = contextlib.AsyncExitStack()
        address = await serving.enter_async_context(
            ext_authz_listener(short_home, config, slow, TlsIdentity(tmp_path / "auth"), users=tmp_path / "none")
        )
        async with channel(f"{address[0]}:{address[1]}", tmp_path / "edge-1") as at:
            watch = health_pb2_grpc.HealthStub(at).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            open_question = asyncio.ensure_future(ask(at, question("GET", "/v1/jobs", [])))
            await asyncio.wait_for(asked.wait(), SECONDS)
            ending = asyncio.create_task(serving.aclose())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            go_on.set()
            assert told(await open_question).status == 401
            await asyncio.wait_for(ending, SECONDS)
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(at, question("GET", "/v1/jobs", []))


@pytest.mark.parametrize(
    "name",
    [f"spiffe://{TRUST_DOMAIN}/jobmanager/jm-1", "spiffe://elsewhere.test/gateway/edge-1", "edge-1", "*"],
)
def test_only_gateways_can_be_named_as_clients(name: str) -> None:
    with pytest.raises(PkiError):
        allowed_clients(ExtAuthzConfig(host="127.0.0.1", clients=(name,)), TRUST_DOMAIN)


def test_ext_authz_without_clients_is_an_error_and_is_off_by_default() -> None:
    with pytest.raises(ValueError, match="clients"):
        ExtAuthzConfig(host="127.0.0.1", clients=())
    assert GatewayConfig().ext_authz is None
