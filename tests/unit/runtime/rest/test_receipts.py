"""The receipts route: who gets a receipt, for which jobs, and what a submission stores for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from sluice.core.home import Home
from sluice.pki.assertions.keys import AssertionKeys, assertion_keys_file
from sluice.pki.assertions.principal import Credential, Jti, Principal
from sluice.pki.assertions.tokens import Assertion
from sluice.pki.attestations.dsse import canonical
from sluice.runtime.jobmanager.gateways import EgressConnections
from sluice.runtime.jobmanager.views import JobDetail, JobRecord
from sluice.runtime.messages import Admission, JobState
from sluice.runtime.receipts.issuing import ReceiptIssuer
from sluice.runtime.receipts.verification import verify_receipt
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.serving import handler_of
from sluice.runtime.rest.submissions.admission import admission_of, new_salt
from sluice.runtime.rest_server.server import RestServer, make_application
from tests.assertions import AssertingGateway
from tests.receipts import JOB, OUTSIDE, RECORD, ReceiptWorld

PATH = f"/v1/jobs/{JOB}/receipts"


@dataclass
class Behind:
    """A fake Dispatcher and egress endpoint, with only the methods that receipts use."""

    record: JobRecord = RECORD

    async def job(self, job_id: str) -> JobDetail:
        assert job_id == JOB
        return self.record.detail

    async def job_record(self, job_id: str) -> JobRecord:
        assert job_id == JOB
        return self.record

    async def egress_connections(self, job_id: str) -> EgressConnections:
        assert job_id == JOB
        return OUTSIDE


@dataclass
class Rest:
    gateway: AssertingGateway
    session: aiohttp.ClientSession
    cluster: SimpleNamespace
    world: ReceiptWorld

    async def ask(self, name: str = "ada", role: str = "submitter", **order: bool) -> tuple[int, Any]:
        headers = self.gateway.headers("POST", PATH, name, role)
        async with self.session.post(f"http://rest{PATH}", json=order, headers=headers) as answer:
            return answer.status, await answer.json(content_type=None)


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    world = ReceiptWorld(tmp_path)
    home = Home.at(tmp_path / "rest").create()
    behind = Behind()
    receipts = ReceiptIssuer(world.jobmanager, world.prove)
    cluster = SimpleNamespace(dispatcher=behind, egress=behind, receipts=receipts)
    keys = AssertionKeys(assertion_keys_file(home))
    gateway = AssertingGateway(home)
    application = make_application(lambda route: handler_of(route, cast("Cluster", cluster)), keys.keys)
    server = RestServer(application, tmp_path / "s" / "rest.sock")
    await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(server.path))) as session:
        yield Rest(gateway, session, cluster, world)
    await server.close()


async def test_the_owner_gets_a_receipt_that_verifies(rest: Rest) -> None:
    status, document = await rest.ask()
    assert status == 200
    verified = verify_receipt(canonical(document), rest.world.anchors)
    assert verified.statement.predicate.submission.parameters.disclosed is None
    assert verified.proven.detail["principal"] == "ada"


async def test_only_the_owner_can_disclose_the_parameters_in_a_receipt(rest: Rest) -> None:
    status, document = await rest.ask(disclose_parameters=True)
    assert status == 200
    shown = verify_receipt(canonical(document), rest.world.anchors).statement.predicate.submission.parameters.disclosed
    assert shown is not None
    assert shown.arguments == RECORD.submission.args
    assert (await rest.ask("grace", "admin"))[0] == 200
    refused, problem = await rest.ask("grace", "admin", disclose_parameters=True)
    assert (refused, problem["type"]) == (403, "urn:sluice:problem:NotYours")


async def test_another_user_gets_no_receipt(rest: Rest) -> None:
    before = rest.world.log.state.count
    assert (await rest.ask("eve"))[0] == 403
    assert rest.world.log.state.count == before


async def test_a_running_job_has_no_receipt(rest: Rest) -> None:
    detail = msgspec.structs.replace(RECORD.detail, state=JobState.RUNNING, end_time=None)
    rest.cluster.dispatcher.record = msgspec.structs.replace(RECORD, detail=detail)
    status, problem = await rest.ask()
    assert (status, problem["type"]) == (409, "urn:sluice:problem:ReceiptUnavailable")


async def test_without_a_recording_gateway_there_is_no_receipt(rest: Rest) -> None:
    rest.cluster.receipts = None
    status, problem = await rest.ask()
    assert (status, problem["type"]) == (409, "urn:sluice:problem:ReceiptUnavailable")


def test_a_submission_keeps_its_admission_and_a_unique_salt() -> None:
    who = Assertion(
        Principal("ada", ("submitter",), "certificate", Credential("certificate", "c-1"), ("group",)),
        "request-1",
        Jti("jti-1"),
        may_own=frozenset({"jobs.submit"}),
        policy="9" * 64,
    )
    assert admission_of(who.for_operation("jobs.submit", changes=True)) == Admission(
        method="certificate",
        credential_kind="certificate",
        credential="c-1",
        operation="jobs.submit",
        request_id="request-1",
        assertion_id="jti-1",
        policy="9" * 64,
    )
    assert len(new_salt()) == 64
    assert new_salt() != new_salt()
