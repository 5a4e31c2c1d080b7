"""Egress evidence on its way from the sandbox to the signed audit log and back.

TaskManager, JobManager and a real auth service talk over mutual TLS.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from sluice.core.egress_evidence import (
    EgressDecision,
    EgressJob,
    EgressQuestion,
    EgressReport,
    EgressTarget,
    EgressVerdict,
)
from sluice.core.errors import AssertionRefused, SluiceError
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.log import audit_directory
from sluice.gateway.audit_log.verification import read_records, verify_log
from sluice.gateway.config import AUTH_NAME, GatewayConfig
from sluice.gateway.service import route_file, run_auth
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.egress import BoxId, Destination, EgressJournal, EgressReporter, reporting_egress
from sluice.runtime.egress.reporter import NOT_ALLOWED
from sluice.runtime.gateways import EGRESS, EgressGateway
from sluice.runtime.jobmanager.egress import EgressEndpoint, EgressLedger, Exchange
from sluice.runtime.jobmanager.errors import JobNotFound
from sluice.runtime.jobmanager.gateways import JobOrigin
from sluice.runtime.rest import AuthService, remote_ask_egress
from sluice.runtime.rpc import CallNotPermitted, RpcService
from tests.free_ports import free_port
from tests.hostile import TRUST_DOMAIN, TestPki

JOB = "0123456789abcdef0123456789abcdef"
BOX = BoxId(JOB, 1, "driver")
API = Destination("api.example.com", "", 443)
OTHER = Destination("other.example.com", "", 443)
POLICY = """
version = 1
[roles.submitter]
allow = ["jobs.list"]
[[egress]]
to = ["api.example.com:443", "other.example.com:443"]
users = ["ada"]
"""
ROUTES = [{"method": "GET", "path": "/v1/jobs", "operation": "jobs.list"}]
DEADLINE_SECONDS = 30.0


class Dispatcher:
    """A dispatcher that knows one job, which belongs to ada."""

    async def job_origin(self, job_id: str) -> JobOrigin:
        if job_id != JOB:
            raise JobNotFound(f"there is no job {job_id}")
        return JobOrigin(job=EgressJob(id=JOB, name="nightly", owner="ada", roles=("submitter",)))


@dataclass
class World:
    """Everything between a box and the audit log."""

    home: Home
    pki: TestPki
    stack: AsyncExitStack
    journal: EgressJournal = field(default_factory=EgressJournal)
    ledger: EgressLedger = field(default_factory=EgressLedger)
    auth: asyncio.Task[None] | None = None
    address: tuple[str, int] = field(default_factory=lambda: ("127.0.0.1", free_port()))

    async def start(self) -> None:
        self.home.create()
        write_secret(route_file(self.home), json.dumps(ROUTES).encode())
        self.write_policy(POLICY)
        self.pki.issuer.issue_to(
            self.home.identity(Role.AUTH, AUTH_NAME), SpiffeId.process(TRUST_DOMAIN, Role.AUTH, AUTH_NAME)
        )
        await self.start_auth()
        self.jobmanager = self.pki.process(Role.JOBMANAGER)
        server = await self._service(self.jobmanager)
        exchange = Exchange(remote_ask_egress(AuthService(self.jobmanager, [self.address])))
        self.stack.push_async_callback(exchange.close)
        await server.start(EgressEndpoint(Dispatcher(), exchange, self.ledger))  # type: ignore[arg-type]  # all it needs
        self.rpc = await server.listen("127.0.0.1", 0)
        self.gateway = await self.dial(self.pki.process(Role.TASKMANAGER, "tm-1"))
        self.reporter = EgressReporter(self.journal, lambda: self.gateway, enforce=True)

    async def dial(self, identity: TlsIdentity) -> EgressGateway:
        client = await self._service(identity)
        return (await client.connect(*self.rpc)).gateway(EgressGateway, EGRESS)

    async def dial_again(self) -> EgressGateway:
        """Connect again, as a TaskManager whose link has ended."""
        return await self.dial(self.pki.process(Role.TASKMANAGER, "tm-1"))

    async def start_auth(self) -> None:
        config = GatewayConfig(port=0, auth_host="127.0.0.1", auth_port=self.address[1])
        self.auth = asyncio.create_task(run_auth(self.home, config, TRUST_DOMAIN))
        announced = self.home.run / "endpoints" / "auth.json"
        await self.until(lambda: announced.exists() or self.auth is None or self.auth.done())
        document = json.loads(announced.read_bytes())
        self.address = document["host"], document["port"]

    async def stop_auth(self) -> None:
        if self.auth is not None:
            self.auth.cancel()
            await asyncio.gather(self.auth, return_exceptions=True)
            self.auth = None

    async def _service(self, identity: TlsIdentity) -> RpcService:
        service = RpcService(identity)
        self.stack.push_async_callback(service.close)
        return service

    def write_policy(self, text: str) -> None:
        self.home.gateway.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = self.home.gateway / "policy.new"
        staged.write_text(text)
        staged.chmod(0o600)
        staged.rename(self.home.gateway / "policy.toml")

    def tunnel(self, to: Destination) -> socket.socket:
        """Open a connection of the job, and return the job's end of it."""
        ours, jobs = socket.socketpair()
        self.stack.callback(ours.close)
        self.stack.callback(jobs.close)
        jobs.setblocking(False)

        def end(reason: str) -> None:
            ours.shutdown(socket.SHUT_RDWR)
            made.closed(reason)

        made = self.journal.opened(BOX, to, end=end, measure=lambda: (11, 22))
        return jobs

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not holds():  # noqa: ASYNC110  what is waited for is in files and other processes' answers
                await asyncio.sleep(0.02)

    def records(self) -> list[AuditRecord]:
        return [each for each in read_records(audit_directory(self.home)) if each.event in {"egress", "gap"}]


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    pki = TestPki(tmp_path)
    async with AsyncExitStack() as stack:
        made = World(pki.home, pki, stack)
        stack.push_async_callback(made.stop_auth)
        await made.start()
        yield made


async def test_egress_rows_reach_the_signed_log_with_owner_and_job(world: World) -> None:
    async with reporting_egress(world.reporter):
        world.tunnel(API)
        world.journal.refused(BOX, Destination("", "203.0.113.9", 53, "udp"), "no_route", count=40)
        world.journal.end_all("done")
    assert await world.reporter.flush(world.dial_again) == ()
    found = {each.method: each for each in world.records()}
    tcp, udp = found["TCP"], found["UDP"]
    assert (tcp.principal, tcp.credential, tcp.path, tcp.decision) == ("ada", JOB, "api.example.com:443", "allow")
    assert isinstance(tcp.detail, dict)
    assert (tcp.detail["job"], tcp.detail["reporter"]) == ("nightly", "taskmanager/tm-1")
    assert (tcp.detail["bytes_up"], tcp.detail["bytes_down"]) == ("11", "22")
    assert isinstance(udp.detail, dict)
    assert (udp.decision, udp.path, udp.detail["count"], udp.reason) == ("deny", "203.0.113.9:53", "40", "no_route")
    await world.stop_auth()
    assert verify_log(audit_directory(world.home)).unsigned == 0
    assert [row.verdict for row in world.ledger.rows_of(JOB)].count(EgressVerdict.REFUSED) == 1


async def test_revoking_a_destination_ends_its_open_connections_and_no_others(world: World) -> None:
    async with reporting_egress(world.reporter):
        gone, stays = world.tunnel(API), world.tunnel(OTHER)
        await world.until(lambda: len(world.ledger.rows_of(JOB)) == 2)
        world.write_policy(POLICY.replace('"api.example.com:443", ', ""))
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await asyncio.get_running_loop().sock_recv(gone, 1) == b""
        with pytest.raises(BlockingIOError):
            stays.recv(1)
        assert world.journal.report().targets == (EgressTarget(job_id=JOB, host="other.example.com", port=443),)
        await world.until(lambda: any(each.reason == NOT_ALLOWED for each in world.records()))
        target = EgressTarget(job_id=JOB, host="api.example.com", port=443)
        assert await world.reporter.decide(target) == EgressDecision(decided=True, allowed=False)


async def test_egress_rows_wait_for_an_unavailable_auth_service_and_are_recorded_once(world: World) -> None:
    async with reporting_egress(world.reporter):
        await world.stop_auth()
        world.tunnel(API)
        world.journal.end_all("done")
        assert not await world.reporter.step()
        assert not await world.reporter.step()
        await world.start_auth()
        await world.until(lambda: bool(world.records()))
    assert [each.path for each in world.records()] == ["api.example.com:443"]


async def test_an_unknown_job_is_refused_every_connection(world: World) -> None:
    stranger = EgressTarget(job_id="f" * 32, host="api.example.com", port=443)
    assert await world.reporter.decide(stranger) == EgressDecision(decided=True, allowed=False)
    receipt = await world.gateway.report_egress(EgressReport(targets=(stranger,)))
    assert (receipt.decided, receipt.refused) == (True, (0,))


@pytest.mark.parametrize("who", ["driver", "executor", "gateway"])
async def test_only_taskmanagers_may_report_egress(world: World, who: str) -> None:
    match who:
        case "driver":
            identity = world.pki.identity(SpiffeId.parse(f"spiffe://{TRUST_DOMAIN}/job/{JOB}/driver"))
        case "executor":
            identity = world.pki.identity(SpiffeId.parse(f"spiffe://{TRUST_DOMAIN}/job/{JOB}/executor/1"))
        case _:
            identity = world.pki.process(Role.GATEWAY)
    with pytest.raises(CallNotPermitted if who == "driver" else SluiceError):
        await (await world.dial(identity)).report_egress(EgressReport())
    assert world.records() == []


async def test_only_jobmanagers_may_ask_the_auth_service_about_egress(world: World) -> None:
    for role in (Role.TASKMANAGER, Role.GATEWAY):
        ask = remote_ask_egress(AuthService(world.pki.process(role), [world.address]))
        with pytest.raises(AssertionRefused):
            await Exchange(ask).ask(_question())
    assert world.records() == []


def _question() -> EgressQuestion:
    return EgressQuestion(targets=(EgressTarget(job_id=JOB, host="api.example.com", port=443),))
