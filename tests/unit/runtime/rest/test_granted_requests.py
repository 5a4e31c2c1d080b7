"""What access tokens and assertions grant at REST when they bypass the gateway.

The middleware, routes and handlers are real; the endpoints behind them record what they are asked.
The attacker reaches REST's socket or holds a gateway's certificate, and has an access token that is
valid for five minutes, or sees an assertion in transit.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from sluice.core.egress_evidence import EgressRow, EgressVerdict
from sluice.core.home import Home
from sluice.gateway.authz.operations import known_operations
from sluice.gateway.authz.policy import Policy
from sluice.gateway.authz.policy_file import DEFAULT_POLICY, parse, read_policy
from sluice.gateway.authz.routes import RouteTable
from sluice.gateway.credentials.access_tokens import issue
from sluice.pki.assertions.keys import AssertionKeys, assertion_keys_file
from sluice.pki.assertions.principal import Credential, Principal
from sluice.pki.assertions.tokens import ACCESS_TOKEN_SCHEME, HEADER
from sluice.runtime.jobmanager.errors import JobNotFound
from sluice.runtime.jobmanager.gateways import EgressConnections
from sluice.runtime.jobmanager.views import SlotView, TaskManagerView
from sluice.runtime.messages import (
    ConnectionEvidence,
    Evidence,
    LogChunk,
    SlotState,
)
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.serving import handler_of
from sluice.runtime.rest_server.routes import PUBLISHED
from sluice.runtime.rest_server.server import RestServer, make_application
from tests.assertions import AssertingGateway, operation_of

ADAS, EVES = "a" * 32, "e" * 32
ROUTES = RouteTable.decode(
    b"["
    + b",".join(
        f'{{"method":"{each.method}","path":"{each.path}","operation":"{each.operation}"}}'.encode()
        for each in PUBLISHED
    )
    + b"]"
)
OPERATIONS = known_operations(ROUTES.routes)
DEFAULT = read_policy(DEFAULT_POLICY, OPERATIONS)
READER = parse(b'version = 1\n[roles.reader]\nallow = ["overview.read"]\n', OPERATIONS)


@dataclass
class Behind:
    """The fake endpoints behind REST.

    They record every answer that reveals something of Ada's job, and every change.
    """

    told: list[str] = field(default_factory=list)

    async def job(self, job_id: str) -> SimpleNamespace:
        owner = {ADAS: "ada", EVES: "eve"}.get(job_id)
        if owner is None:
            raise JobNotFound(f"there is no job {job_id}")
        return SimpleNamespace(owner=owner, id=job_id)

    async def jobs(self) -> tuple[SimpleNamespace, ...]:
        return (await self.job(ADAS), await self.job(EVES))

    async def read_job_log(self, job_id: str, *_: object) -> LogChunk:
        self.told.append(f"log of {job_id[0]}")
        return LogChunk(data="x", offset=0, next_offset=1, end=True)

    async def cancel_job(self, job_id: str) -> None:
        self.told.append(f"cancelled {job_id[0]}")

    async def drain_taskmanager(self, name: str, draining: bool) -> None:
        self.told.append(f"drained {name}")

    async def drain(self, worker: str, wanted: bool = True) -> None:
        self.told.append(f"drained {worker}")

    async def savepoints(self) -> tuple[SimpleNamespace, ...]:
        return ()

    async def taskmanagers(self) -> tuple[TaskManagerView, ...]:
        slots = [SlotView(slot=number, state=SlotState.ACTIVE, job_id=job) for number, job in enumerate((ADAS, EVES))]
        return (
            TaskManagerView(
                id="tm-1",
                identity="x",
                host="h",
                slots_total=2,
                slots_free=0,
                slots=tuple(slots),
                last_heartbeat=0,
                drivers=(ADAS, EVES),
            ),
        )

    async def egress_connections(self, job_id: str) -> EgressConnections:
        rows = [
            EgressRow(
                id=each,
                job_id=each,
                attempt=1,
                process="driver",
                protocol="tcp",
                host="api.example.com",
                address="",
                port=443,
                verdict=EgressVerdict.ALLOWED,
            )
            for each in (ADAS, EVES)
        ]
        return EgressConnections(rows=tuple(row for row in rows if job_id in {"", row.job_id}))

    async def job_connections(self, job_id: str) -> Evidence:
        return Evidence()

    async def connections(self) -> Evidence:
        ends = ("taskmanager/tm-1", f"job/{ADAS}/driver", f"job/{EVES}/executor/1")
        found = tuple(
            ConnectionEvidence(
                channel="rpc",
                local="spiffe://td/jobmanager/jm-1",
                peer=f"spiffe://td/{end}",
                direction="accepted",
                protocol="TLSv1.3",
                cipher="c",
            )
            for end in ends
        )
        return Evidence(found)


@dataclass
class Socket:
    """REST as seen by a client that reaches its socket directly."""

    gateway: AssertingGateway
    session: aiohttp.ClientSession
    behind: Behind

    def access_token_of(self, role: str, policy: Policy = DEFAULT, name: str = "eve") -> dict[str, str]:
        """Return the header of an access token as the auth service issues it."""
        text, _ = issue(
            Principal(name, (role,), "token", Credential("token", "id-1")), self.gateway.keys, policy, now=time.time()
        )
        return {HEADER: ACCESS_TOKEN_SCHEME + text}

    async def status(self, method: str, target: str, headers: dict[str, str]) -> int:
        async with self.session.request(method, f"http://rest{target}", headers=headers) as answer:
            return answer.status

    async def get(self, target: str, headers: dict[str, str]) -> Any:
        async with self.session.get(f"http://rest{target}", headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Socket]:
    home = Home.at(tmp_path / "home").create()
    gateway, behind = AssertingGateway(home), Behind()
    cluster = cast(
        "Cluster", SimpleNamespace(dispatcher=behind, resource_manager=behind, shuffle=behind, egress=behind)
    )
    keys = AssertionKeys(assertion_keys_file(home)).keys
    server = RestServer(make_application(lambda route: handler_of(route, cluster), keys), tmp_path / "s" / "rest.sock")
    await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(server.path))) as session:
        yield Socket(gateway, session, behind)
    await server.close()


CHANGES = (
    ("POST", "/v1/taskmanagers/tm-1/drain"),
    ("POST", "/v1/shuffle/workers/w-1/drain"),
    ("PATCH", f"/v1/jobs/{ADAS}?mode=cancel"),
    ("PATCH", f"/v1/jobs/{EVES}?mode=cancel"),
)


@pytest.mark.parametrize("role", ["submitter", "viewer", "operator", "admin"])
async def test_an_access_token_cannot_change_anything_whatever_its_role_allows(rest: Socket, role: str) -> None:
    for method, target in CHANGES:
        assert await rest.status(method, target, rest.access_token_of(role)) == 401, target
    assert rest.behind.told == []


async def test_an_access_token_grants_the_log_reads_of_its_role_for_the_granted_owners(rest: Socket) -> None:
    log = "/v1/jobs/{}/logs?source=driver.stdout"
    assert await rest.status("GET", log.format(ADAS), rest.access_token_of("submitter")) == 403
    assert await rest.status("GET", log.format(EVES), rest.access_token_of("submitter")) == 200
    assert await rest.status("GET", log.format(ADAS), rest.access_token_of("viewer")) == 200
    assert await rest.status("GET", log.format(EVES), rest.access_token_of("reader", READER)) == 401
    assert rest.behind.told == ["log of e", "log of a"]


async def test_an_access_token_with_scopes_is_refused_without_the_auth_service(rest: Socket) -> None:
    principal = Principal("eve", ("admin",), "token", Credential("token", "id-1"), scopes=("jobs.list",))
    text, _ = issue(principal, rest.gateway.keys, DEFAULT, now=time.time())
    for target in ("/v1/jobs", "/v1/taskmanagers"):
        assert await rest.status("GET", target, {HEADER: ACCESS_TOKEN_SCHEME + text}) == 401


@pytest.mark.parametrize("role", ["submitter", "viewer", "nobody"])
async def test_no_route_is_open_to_an_access_token_that_does_not_name_it(rest: Socket, role: str) -> None:
    """Over all existing routes: a new route is closed until the policy names it."""
    admitted = DEFAULT.operations_by_role().get(role, frozenset())
    closed = [each for each in PUBLISHED if each.method != "GET" or each.operation not in admitted]
    assert closed
    for route in closed:
        target = "/".join(ADAS if part.startswith("{") else part for part in route.path.split("/"))
        assert await rest.status(route.method, target, rest.access_token_of(role)) == 401, target
    assert rest.behind.told == []


async def test_an_assertion_is_valid_for_its_own_request_only(rest: Socket) -> None:
    """An intercepted assertion cancels no other job, drains nothing, and cannot be replayed."""

    def cancel(job_id: str, **claims: Any) -> dict[str, str]:
        target = f"/v1/jobs/{job_id}?mode=cancel"
        text = rest.gateway.assertion("PATCH", target, "eve", "submitter")
        return {HEADER: rest.gateway.forged(text, **claims) if claims else text}

    for method, target in CHANGES[:3]:
        assert await rest.status(method, target, cancel(EVES)) == 401
    assert await rest.status("PATCH", f"/v1/jobs/{EVES}?mode=cancel&x=1", cancel(EVES)) == 401
    assert await rest.status("PATCH", f"/v1/jobs/{EVES}?mode=cancel", cancel(EVES, op="jobs.read")) == 401
    assert await rest.status("PATCH", f"/v1/jobs/{ADAS}?mode=cancel", cancel(ADAS)) == 403
    assert rest.behind.told == []
    headers = cancel(EVES)
    assert await rest.status("PATCH", f"/v1/jobs/{EVES}?mode=cancel", headers) == 202
    assert await rest.status("PATCH", f"/v1/jobs/{EVES}?mode=cancel", headers) == 401
    assert rest.behind.told == ["cancelled e"]


async def test_cluster_lists_show_a_submitter_nothing_of_the_jobs_of_others(rest: Socket) -> None:
    eve, grace = rest.access_token_of("submitter"), rest.access_token_of("viewer", name="grace")
    (taskmanager,) = (await rest.get("/v1/taskmanagers", eve))["taskmanagers"]
    assert [(slot["state"], slot["job_id"]) for slot in taskmanager["slots"]] == [("ACTIVE", ""), ("ACTIVE", EVES)]
    assert taskmanager["drivers"] == ["", EVES]
    assert (await rest.get("/v1/taskmanagers/tm-1", eve)) == taskmanager
    peers = [each["peer"] for each in (await rest.get("/v1/connections", eve))["connections"]]
    assert [peer.removeprefix("spiffe://td/") for peer in peers] == ["taskmanager/tm-1", f"job/{EVES}/executor/1"]
    outside = [each["job_id"] for each in (await rest.get("/v1/connections", eve))["egress"]]
    assert outside == [EVES]
    assert [each["job_id"] for each in (await rest.get(f"/v1/jobs/{EVES}/connections", eve))["egress"]] == [EVES]
    for target in ("/v1/taskmanagers", "/v1/connections"):
        assert ADAS not in str(await rest.get(target, eve))
        assert ADAS in str(await rest.get(target, grace))


def test_each_route_means_one_operation_here_and_at_the_gateway() -> None:
    for route in PUBLISHED:
        assert operation_of(route.method, route.path.replace("{", "").replace("}", "")) == route.operation
