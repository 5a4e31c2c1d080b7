"""The REST endpoint over a real unix socket, with endpoints that only remember what they were asked."""

from __future__ import annotations

import hashlib
import io
import json
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from sluice.core.home import Home
from sluice.pki.assertions.keys import AssertionKeys, assertion_keys_file
from sluice.pki.assertions.open_streams import OpenStreams
from sluice.pki.assertions.principal import Credential, Principal
from sluice.pki.assertions.tokens import HEADER
from sluice.runtime.blob.store import BlobStore
from sluice.runtime.checkpoint.errors import NotStreaming, SavepointNotFound
from sluice.runtime.checkpoint.ledger import Checkpoint, CheckpointsView
from sluice.runtime.checkpoint.savepoints import Savepoint
from sluice.runtime.config import ConnectConfig, RuntimeConfig, SparkConfig
from sluice.runtime.jobmanager.dispatcher.cluster_diagnostics import ClusterDiagnostics
from sluice.runtime.jobmanager.dispatcher.connect_sessions import ConnectSessions
from sluice.runtime.jobmanager.dispatcher.job_feed import JobFeed
from sluice.runtime.jobmanager.dispatcher.submission_checks import check_submission
from sluice.runtime.jobmanager.errors import (
    JobAlreadyTerminal,
    JobNotFound,
    LogNotFound,
    TaskManagerLeaves,
    TaskManagerNotFound,
)
from sluice.runtime.jobmanager.gateways import (
    ConnectAddress,
    HistoryPage,
    ServiceCounts,
)
from sluice.runtime.jobmanager.views import (
    ExceptionEntry,
    ExecutorView,
    Failure,
    JobBlob,
    JobDetail,
    JobRecord,
    JobSummary,
    QueueView,
    SavepointRequest,
    SlotView,
    SparkUiState,
    SparkUiView,
    TaskManagerView,
)
from sluice.runtime.messages import (
    BlobRef,
    ConnectionEvidence,
    Evidence,
    JobKind,
    JobProgress,
    JobState,
    JobSubmission,
    LogChunk,
    SlotState,
    StageReport,
    StageState,
    StageTable,
    UiPage,
    UiRequest,
)
from sluice.runtime.rest.auth_service.stream_validity import check_nothing
from sluice.runtime.rest.cluster import Cluster, ClusterFacts, Term
from sluice.runtime.rest.protocol.streams import Streams
from sluice.runtime.rest.serving import handler_of
from sluice.runtime.rest.submissions.artifacts import ArtifactStores
from sluice.runtime.rest_server.routes import ROUTES, published_routes
from sluice.runtime.rest_server.server import RestServer, make_application
from tests.assertions import AssertingGateway, operation_of
from tests.partial_gateways import PartialDispatcher, PartialResourceManager
from tests.unit.runtime.jobmanager.secrets.worlds import SecretWorld
from tests.waiting import until

JOB = "0123456789abcdef" * 2
EVIDENCE = ConnectionEvidence(
    channel="data",
    local="spiffe://td/a/1",
    peer="spiffe://td/b/2",
    direction="dialed",
    protocol="TLSv1.3",
    cipher="X",
)
STAGES = StageTable(
    stages=(
        StageReport(
            id=0,
            job=0,
            name="map",
            state=StageState.FINISHED,
            attempts=1,
            tasks_total=4,
            tasks_running=0,
            tasks_finished=4,
            tasks_failed=0,
            operators=("Scan csv", "Exchange"),
            shuffle_write_bytes=100,
            task_ms=(1, 2, 3, 4, 50),
        ),
        StageReport(
            id=1,
            job=0,
            name="count",
            state=StageState.RUNNING,
            attempts=1,
            tasks_total=2,
            tasks_running=1,
            tasks_finished=1,
            tasks_failed=0,
            parents=(0,),
            shuffle_read_bytes=60,
        ),
    ),
)
DETAIL = JobDetail(
    id=JOB,
    name="p.py",
    owner="alice",
    state=JobState.FAILED,
    start_time=1000,
    end_time=3000,
    duration_ms=2000,
    attempt=1,
    progress=JobProgress(tasks_total=7),
    executors=(ExecutorView(id=1, taskmanager="tm-1", slot=0, state="EXITED", exit_reason="gone", started_at=1500),),
    timestamps={"FAILED": 3000},
    failure=Failure(error="ValueError: no", traceback="Traceback …"),
    pending_reason="",
)


SAVEPOINT = Savepoint(
    id="savepoint-012345-0123456789abcdef",
    path="file:///s/savepoint-012345-0123456789abcdef",
    job_id=JOB,
    job_name="p.py",
    owner="alice",
    created_at=1,
    stopped=True,
    checkpoint=Checkpoint(number=3, attempt=1, completed_at=1, queries=()),
    files=1,
    size=1,
)


@dataclass
class FakeDispatcher(PartialDispatcher):
    """A fake Dispatcher with one job, and the Spark Connect sessions that were submitted."""

    submitted: dict[str, JobSubmission] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    disposed: list[str] = field(default_factory=list)
    terminal: bool = False
    crash: bool = False
    feed: JobFeed = field(default_factory=JobFeed)
    asked: list[UiRequest] = field(default_factory=list)
    asked_history: list[tuple[tuple[int, str] | None, int]] = field(default_factory=list)
    page: UiPage = field(default_factory=lambda: UiPage(status=200, media="text/html", body=b"<p>"))

    async def submit_job(self, job_id: str, submission: JobSubmission) -> None:
        self.submitted[job_id] = check_submission(submission)

    async def jobs(self) -> tuple[JobSummary, ...]:
        if self.crash:
            raise ZeroDivisionError("the secret of the inside")
        sessions = [each for each, submission in self.submitted.items() if submission.kind is JobKind.CONNECT]
        return (DETAIL.summary(), *[(await self.job(each)).summary() for each in sessions])

    async def history(self, before: tuple[int, str] | None, limit: int) -> HistoryPage:
        self.asked_history.append((before, limit))
        ended = [msgspec.structs.replace(DETAIL.summary(), owner=owner) for owner in (DETAIL.owner, "somebody")]
        return HistoryPage(jobs=tuple(ended), following=None if before else (77, JOB))

    async def job(self, job_id: str) -> JobDetail:
        submission = self.submitted.get(job_id)
        if submission is not None and submission.kind is JobKind.CONNECT:
            known = {"id": job_id, "owner": submission.owner, "kind": JobKind.CONNECT, "state": JobState.RUNNING}
            return msgspec.structs.replace(DETAIL, **known)
        if job_id != JOB:
            raise JobNotFound(f"there is no job {job_id}")
        return DETAIL

    async def cancel_job(self, job_id: str) -> None:
        if self.terminal:
            raise JobAlreadyTerminal(f"job {job_id} is FINISHED")
        self.cancelled.append(job_id)

    async def job_logs(self, job_id: str) -> tuple[str, ...]:
        assert job_id == JOB
        return ("driver.stdout", "executor-1.stderr")

    async def read_job_log(self, job_id: str, source: str, offset: int, limit: int) -> LogChunk:
        if (job_id, source) != (JOB, "driver.stdout"):
            raise LogNotFound(f"no log {source}")
        return LogChunk(data="x" * min(limit, 3), offset=offset, next_offset=offset + 3, end=True)

    async def connect_address(self, job_id: str) -> ConnectAddress:
        return ConnectAddress(host="127.0.0.1", port=1)

    async def job_ui(self, job_id: str, request: UiRequest) -> UiPage:
        await self.job(job_id)
        self.asked.append(request)
        return self.page

    async def job_ui_state(self, job_id: str) -> SparkUiView:
        await self.job(job_id)
        return SparkUiView(state=SparkUiState.KEPT, path=f"/v1/jobs/{job_id}/ui", size=9, kept_until=7)

    async def job_connections(self, job_id: str) -> Evidence:
        assert job_id == JOB
        return Evidence((EVIDENCE,), dropped=3)

    async def blobs(self) -> tuple[JobBlob, ...]:
        return (
            JobBlob(owner="alice", name="p.py", sha256="1" * 64, size=10, job_id=JOB, submitted_at=1),
            JobBlob(owner="alice", name="q.py", sha256="1" * 64, size=10, job_id=JOB, submitted_at=1),
            JobBlob(owner="bob", name="x.csv", sha256="2" * 64, size=20, job_id="b" * 32, submitted_at=2),
        )

    async def trigger_savepoint(self, job_id: str, stop: bool) -> str:
        if not stop:
            raise NotStreaming("no streaming query runs in this job")
        return "savepoint-012345-0123456789abcdef"

    async def savepoints(self) -> tuple[Savepoint, ...]:
        return (SAVEPOINT,)

    async def savepoint(self, savepoint_id: str) -> Savepoint:
        if not savepoint_id.endswith(SAVEPOINT.id):
            raise SavepointNotFound(f"there is no savepoint {savepoint_id}")
        return SAVEPOINT

    async def dispose_savepoint(self, savepoint_id: str) -> None:
        self.disposed.append(savepoint_id)

    async def job_record(self, job_id: str) -> JobRecord:
        assert job_id == JOB
        return JobRecord(
            submission=JobSubmission(
                name="p.py", owner="alice", pipeline=BlobRef(sha256="1" * 64, name="p.py", size=10)
            ),
            detail=await self.job(job_id),
            stages=STAGES,
            checkpoints=CheckpointsView(completed=3),
            savepoints=(SavepointRequest(id="savepoint-012345-0123456789abcdef", requested_at=1, stop=True),),
            exceptions=(ExceptionEntry(attempt=1, time=7, error="KeyError: 'x'", root_cause="KeyError: 'x'"),),
        )


class FakeResourceManager(PartialResourceManager):
    """A fake ResourceManager with one TaskManager."""

    def __init__(self) -> None:
        self.leaving = False

    async def queues(self) -> tuple[QueueView, ...]:
        return ()

    async def taskmanagers(self) -> tuple[TaskManagerView, ...]:
        slot = SlotView(slot=0, state=SlotState.ACTIVE, job_id=JOB)
        free = SlotView(slot=1, state=SlotState.FREE, job_id="")
        return (
            TaskManagerView(
                id="tm-1",
                identity="spiffe://td/taskmanager/tm-1",
                host="h",
                slots_total=2,
                slots_free=1,
                slots=(slot, free),
                last_heartbeat=5,
            ),
        )

    async def connections(self) -> Evidence:
        return Evidence((EVIDENCE,), dropped=3)

    async def service_counts(self) -> ServiceCounts:
        return ServiceCounts(taskmanagers=1)

    async def drain_taskmanager(self, name: str, draining: bool) -> None:
        if name != "tm-1":
            raise TaskManagerNotFound(f"no TaskManager {name!r} is registered")
        if self.leaving and not draining:
            raise TaskManagerLeaves(f"TaskManager {name} is empty and leaves")
        self.leaving = draining


@dataclass
class Rest:
    """A running REST endpoint and its client."""

    dispatcher: FakeDispatcher
    session: aiohttp.ClientSession
    socket: Path
    blobs: Path
    gateway: AssertingGateway

    async def call(
        self, method: str, path: str, *, by: tuple[str, ...] = ("alice", "submitter"), **options: Any
    ) -> tuple[int, Any]:
        """Send a request and return status and decoded body; ``by`` is the caller's name and roles."""
        options.setdefault("headers", {})
        if HEADER not in options["headers"]:
            options["headers"] = self.gateway.headers(method, path, *by) | options["headers"]
        async with self.session.request(method, f"http://rest{path}", **options) as response:
            expected = "application/json" if response.status < 400 else "application/problem+json"
            assert response.content_type == expected
            document = json.loads(await response.read())
            if response.status >= 400:
                assert set(document) == {"type", "title", "status", "detail"}
                assert document["status"] == response.status
            return response.status, document

    def stored(self) -> list[Path]:
        """Return all files in the blob store; a file shared by several jobs counts once."""
        return list({path.stat().st_ino: path for path in self.blobs.rglob("*") if path.is_file()}.values())


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    """REST on a socket below ``tmp_path``; blobs of up to 4 MB."""
    dispatcher = FakeDispatcher()
    store = BlobStore(tmp_path / "blobs", 4_000_000)
    facts = ClusterFacts("0.1", "4.3", "spiffe://td/jobmanager/jm", "td")
    sessions = ConnectSessions(dispatcher, store, ConnectConfig())
    cluster = Cluster(
        dispatcher,
        FakeResourceManager(),
        store,
        facts,
        sessions,
        default_executors=2,
        leader=Term("jm", 3, 5000),
        config=RuntimeConfig(spark=SparkConfig(conf={"spark.a": "b", "spark.hadoop.fs.s3a.secret.key": "xyzzy"})),
        diagnostics=ClusterDiagnostics(Home.at(tmp_path / "home"), "jobmanager/jm", lambda: ()),
        artifacts=ArtifactStores(()),
        feed=dispatcher.feed,
        streams=Streams(OpenStreams(check_nothing)),
        secrets=SecretWorld(tmp_path / "secrets").store,
    )
    home = Home.at(tmp_path / "home").create()
    server = RestServer(
        make_application(lambda route: handler_of(route, cluster), AssertionKeys(assertion_keys_file(home)).keys),
        tmp_path / "s" / "rest.sock",
    )
    await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(server.path))) as session:
        yield Rest(dispatcher, session, server.path, tmp_path / "blobs", AssertingGateway(home))
    await server.close()
    assert not server.path.exists()


def form(request: object = None, *, pipeline: bytes | None = b"print(1)", files: int = 0) -> aiohttp.FormData:
    """Return the form of a submission."""
    data = aiohttp.FormData()
    if request is not None:
        text = request if isinstance(request, str) else json.dumps(request)
        data.add_field("request", text, content_type="application/json")
    if pipeline is not None:
        data.add_field("pipeline", io.BytesIO(pipeline), filename="p.py", content_type="text/x-python")
    for number in range(files):
        data.add_field("file", f"content {number}".encode(), filename=f"f{number}.csv")
    return data


def test_the_published_routes_are_the_served_ones() -> None:
    assert published_routes()[0] == {"method": "GET", "path": "/v1/overview", "operation": "overview.read"}
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({route.id for route in ROUTES}) == len(ROUTES)


async def test_the_socket_is_accessible_to_its_owner_only(rest: Rest) -> None:
    assert stat.S_IMODE(rest.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(rest.socket.parent.stat().st_mode) == 0o700


async def test_the_overview_is_served(rest: Rest) -> None:
    assert await rest.call("GET", "/v1/overview") == (
        200,
        {
            "taskmanagers": 1,
            "slots_total": 2,
            "slots_available": 1,
            "jobs_running": 0,
            "jobs_finished": 0,
            "jobs_cancelled": 0,
            "jobs_failed": 1,
            "sluice_version": "0.1",
            "spark_version": "4.3",
            "jobmanager": "spiffe://td/jobmanager/jm",
            "trust_domain": "td",
            "isolation": {"none": 1},
            "egress": {"off": 1},
        },
    )


async def test_the_list_of_jobs_and_a_single_job_are_served(rest: Rest) -> None:
    status, document = await rest.call("GET", "/v1/jobs")
    summary = {
        "id": JOB,
        "name": "p.py",
        "owner": "alice",
        "state": "FAILED",
        "start_time": 1000,
        "end_time": 3000,
        "duration_ms": 2000,
        "kind": "PIPELINE",
    }
    assert (status, document) == (200, {"jobs": [summary], "next": None})
    status, document = await rest.call("GET", f"/v1/jobs/{JOB}")
    assert status == 200
    assert summary.items() <= document.items()
    assert document["failure"] == {"error": "ValueError: no", "traceback": "Traceback …"}
    assert document["executors"][0]["exit_reason"] == "gone"
    assert document["progress"]["tasks_total"] == 7
    assert {"attempt", "timestamps", "pending_reason"} <= set(document)


async def test_stages_plan_and_totals_of_a_job_are_served(rest: Rest) -> None:
    _, document = await rest.call("GET", f"/v1/jobs/{JOB}/stages?limit=1")
    (stage,) = document["stages"]
    assert (stage["id"], stage["task_ms"], document["left_out"]) == (0, [1, 2, 3, 4, 50], 0)
    _, document = await rest.call("GET", f"/v1/jobs/{JOB}/stages?after={document['next']}")
    assert [each["id"] for each in document["stages"]] == [1]
    _, plan = await rest.call("GET", f"/v1/jobs/{JOB}/plan")
    assert plan["jobs"] == [{"id": 0, "description": "", "stages": [0, 1]}]
    assert [(node["id"], node["parents"], node["state"]) for node in plan["nodes"]] == [
        (0, [], "FINISHED"),
        (1, [0], "RUNNING"),
    ]
    _, document = await rest.call("GET", f"/v1/jobs/{JOB}/metrics")
    values = {each["id"]: each["value"] for each in document["metrics"]}
    assert (values["tasks_total"], values["duration_ms"], values["disk_spilled_bytes"]) == (7, 2000, 0)


async def test_the_leader_and_its_configuration_without_secrets_are_served(rest: Rest) -> None:
    leader = {"name": "jm", "identity": "spiffe://td/jobmanager/jm", "epoch": 3, "since": 5000, "standbys": None}
    assert await rest.call("GET", "/v1/leader") == (200, leader)
    _, document = await rest.call("GET", "/v1/config")
    assert document["config"]["spark"]["conf"] == {"spark.a": "b", "spark.hadoop.fs.s3a.secret.key": "(hidden)"}
    assert document["config"]["jobmanager"]["finished_jobs_kept"] == 100


async def test_the_openapi_description_is_served(rest: Rest) -> None:
    status, document = await rest.call("GET", "/v1/openapi.json", by=("eve", "viewer"))
    assert (status, document["openapi"], document["info"]["version"]) == (200, "3.1.0", "0.1")


async def test_taskmanagers_and_connections_are_served(rest: Rest) -> None:
    _, document = await rest.call("GET", "/v1/taskmanagers")
    slot = document["taskmanagers"][0]["slots"][0]
    assert slot == {"slot": 0, "state": "ACTIVE", "job_id": JOB, "cores": 0, "memory_mb": 0}
    for path in ("/v1/connections", f"/v1/jobs/{JOB}/connections"):
        _, document = await rest.call("GET", path)
        assert document["connections"][0]["protocol"] == "TLSv1.3"
        assert document["dropped"] == 3


async def test_a_taskmanager_is_drained_and_a_leaving_taskmanager_cannot_be_undrained(rest: Rest) -> None:
    assert await rest.call("POST", "/v1/taskmanagers/tm-1/undrain") == (200, {})
    assert await rest.call("POST", "/v1/taskmanagers/tm-1/drain") == (202, {})
    status, problem = await rest.call("POST", "/v1/taskmanagers/tm-1/undrain")
    assert (status, problem["type"]) == (409, "urn:sluice:problem:TaskManagerLeaves")
    for act in ("drain", "undrain"):
        status, problem = await rest.call("POST", f"/v1/taskmanagers/nobody/{act}")
        assert (status, problem["type"]) == (404, "urn:sluice:problem:TaskManagerNotFound")
    assert (await rest.call("GET", "/v1/taskmanagers/tm-1/drain"))[0] == 405


@pytest.mark.parametrize("path", ["", "/logs", "/logs?source=driver.stdout", "/connections", "/ui/jobs", "/spark-ui"])
async def test_a_user_who_may_see_only_own_jobs_is_refused_the_jobs_of_others(rest: Rest, path: str) -> None:
    """The operation is granted for own jobs only: the assertion does not grant it for any owner."""

    async def status(name: str) -> int:
        target = f"/v1/jobs/{JOB}{path}"
        principal = Principal(name, ("tenant",), "token", Credential("token", "id-1"))
        operation = operation_of("GET", target)
        text = rest.gateway.signer.sign(principal, method="GET", target=target, operation=operation, request_id="r")
        headers = {HEADER: text}
        async with rest.session.get(f"http://rest{target}", headers=headers) as response:
            return response.status

    assert (await status("alice"), await status("eve")) == (200, 403)


async def test_the_list_of_jobs_has_only_the_jobs_that_the_user_may_see(rest: Rest) -> None:
    for name, count in (("alice", 1), ("eve", 0)):
        principal = Principal(name, ("tenant",), "token", Credential("token", "id-1"))
        text = rest.gateway.signer.sign(
            principal, method="GET", target="/v1/jobs", operation="jobs.list", request_id="r"
        )
        headers = {HEADER: text}
        async with rest.session.get("http://rest/v1/jobs", headers=headers) as response:
            assert len((await response.json())["jobs"]) == count


async def test_the_history_has_only_the_jobs_that_the_user_may_see_and_a_cursor(rest: Rest) -> None:
    async def history(name: str, query: str) -> Any:
        principal, target = Principal(name, ("tenant",), "token", Credential("token", "id-1")), f"/v1/history{query}"
        text = rest.gateway.signer.sign(principal, method="GET", target=target, operation="jobs.list", request_id="r")
        async with rest.session.get(f"http://rest{target}", headers={HEADER: text}) as response:
            return response.status, await response.json()

    status, first = await history("alice", "")
    assert (status, [job["owner"] for job in first["jobs"]], first["next"]) == (200, ["alice"], f"77-{JOB}")
    status, second = await history("somebody", f"?limit=7&after={first['next']}")
    assert (status, [job["owner"] for job in second["jobs"]], second["next"]) == (200, ["somebody"], None)
    assert (await history("eve", ""))[1]["jobs"] == []
    assert rest.dispatcher.asked_history == [(None, 100), ((77, JOB), 7), (None, 100)]
    for wrong in ("?limit=101", "?after=x", "?owner=alice"):
        assert (await history("alice", wrong))[0] == 400


UI = f"/v1/jobs/{JOB}/ui"


async def ui(rest: Rest, path: str, query: str = "", method: str = "GET") -> tuple[int, Any, str]:
    headers = rest.gateway.headers(method, UI + path + query, "alice", "viewer")
    url = f"http://rest{UI}{path}{query}"
    async with rest.session.request(method, url, headers=headers, allow_redirects=False) as response:
        return response.status, response.headers, await response.text()


async def test_a_spark_ui_page_is_served_with_normalized_links_and_without_headers_of_the_driver(rest: Rest) -> None:
    link = f'<a href="{UI}/jobs/job/?id=0">0</a> <a href="{UI}/stages/">all</a> <a href="/v1/jobs/x/">'
    rest.dispatcher.page = UiPage(status=200, media="text/html", body=link.encode())
    status, headers, text = await ui(rest, "/jobs/job", "?id=7")
    assert status == 200
    assert rest.dispatcher.asked == [UiRequest(path="/jobs/job/", query="id=7", base=UI)]
    assert text == f'<a href="{UI}/jobs/job?id=0">0</a> <a href="{UI}/stages">all</a> <a href="/v1/jobs/x/">'
    policy = headers["content-security-policy"]
    assert f"connect-src https://rest:*{UI}/;" in policy
    assert "script-src 'sha256-" in policy
    assert "'unsafe-inline'" not in policy.partition("style-src")[0]
    assert not {"set-cookie", "x-forwarded-context"} & {name.lower() for name in headers}


async def test_spark_ui_scripts_are_served_by_the_jobmanager_and_not_by_the_driver(rest: Rest) -> None:
    status, headers, text = await ui(rest, "/static/webui.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert "setUIRoot" in text
    assert (await ui(rest, "/static/sql/executionpage.js"))[0] == 200
    assert (await ui(rest, "/static/nothing.js"))[0] == 404
    assert rest.dispatcher.asked == []


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/job/kill",
        "/stages/stage/kill",
        "/executors/threadDump",
        "/executors/heapHistogram",
        "/metrics",
        "/metrics/json",
        "/api/v2/x",
        "/proxy",
        "/history",
    ],
)
async def test_a_path_that_is_not_a_spark_ui_page_is_not_requested_from_the_driver(rest: Rest, path: str) -> None:
    assert (await ui(rest, path, "?id=1"))[0] == 404
    assert rest.dispatcher.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_the_ui_is_read_only(rest: Rest, method: str) -> None:
    assert (await ui(rest, "/jobs", method=method))[0] == 405
    assert rest.dispatcher.asked == []


@pytest.mark.parametrize(
    ("page", "status", "location"),
    [
        (UiPage(status=302, location=f"http://driver{UI}/jobs/?id=3"), 302, f"{UI}/jobs?id=3"),
        (UiPage(status=302, location="/stages/"), 302, f"{UI}/stages"),
        (UiPage(status=302, location="https://elsewhere.example/%2e%2e/x"), 404, None),
        (UiPage(status=302, location="//elsewhere.example//x"), 404, None),
        (UiPage(status=302, location="javascript:alert(1)"), 404, None),
        (UiPage(status=200, media="application/javascript", body=b"x"), 404, None),
        (UiPage(status=200, media="image/svg+xml", body=b"<svg/>"), 404, None),
        (UiPage(status=500, media="text/html", body=b"trace"), 404, None),
        (UiPage(status=503), 404, None),
    ],
)
async def test_only_local_redirects_of_a_driver_are_passed_on_and_other_answers_are_not_found(
    rest: Rest, page: UiPage, status: int, location: str | None
) -> None:
    rest.dispatcher.page = page
    found, headers, text = await ui(rest, "/executors")
    assert (found, headers.get("location")) == (status, location)
    assert "trace" not in text


async def test_a_waiting_page_reloads_itself_until_the_event_log_has_been_read(rest: Rest) -> None:
    rest.dispatcher.page = UiPage(status=202)
    status, headers, text = await ui(rest, "/jobs")
    assert (status, headers["content-type"]) == (202, "text/html; charset=utf-8")
    assert 'http-equiv="refresh"' in text
    assert "script-src 'sha256-" in headers["content-security-policy"]
    status, _, text = await ui(rest, "/api/v1/applications")
    assert (status, "UiNotReady" in text) == (503, True)


async def test_the_state_of_the_spark_ui_of_a_job_is_served(rest: Rest) -> None:
    status, document = await rest.call("GET", f"/v1/jobs/{JOB}/spark-ui")
    expected = {"state": "KEPT", "path": UI, "reason": "", "size": 9, "kept_until": 7}
    assert (status, document) == (200, expected)
    assert (await rest.call("GET", f"/v1/jobs/{'f' * 32}/spark-ui"))[0] == 404


async def test_the_spark_ui_of_an_unknown_job_is_not_found(rest: Rest) -> None:
    for path in ("/jobs", "/static/webui.js"):
        assert (await rest.call("GET", UI.replace(JOB, "f" * 32) + path))[0] == 404


async def test_logs_are_listed_and_read(rest: Rest) -> None:
    assert (await rest.call("GET", f"/v1/jobs/{JOB}/logs"))[1] == {"logs": ["driver.stdout", "executor-1.stderr"]}
    status, document = await rest.call("GET", f"/v1/jobs/{JOB}/logs?source=driver.stdout&offset=5&limit=2")
    assert (status, document) == (
        200,
        {"source": "driver.stdout", "data": "xx", "offset": 5, "next_offset": 8, "end": True},
    )


async def test_a_submission_is_stored_and_handed_on(rest: Rest) -> None:
    request = {
        "name": "mine",
        "args": ["--x", "1"],
        "spark_conf": {"spark.sql.shuffle.partitions": "3"},
        "executors": 4,
    }
    spoofed = {"x-sluice-principal": "root", "x-sluice-roles": "admin"}
    status, document = await rest.call("POST", "/v1/jobs", data=form(request, files=2), headers=spoofed)
    assert status == 202
    (submission,) = rest.dispatcher.submitted.values()
    assert list(rest.dispatcher.submitted) == [document["job_id"]]
    assert (submission.name, submission.owner, submission.executors) == ("mine", "alice", 4)
    assert submission.owner_roles == ("submitter",), "as the gateway has asserted them"
    assert submission.args == ("--x", "1")
    assert [ref.name for ref in (submission.pipeline, *submission.files)] == ["p.py", "f0.csv", "f1.csv"]
    assert (rest.blobs / document["job_id"] / submission.pipeline.sha256).read_bytes() == b"print(1)"
    assert len(rest.stored()) == 3


async def test_name_and_executors_have_defaults(rest: Rest) -> None:
    assert (await rest.call("POST", "/v1/jobs", data=form({})))[0] == 202
    (submission,) = rest.dispatcher.submitted.values()
    assert (submission.name, submission.owner, submission.executors) == ("p.py", "alice", 2)


async def test_a_large_pipeline_is_streamed(rest: Rest) -> None:
    """It is larger than what aiohttp would read into memory."""
    assert (await rest.call("POST", "/v1/jobs", data=form({}, pipeline=b"x" * 3_000_000)))[0] == 202
    (submission,) = rest.dispatcher.submitted.values()
    assert submission.pipeline.size == 3_000_000


@pytest.mark.parametrize(
    ("data", "status", "detail"),
    [
        pytest.param(form({}, pipeline=None), 400, "'pipeline'", id="no pipeline"),
        pytest.param(form(), 400, "'request'", id="no request"),
        pytest.param(form("{"), 400, "not as expected", id="request is not JSON"),
        pytest.param(form({"executor": 2}), 400, "executor", id="unknown field"),
        pytest.param(form({"owner_roles": ["admin"]}), 400, "owner_roles", id="roles of its own choice"),
        pytest.param(
            form({"token_files": [{"audience": "a", "name": "../x"}]}), 400, "token_files", id="a token file elsewhere"
        ),
        pytest.param(
            form({"token_files": [{"audience": "a", "name": "x"}, {"audience": "b", "name": "x"}]}),
            400,
            "same name",
            id="two token files of one name",
        ),
        pytest.param(form({"args": "x"}), 400, "array", id="wrong type"),
        pytest.param(form({"executors": 0}), 400, "0 executors", id="no executors"),
        pytest.param(form({"executors": 10**9}), 400, "executors", id="too many executors"),
        pytest.param(form({"name": "a\u0007"}), 400, "job name", id="control character in the name"),
        pytest.param(form({"args": ["a\0b"]}), 400, "zero character", id="zero character in an argument"),
        pytest.param(
            form({"spark_conf": {"spark.ssl.rpc.enabled": "false"}}), 400, "spark.ssl", id="forbidden setting"
        ),
        pytest.param(form({}, pipeline=b"x" * 4_000_001), 413, "larger than", id="too large"),
        pytest.param(form({}, files=65), 400, "'file'", id="too many files"),
        pytest.param({"request": "{}", "pipeline": "x"}, 400, "multipart", id="urlencoded"),
    ],
)
async def test_the_error_in_an_invalid_submission_is_reported_and_nothing_is_kept(
    rest: Rest, data: Any, status: int, detail: str
) -> None:
    got, document = await rest.call("POST", "/v1/jobs", data=data)
    assert got == status
    assert detail in document["detail"]
    assert rest.stored() == []
    assert rest.dispatcher.submitted == {}


@pytest.mark.parametrize("name", ["../../evil.py", "..", ".bashrc"])
async def test_a_file_name_that_is_not_plain_is_refused(rest: Rest, name: str) -> None:
    data = form({}, pipeline=None)
    data.add_field("pipeline", b"x", filename=name)
    status, _ = await rest.call("POST", "/v1/jobs", data=data)
    assert status == 400
    assert rest.stored() == []


async def test_two_files_of_one_name_are_refused(rest: Rest) -> None:
    data = form({}, files=1)
    data.add_field("file", b"other", filename="f0.csv")
    assert (await rest.call("POST", "/v1/jobs", data=data))[0] == 400
    assert rest.stored() == []


PART = b'--x\r\ncontent-disposition: form-data; name="%s"; filename="p.py"\r\n\r\n'


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        pytest.param("multipart/form-data", b"x", id="no boundary"),
        pytest.param("multipart/form-data; boundary=x", b"", id="empty"),
        pytest.param("multipart/form-data; boundary=x", b"--x\r\nnonsense", id="no header"),
        pytest.param("multipart/form-data; boundary=x", b"--y\r\n\r\n--y--", id="other boundary"),
        pytest.param("multipart/form-data; boundary=x", PART % b"pipeline" + b"print(", id="cut off in a file"),
        pytest.param(
            "multipart/form-data; boundary=x",
            PART % b"request" + b"{}\r\n" + PART % b"pipeline" + b"print(1)\r\n-",
            id="cut off in the last boundary",
        ),
        pytest.param("multipart/form-data; boundary=x", PART % b"other" + b"1\r\n--x--\r\n", id="unknown part"),
        pytest.param("application/json", b"{}", id="JSON"),
        pytest.param("multipart/mixed; boundary=x", PART % b"request" + b"{}\r\n--x--\r\n", id="not form-data"),
    ],
)
async def test_a_malformed_body_is_a_bad_request_and_nothing_is_kept(
    rest: Rest, content_type: str, body: bytes
) -> None:
    status, _ = await rest.call("POST", "/v1/jobs", data=body, headers={"content-type": content_type})
    assert status == 400
    assert rest.stored() == []
    assert rest.dispatcher.submitted == {}


@pytest.mark.parametrize(
    ("by", "status"),
    [
        pytest.param(("alice", "submitter"), 202, id="owner"),
        pytest.param(("bob", "viewer", "admin"), 202, id="admin"),
        pytest.param(("bob", "submitter"), 403, id="somebody else"),
        pytest.param(("admin", "submitter"), 403, id="somebody with a telling name"),
    ],
)
async def test_a_job_is_cancelled_by_its_owner_or_an_admin(rest: Rest, by: tuple[str, ...], status: int) -> None:
    spoofed = {"x-sluice-principal": "alice", "x-sluice-roles": "admin"}
    assert (await rest.call("PATCH", f"/v1/jobs/{JOB}?mode=cancel", by=by, headers=spoofed))[0] == status
    assert rest.dispatcher.cancelled == ([JOB] if status == 202 else [])


async def test_a_job_that_has_ended_cannot_be_cancelled(rest: Rest) -> None:
    rest.dispatcher.terminal = True
    assert (await rest.call("PATCH", f"/v1/jobs/{JOB}?mode=cancel"))[0] == 409


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        pytest.param("GET", "/v1/jobs/" + "f" * 32, 404, id="unknown job"),
        pytest.param("GET", "/v1/jobs/short", 404, id="not a job id"),
        pytest.param("GET", f"/v1/jobs/{JOB}/logs?source=../../etc/passwd", 404, id="log that is a path"),
        pytest.param("GET", f"/v1/jobs/{JOB}/logs?source=driver.stdout&offset=-1", 400, id="negative offset"),
        pytest.param("GET", f"/v1/jobs/{JOB}/logs?source=driver.stdout&limit=x", 400, id="limit is no number"),
        pytest.param("GET", f"/v1/jobs/{JOB}/logs?source=a&source=b", 400, id="parameter twice"),
        pytest.param("GET", "/v1/overview?x=1", 400, id="unknown parameter"),
        pytest.param("GET", "/v1/jobs?limit=0", 400, id="empty page"),
        pytest.param("GET", "/v1/jobs?limit=1001", 400, id="page too large"),
        pytest.param("GET", "/v1/jobs?after=x", 400, id="no cursor"),
        pytest.param("PATCH", f"/v1/jobs/{JOB}", 400, id="patch without mode"),
        pytest.param("PATCH", f"/v1/jobs/{JOB}?mode=stop", 400, id="unknown mode"),
        pytest.param("DELETE", f"/v1/jobs/{JOB}", 405, id="method"),
        pytest.param("GET", "/v2/jobs", 404, id="path"),
        pytest.param("GET", "/v1", 404, id="root"),
    ],
)
async def test_invalid_requests_are_answered_with_their_error_status(
    rest: Rest, method: str, path: str, status: int
) -> None:
    assert (await rest.call(method, path))[0] == status


async def test_an_internal_error_reveals_no_details(rest: Rest) -> None:
    rest.dispatcher.crash = True
    status, document = await rest.call("GET", "/v1/jobs")
    assert status == 500
    assert "secret" not in json.dumps(document)
    assert "ZeroDivision" not in json.dumps(document)


async def test_exceptions_checkpoints_and_savepoints_of_a_job_are_served(rest: Rest) -> None:
    _, document = await rest.call("GET", f"/v1/jobs/{JOB}/exceptions")
    assert document["exceptions"][0]["root_cause"] == "KeyError: 'x'"
    _, document = await rest.call("GET", f"/v1/jobs/{JOB}/checkpoints")
    assert document["completed"] == 3
    _, document = await rest.call("GET", f"/v1/jobs/{JOB}/savepoints")
    assert document["savepoints"][0]["state"] == "IN_PROGRESS"
    _, document = await rest.call("GET", "/v1/savepoints")
    assert document["savepoints"][0]["id"] == SAVEPOINT.id


async def test_a_savepoint_is_made_only_for_the_owner_and_only_of_a_streaming_job(rest: Rest) -> None:
    path = f"/v1/jobs/{JOB}/savepoints"
    status, document = await rest.call("POST", path, json={"stop": True}, by=("alice", "submitter"))
    assert (status, document) == (202, {"savepoint_id": SAVEPOINT.id})
    status, document = await rest.call("POST", path, json={"stop": False}, by=("alice", "submitter"))
    assert (status, document["type"]) == (409, "urn:sluice:problem:NotStreaming")
    status, document = await rest.call("POST", path, json={"stop": True}, by=("bob", "submitter"))
    assert (status, document["type"]) == (403, "urn:sluice:problem:NotYours")
    status, _ = await rest.call("POST", path, json={"stop": True, "force": True}, by=("alice", "submitter"))
    assert status == 400


async def test_a_savepoint_is_disposed_of_only_by_its_owner(rest: Rest) -> None:
    path = f"/v1/savepoints/{SAVEPOINT.id}"
    assert (await rest.call("DELETE", path, by=("bob", "submitter")))[0] == 403
    assert not rest.dispatcher.disposed
    assert (await rest.call("DELETE", path, by=("alice", "submitter")))[0] == 200
    assert rest.dispatcher.disposed == [SAVEPOINT.id]
    assert (await rest.call("DELETE", "/v1/savepoints/other", by=("alice", "submitter")))[0] == 404


@pytest.mark.parametrize("role", ["submitter", "admin"])
async def test_only_the_owner_of_a_savepoint_can_submit_a_job_from_it(rest: Rest, role: str) -> None:
    """The submitter's pipeline reads the state, so another user could read the owner's state."""
    wanted = {"savepoint": f"file:///s/{SAVEPOINT.id}/"[:-1]}
    status, document = await rest.call("POST", "/v1/jobs", data=form(wanted), by=("bob", role))
    assert (status, document["type"]) == (403, "urn:sluice:problem:NotYours")
    assert not rest.stored()
    status, _ = await rest.call("POST", "/v1/jobs", data=form(wanted), by=("alice", role))
    assert status == 202
    assert [each.savepoint for each in rest.dispatcher.submitted.values()] == [SAVEPOINT.id]
    status, _ = await rest.call("POST", "/v1/jobs", data=form({"savepoint": "/etc"}), by=("alice", role))
    assert status == 404


BIG = bytes(range(256)) * 4000
BIG_ORDER = {"name": "big.zip", "size": len(BIG), "sha256": hashlib.sha256(BIG).hexdigest()}
PIECE = {"content-type": "application/octet-stream"}


async def announced(rest: Rest, **changed: object) -> str:
    """Announce an upload of :data:`BIG` as Alice and return its id."""
    status, upload = await rest.call("POST", "/v1/uploads", json={**BIG_ORDER, **changed})
    assert (status, upload["offset"], upload["complete"]) == (201, 0, False)
    return str(upload["id"])


async def test_an_upload_in_pieces_becomes_a_file_of_a_job(rest: Rest) -> None:
    upload_id = await announced(rest)
    status, upload = await rest.call("PATCH", f"/v1/uploads/{upload_id}?offset=0", data=BIG[:1000], headers=PIECE)
    assert (status, upload["offset"], upload["complete"]) == (200, 1000, False)
    status, problem = await rest.call("PATCH", f"/v1/uploads/{upload_id}?offset=0", data=BIG, headers=PIECE)
    assert (status, problem["type"]) == (409, "urn:sluice:problem:UploadConflict")
    request = {"uploads": [{"part": "file", "upload_id": upload_id}]}
    assert (await rest.call("POST", "/v1/jobs", data=form(request)))[0] == 409  # it is not complete
    await rest.call("PATCH", f"/v1/uploads/{upload_id}?offset=1000", data=BIG[1000:], headers=PIECE)
    assert (await rest.call("GET", f"/v1/uploads/{upload_id}"))[1]["complete"]
    status, submitted = await rest.call("POST", "/v1/jobs", data=form(request))
    assert status == 202, submitted
    (submission,) = rest.dispatcher.submitted.values()
    assert [(each.name, each.size) for each in submission.files] == [("big.zip", len(BIG))]
    assert (await rest.call("GET", "/v1/uploads"))[1] == {"uploads": []}


async def test_the_received_part_of_an_interrupted_upload_piece_is_kept(rest: Rest) -> None:
    upload_id = await announced(rest)

    async def breaking() -> AsyncIterator[bytes]:
        yield BIG[:300_000]
        await until(lambda: [each.stat().st_size for each in rest.blobs.glob("uploads/*/content")] == [300_000])
        raise ConnectionError

    path = f"/v1/uploads/{upload_id}"
    headers = rest.gateway.headers("PATCH", f"{path}?offset=0", "alice", "submitter") | PIECE
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        async with rest.session.patch(f"http://rest{path}?offset=0", data=breaking(), headers=headers):
            pass
    offset = (await rest.call("GET", path))[1]["offset"]
    assert 0 < offset <= 300_000
    status, upload = await rest.call("PATCH", f"{path}?offset={offset}", data=BIG[offset:], headers=PIECE)
    assert (status, upload["complete"]) == (200, True)


async def test_an_upload_of_another_user_is_not_found(rest: Rest) -> None:
    upload_id = await announced(rest)
    path = f"/v1/uploads/{upload_id}"
    for by in (("eve", "submitter"), ("root", "admin")):
        assert (await rest.call("GET", path, by=by))[0] == 404
        assert (await rest.call("PATCH", f"{path}?offset=0", by=by, data=BIG, headers=PIECE))[0] == 404
        assert (await rest.call("DELETE", path, by=by))[0] == 404
        assert (await rest.call("GET", "/v1/uploads", by=by))[1] == {"uploads": []}
    await rest.call("PATCH", f"{path}?offset=0", data=BIG, headers=PIECE)
    stolen = {"uploads": [{"part": "pipeline", "upload_id": upload_id}]}
    assert (await rest.call("POST", "/v1/jobs", by=("eve", "submitter"), data=form(stolen, pipeline=None)))[0] == 404
    assert rest.dispatcher.submitted == {}
    assert (await rest.call("DELETE", path))[0] == 200


async def test_a_complete_upload_with_a_wrong_digest_is_removed(rest: Rest) -> None:
    path = f"/v1/uploads/{await announced(rest)}"
    status, problem = await rest.call("PATCH", f"{path}?offset=0", data=b"x" * len(BIG), headers=PIECE)
    assert (status, problem["type"]) == (422, "urn:sluice:problem:BlobCorrupt")
    assert (await rest.call("GET", path))[0] == 404


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ({**BIG_ORDER, "name": "../x"}, 400),
        ({**BIG_ORDER, "sha256": "x"}, 400),
        ({**BIG_ORDER, "size": -1}, 400),
        ({**BIG_ORDER, "size": 4_000_001}, 413),
        ({**BIG_ORDER, "owner": "bob"}, 400),
        ({}, 400),
    ],
)
async def test_an_invalid_upload_announcement_is_refused(rest: Rest, order: object, expected: int) -> None:
    assert (await rest.call("POST", "/v1/uploads", json=order))[0] == expected


@pytest.mark.parametrize(
    ("query", "headers", "expected"),
    [
        ("", PIECE, 400),
        ("?offset=-1", PIECE, 400),
        ("?offset=x", PIECE, 400),
        ("?offset=0&offset=0", PIECE, 400),
        ("?offset=1", PIECE, 409),
        ("?offset=0", {"content-type": "application/json"}, 400),
    ],
)
async def test_an_upload_piece_without_a_valid_offset_or_content_type_is_refused(
    rest: Rest, query: str, headers: dict[str, str], expected: int
) -> None:
    path = f"/v1/uploads/{await announced(rest)}"
    assert (await rest.call("PATCH", path + query, data=b"123", headers=headers))[0] == expected
    assert (await rest.call("GET", path))[1]["offset"] == 0


async def test_a_part_and_an_upload_cannot_both_be_the_pipeline(rest: Rest) -> None:
    upload_id = await announced(rest)
    await rest.call("PATCH", f"/v1/uploads/{upload_id}?offset=0", data=BIG, headers=PIECE)
    twice = {"uploads": [{"part": "pipeline", "upload_id": upload_id}]}
    assert (await rest.call("POST", "/v1/jobs", data=form(twice)))[0] == 400
    assert (await rest.call("POST", "/v1/jobs", data=form(twice, pipeline=None)))[0] == 202


async def test_files_of_jobs_are_listed_in_pages_and_count_once(rest: Rest) -> None:
    status, first = await rest.call("GET", "/v1/blobs?limit=2")
    assert (status, first["bytes"]) == (200, 30)
    assert {each["name"] for each in first["blobs"]} == {"p.py", "q.py"}
    _, second = await rest.call("GET", f"/v1/blobs?limit=2&after={first['next']}")
    assert ([each["name"] for each in second["blobs"]], second["next"]) == (["x.csv"], None)
