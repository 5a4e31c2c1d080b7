"""A simulated cluster of any size, without processes or jobs.

REST and the dashboard show it like a real one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from sluice.core.egress_evidence import EgressRow, EgressVerdict
from sluice.core.home import Home
from sluice.pki.assertions.open_streams import OpenStreams
from sluice.pki.tls.connections import PeerCertificate
from sluice.runtime.blob.store import BlobStore
from sluice.runtime.checkpoint.ledger import Checkpoint, CheckpointsView, QueryCheckpoint
from sluice.runtime.checkpoint.savepoints import Savepoint
from sluice.runtime.config import ConnectConfig, RuntimeConfig
from sluice.runtime.jobmanager.dispatcher.cluster_diagnostics import ClusterDiagnostics
from sluice.runtime.jobmanager.dispatcher.connect_sessions import ConnectSessions
from sluice.runtime.jobmanager.dispatcher.job_feed import JobFeed
from sluice.runtime.jobmanager.errors import (
    JobAlreadyTerminal,
    JobNotFound,
    LogNotFound,
    UiNotFound,
)
from sluice.runtime.jobmanager.exceptions import with_outcomes
from sluice.runtime.jobmanager.gateways import (
    ConnectAddress,
    EgressConnections,
    EgressInternalGateway,
    HistoryPage,
    ServiceCounts,
)
from sluice.runtime.jobmanager.secrets import SecretStore
from sluice.runtime.jobmanager.views import (
    AttemptView,
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
from sluice.runtime.rest.audit_summary import AuditSummary, Examined
from sluice.runtime.rest.auth_service.stream_validity import check_nothing
from sluice.runtime.rest.cluster import Cluster, ClusterFacts, Term
from sluice.runtime.rest.protocol.streams import Streams
from sluice.runtime.rest.submissions.artifacts import ArtifactStores
from sluice.runtime.rest.trust_facts import Anchor, TrustFacts
from sluice.runtime.sandbox import IsolationLevel
from sluice.runtime.shuffle.control_plane.manager_link import ShuffleManagerLink
from sluice.runtime.shuffle.control_plane.messages import (
    NOTHING_MEASURED,
    DiskReport,
    JobReport,
    ShuffleJobView,
    ShuffleOverview,
    WorkerReport,
    WorkerState,
    WorkerView,
)
from tests.partial_gateways import PartialDispatcher, PartialResourceManager

TRUST_DOMAIN = "gateway.test"
SUITE = "TLS_AES_256_GCM_SHA384"
ISSUER = "5a" * 20
HOUR = 3600.0
_ENDED = (JobState.FINISHED, JobState.FINISHED, JobState.FINISHED, JobState.FAILED, JobState.CANCELED)
_NAMES = ("cert_inventory.py", "access_report.py", "orders_daily.py", "clickstream.py", "churn_model.py")
_OWNERS = ("ada", "grace", "linus", "margaret")
TRACEBACK = """Traceback (most recent call last):
  File "orders_daily.py", line 41, in <module>
    total = orders.groupBy("country").agg({"amount": "sum"}).collect()
  File "orders_daily.py", line 17, in amount
    raise ValueError("the amount of order 4711 is negative")
ValueError: the amount of order 4711 is negative
"""


def spiffe(path: str) -> str:
    """Return a SPIFFE ID of the simulated trust domain."""
    return f"spiffe://{TRUST_DOMAIN}/{path}"


def certificate(number: int, *, begun: float, lives: float = 24 * HOUR) -> PeerCertificate:
    """Return a certificate that is valid from ``begun`` on."""
    return PeerCertificate(
        serial=f"{0x7F3A9C0000 + number:x}", issuer=ISSUER, not_before=begun, not_after=begun + lives, key="EC P-256"
    )


def job(number: int, state: JobState, now: float) -> JobDetail:
    """Return job ``number``; higher numbers start later."""
    began = int((now - 60 - number * 311 % 80_000) * 1000) if state.terminal else int((now - 42) * 1000)
    lasted = 4_000 + number * 7919 % 190_000
    ended = began + lasted if state.terminal else None
    running = state is JobState.RUNNING
    stamps = {"INITIALIZING": began, "CREATED": began + 210, "RUNNING": began + 1_900}
    stamps |= {"FAILING": began + lasted - 80} if state is JobState.FAILED else {}
    stamps |= {"CANCELLING": began + lasted - 900} if state is JobState.CANCELED else {}
    stamps |= {} if running else {state.value: began + lasted}
    failed = state is JobState.FAILED
    return JobDetail(
        id=f"{number * 2654435761 % (1 << 32):08x}{number:024x}",
        name=_NAMES[number % len(_NAMES)],
        owner=_OWNERS[number % len(_OWNERS)],
        state=state,
        start_time=began,
        end_time=ended,
        duration_ms=lasted if state.terminal else int(now * 1000) - began,
        attempt=1,
        progress=JobProgress(
            spark_jobs_started=3,
            spark_jobs_finished=1 if running else 2 if failed else 3,
            spark_jobs_failed=1 if failed else 0,
            stages_total=7,
            stages_finished=3 if running else 6 if failed else 7,
            stages_failed=1 if failed else 0,
            tasks_total=240,
            tasks_finished=131 if running else 238 if failed else 240,
            tasks_running=8 if running else 0,
            tasks_failed=2 if failed else 0,
            executors_added=2,
            executors_removed=0 if running else 2,
            shuffle_bytes_written=734_003_200,
            shuffle_bytes_read=512_884_112,
        ),
        executors=tuple(
            ExecutorView(
                id=each,
                taskmanager=f"tm-{each}",
                slot=number % 2,
                state="RUNNING" if running else "EXITED",
                exit_reason="" if running else "the driver ended",
                started_at=began + 2_400,
            )
            for each in (1, 2)
        ),
        timestamps=stamps,
        failure=Failure(error="ValueError: the amount of order 4711 is negative", traceback=TRACEBACK)
        if failed
        else None,
        pending_reason="",
    )


async def simulated_standbys() -> tuple[str, ...] | None:
    """Return one standby, and the leader, whose earlier election session has not ended yet."""
    return ("jm-1", "jm-2")


def simulated_trust() -> TrustFacts:
    """Return the trust facts of the JobManager: one authority, and an audit half an hour ago."""
    now = time.time()
    anchor = Anchor(
        ISSUER, "CN=Sluice internal authority", "51c3", "EC P-256", now - 90 * 86400, now + 275 * 86400, True
    )
    listeners = tuple(
        Examined(
            name=f"{channel} of {process}",
            channel=channel,
            process=spiffe(process),
            version="TLSv1.3",
            suite=SUITE,
            group="X25519MLKEM768",
        )
        for channel, process in (("rpc", "jobmanager/jm-1"), ("blob", "jobmanager/jm-1"))
    )
    summary = AuditSummary(at=now - 1800, checks=412, findings={}, listeners=listeners)
    own = certificate(1, begun=now - 3 * HOUR)
    return TrustFacts(
        spiffe("jobmanager/jm-1"), own, (anchor,), "A", "One authority is trusted, and it signs.", summary
    )


_PARENTS: tuple[tuple[int, ...], ...] = ((), (), (0, 1), (2,), (), (3, 4), (5,))
_OPERATORS = ("Scan parquet orders", "Scan parquet countries", "SortMergeJoin", "HashAggregate", "Scan csv rates")


def stage(number: int, of: JobDetail) -> StageReport:
    """Return stage ``number`` of seven; the first three have ended."""
    ended = of.state.terminal or number < 3
    running = not of.state.terminal and number in {3, 4}
    total = (64, 8, 40, 40, 24, 40, 24)[number]
    skewed = number == 3
    return StageReport(
        id=number,
        job=number // 3,
        name=f"collect at orders_daily.py:{41 + number}",
        description="orders by country",
        state=StageState.FINISHED if ended else StageState.RUNNING if running else StageState.PENDING,
        attempts=1 if ended or running else 0,
        tasks_total=total,
        tasks_running=4 if running else 0,
        tasks_finished=total if ended else total // 3 if running else 0,
        tasks_failed=1 if number == 2 else 0,
        parents=_PARENTS[number],
        operators=_OPERATORS[number : number + 1],
        started_at=of.start_time + number * 2000 if ended or running else 0,
        ended_at=of.start_time + number * 2000 + 1800 if ended else 0,
        input_bytes=1_400_000_000 if number in {0, 1, 4} else 0,
        shuffle_read_bytes=210_000_000 if number in {2, 3} else 0,
        shuffle_write_bytes=220_000_000 if number in {0, 1, 2} else 0,
        disk_spilled_bytes=88_000_000 if skewed else 0,
        task_ms=(40, 90, 120, 160, 9400 if skewed else 310) if ended or running else (),
    )


def simulated(dispatcher: SimulatedDispatcher, manager: SimulatedResourceManager, directory: Path) -> Cluster:
    """Return the cluster as REST uses it; it stores files below ``directory``."""
    store = BlobStore(directory / "blobs", 4_000_000)
    return Cluster(
        dispatcher,
        manager,
        store,
        ClusterFacts("0.1.0", "4.3.0", spiffe("jobmanager/jm-1"), TRUST_DOMAIN),
        ConnectSessions(dispatcher, store, ConnectConfig()),
        default_executors=2,
        leader=Term("jm-1", 3, int((time.time() - 3 * HOUR) * 1000)),
        config=RuntimeConfig(),
        artifacts=ArtifactStores(()),
        diagnostics=ClusterDiagnostics(Home.at(directory / "home"), "jobmanager/jm-1", lambda: ()),
        feed=dispatcher.feed,
        streams=Streams(OpenStreams(check_nothing)),
        secrets=cast("SecretStore", SimulatedSecrets()),
        shuffle=cast("ShuffleManagerLink", SimulatedShuffle(dispatcher)),
        trust=simulated_trust,
        standbys=simulated_standbys,
        egress=cast("EgressInternalGateway", SimulatedOutside()),
    )


class SimulatedOutside:
    """Reports two connections of each job: one allowed, and one refused to a host with markup in its name."""

    async def egress_connections(self, job_id: str) -> EgressConnections:
        def row(number: int, host: str, verdict: EgressVerdict) -> EgressRow:
            return EgressRow(
                id=f"{number:032x}",
                job_id=job_id,
                attempt=1,
                process="driver",
                protocol="tcp",
                host=host,
                address="",
                port=443,
                verdict=verdict,
                reason="" if verdict is EgressVerdict.ALLOWED else "not_allowed",
                opened_at=time.time() - 60,
            )

        return EgressConnections(
            rows=(
                row(1, "api.example.com", EgressVerdict.ALLOWED),
                row(2, "<script>evil</script>", EgressVerdict.REFUSED),
            )
        )


class SimulatedSecrets:
    """A store without secrets."""

    async def choose(self, *_: object) -> tuple[()]:
        return ()

    async def list(self) -> tuple[()]:
        return ()


RECORDED = JobSubmission(
    name="orders_daily.py", owner="ada", pipeline=BlobRef(sha256="0" * 64, name="orders_daily.py", size=1)
)


class SimulatedDispatcher(PartialDispatcher):
    """Knows ``ended`` ended jobs and ``running`` running ones."""

    def __init__(self, running: int, ended: int, *, now: float | None = None) -> None:
        moment = time.time() if now is None else now
        self.now = moment
        made = [job(number, JobState.RUNNING, moment) for number in range(ended, ended + running)]
        made += [job(number, _ENDED[number % len(_ENDED)], moment) for number in reversed(range(ended))]
        self.details = {each.id: each for each in made}
        self.cancelled: list[str] = []
        self.asked: dict[str, list[SavepointRequest]] = {}
        self.feed = JobFeed()
        self.submitted: dict[str, JobSubmission] = {}
        self.log = "".join(f"26/11/21 11:25:{second:02d} INFO stage 3: task {second} done\n" for second in range(60))

    async def submit_job(self, job_id: str, submission: JobSubmission) -> None:
        self.submitted[job_id] = submission
        now = time.time()
        template = job(0, JobState.RUNNING, now)
        made = msgspec.structs.replace(template, id=job_id, name=submission.name, owner=submission.owner)
        self.details = {job_id: made, **self.details}

    async def jobs(self) -> tuple[JobSummary, ...]:
        return tuple(each.summary() for each in self.details.values())

    async def history(self, before: tuple[int, str] | None, limit: int) -> HistoryPage:
        assert limit
        ended = [each for each in await self.jobs() if each.end_time is not None]
        return HistoryPage(jobs=() if before else tuple(ended))

    async def job(self, job_id: str) -> JobDetail:
        if job_id not in self.details:
            raise JobNotFound(f"there is no job {job_id}")
        return self.details[job_id]

    async def cancel_job(self, job_id: str) -> None:
        found = await self.job(job_id)
        if found.state.terminal:
            raise JobAlreadyTerminal(f"job {job_id} is {found.state}")
        self.cancelled.append(job_id)
        at = int(time.time() * 1000)
        stamps = {**found.timestamps, "CANCELLING": at, "CANCELED": at + 1}
        self.details[job_id] = msgspec.structs.replace(found, state=JobState.CANCELED, end_time=at, timestamps=stamps)

    def progress(self, job_id: str, **counters: int) -> None:
        """Update the progress counters of a job."""
        found = self.details[job_id]
        self.details[job_id] = msgspec.structs.replace(
            found, progress=msgspec.structs.replace(found.progress, **counters)
        )
        self.feed.changed(job_id)

    async def job_logs(self, job_id: str) -> tuple[str, ...]:
        await self.job(job_id)
        return ("driver.stdout", "driver.stderr", "executor-1.stderr", "executor-2.stderr")

    async def read_job_log(self, job_id: str, source: str, offset: int, limit: int) -> LogChunk:
        if source not in await self.job_logs(job_id):
            raise LogNotFound(f"no log {source}")
        data = self.log[offset : offset + limit]
        return LogChunk(data=data, offset=offset, next_offset=offset + len(data), end=offset + limit >= len(self.log))

    async def job_connections(self, job_id: str) -> Evidence:
        found = await self.job(job_id)
        driver, jobmanager = spiffe(f"job/{job_id}/driver"), spiffe("jobmanager/jm-1")
        fresh = certificate(900, begun=self.now - 600, lives=HOUR)
        entries = [evidence("rpc", jobmanager, driver, "accepted", fresh, self.now - 40)]
        entries += [
            evidence("blob", jobmanager, spiffe(f"job/{job_id}/executor/{each.id}"), "accepted", fresh, self.now - 38)
            for each in found.executors
        ]
        for each in found.executors:
            executor = spiffe(f"job/{job_id}/executor/{each.id}")
            entries.append(evidence("data", executor, driver, "dialed", fresh, self.now - 30))
            entries.append(evidence("data", driver, executor, "accepted", fresh, self.now - 30))
        one, two = (spiffe(f"job/{job_id}/executor/{each}") for each in (1, 2))
        entries.append(evidence("data", two, one, "dialed", fresh, self.now - 12))
        return Evidence(tuple(entries))

    async def blobs(self) -> tuple[JobBlob, ...]:
        raise NotImplementedError

    def _checkpoints(self, found: JobDetail) -> CheckpointsView:
        if found.name != "clickstream.py":
            return CheckpointsView()
        history = tuple(
            Checkpoint(
                number=number,
                attempt=1,
                completed_at=found.start_time + number * 4000,
                queries=(QueryCheckpoint(query_id="q-1", name="clicks", batch=number * 3),),
            )
            for number in range(1, 9)
        )
        return CheckpointsView(completed=8, history=history)

    async def trigger_savepoint(self, job_id: str, stop: bool) -> str:
        made = SavepointRequest(id=f"sp-{len(self.asked) + 1}", requested_at=int(time.time() * 1000), stop=stop)
        self.asked.setdefault(job_id, []).append(made)
        return made.id

    async def savepoints(self) -> tuple[Savepoint, ...]:
        raise NotImplementedError

    async def savepoint(self, savepoint_id: str) -> Savepoint:
        raise NotImplementedError

    async def dispose_savepoint(self, savepoint_id: str) -> None:
        raise NotImplementedError

    async def job_record(self, job_id: str) -> JobRecord:
        found = await self.job(job_id)
        return JobRecord(
            submission=RECORDED,
            detail=found,
            stages=StageTable(stages=tuple(stage(number, found) for number in range(7))),
            checkpoints=self._checkpoints(found),
            savepoints=tuple(self.asked.get(job_id, ())),
            exceptions=self._exceptions(found),
        )

    async def connect_address(self, job_id: str) -> ConnectAddress:
        raise NotImplementedError

    async def job_ui(self, job_id: str, request: UiRequest) -> UiPage:
        raise UiNotFound(f"job {job_id} has no Spark", request.path)

    async def job_ui_state(self, job_id: str) -> SparkUiView:
        return SparkUiView(state=SparkUiState.NONE, reason="the job has no Spark")

    def _exceptions(self, found: JobDetail) -> tuple[ExceptionEntry, ...]:
        if found.failure is None:
            return ()
        lost = ExceptionEntry(
            attempt=1,
            time=found.start_time + 3000,
            error="executor 2 was lost: its TaskManager does not answer",
            root_cause="",
            executor=2,
            taskmanager="tm-2",
        )
        fatal = ExceptionEntry(
            attempt=1,
            time=found.end_time or 0,
            error=found.failure.error,
            root_cause=found.failure.error,
            traceback=found.failure.traceback,
            task="stage 3, task 17",
            ended_attempt=True,
        )
        return with_outcomes((lost, fatal), (AttemptView(number=1, started_at=0, outcome="FAILED"),), found.state)


class SimulatedShuffle:
    """A shuffle service with four workers; one is excluded and one is draining."""

    STATES = (WorkerState.ACTIVE, WorkerState.ACTIVE, WorkerState.EXCLUDED, WorkerState.DRAINING)

    def __init__(self, dispatcher: SimulatedDispatcher) -> None:
        self._dispatcher = dispatcher
        self.drained: list[tuple[str, bool]] = []

    async def drain(self, worker: str, *, wanted: bool = True) -> None:
        self.drained.append((worker, wanted))

    async def overview(self) -> ShuffleOverview:
        running = [each.id for each in await self._dispatcher.jobs() if not each.state.terminal]
        kept = {job_id: 180_000_000 * (number + 1) for number, job_id in enumerate(running)}
        workers = tuple(self._worker(number, state, kept) for number, state in enumerate(self.STATES, start=1))
        jobs = tuple(
            ShuffleJobView(
                job_id=job_id, shuffles=2, lease_left=9.0, bytes=4 * size, pushed_bytes=5 * size,
                fetched_bytes=3 * size, maps=64, refused=0,
                commit_latency=NOTHING_MEASURED, fetch_latency=NOTHING_MEASURED,
            )
            for job_id, size in kept.items()
        )  # fmt: skip
        return ShuffleOverview(manager=spiffe("shuffle-manager/sm-1"), workers=workers, jobs=jobs)

    def _worker(self, number: int, state: WorkerState, kept: Mapping[str, int]) -> WorkerView:
        drained = (f"sw-{number}", True) in self.drained
        return WorkerView(
            name=f"sw-{number}",
            host=f"10.0.7.{number}",
            port=7600,
            state=WorkerState.DRAINING if drained else state,
            reason={
                WorkerState.EXCLUDED: "its disks are full",
                WorkerState.DRAINING: "it was asked to take nothing new",
            }.get(state, ""),
            last_heartbeat=int((time.time() - number) * 1000),
            bytes=sum(kept.values()),
            report=WorkerReport(
                memory_used=90_000_000 * number,
                memory_limit=512_000_000,
                disks=(
                    DiskReport(path="/srv/shuffle", total=400_000_000_000, free=90_000_000_000 * (4 - number)),
                    DiskReport(
                        path="/srv/more", total=0, free=0, usable=number != 3, error="" if number != 3 else "it is full"
                    ),
                ),
                jobs=tuple(JobReport(job_id=job_id, bytes=size) for job_id, size in kept.items()),
                connections=6 * number,
            ),
        )


class SimulatedResourceManager(PartialResourceManager):
    """Knows ``count`` TaskManagers with ``slots`` slots each, and their connections."""

    def __init__(
        self,
        count: int,
        slots: int = 4,
        *,
        busy: Sequence[str] = (),
        now: float | None = None,
        without_isolation: Collection[int] = (),
    ) -> None:
        self.now = time.time() if now is None else now
        self.count, self.slots, self.busy = count, slots, tuple(busy)
        self.without_isolation = without_isolation
        self.shown_queues: tuple[QueueView, ...] = ()

    async def queues(self) -> tuple[QueueView, ...]:
        return self.shown_queues

    async def taskmanagers(self) -> tuple[TaskManagerView, ...]:
        return tuple(self._view(number) for number in range(1, self.count + 1))

    def _view(self, number: int) -> TaskManagerView:
        slots = []
        for slot in range(self.slots):
            position = (slot * self.count + number - 1) // 2
            taken = position < len(self.busy)
            state = SlotState.ACTIVE if taken else SlotState.FREE
            slots.append(SlotView(slot=slot, state=state, job_id=self.busy[position] if taken else ""))
        return TaskManagerView(
            id=f"tm-{number}",
            identity=spiffe(f"taskmanager/tm-{number}"),
            host=f"10.0.{number // 250}.{number % 250 + 1}",
            slots_total=self.slots,
            slots_free=sum(each.state is SlotState.FREE for each in slots),
            slots=tuple(slots),
            last_heartbeat=int((time.time() - number % 9) * 1000),
            driver_slots_total=8,
            driver_slots_free=7,
            drivers=(self.busy[0],) if self.busy else (),
            isolation=IsolationLevel.NONE if number in self.without_isolation else IsolationLevel.SANDBOX,
        )

    async def connections(self) -> Evidence:
        jobmanager, entries = spiffe("jobmanager/jm-1"), []
        own = certificate(1, begun=self.now - 3 * HOUR)
        for number in range(1, self.count + 1):
            taskmanager = spiffe(f"taskmanager/tm-{number}")
            # One certificate is past half of its lifetime and was not renewed, so that the dashboard shows it.
            begun = self.now - (17 if number == 3 else 2 + number % 9) * HOUR
            theirs = certificate(100 + number, begun=begun)
            entries.append(evidence("rpc", jobmanager, taskmanager, "accepted", theirs, self.now - 3000 + number))
            entries.append(evidence("rpc", taskmanager, jobmanager, "dialed", own, self.now - 3000 + number))
            if number % 2:
                entries.append(evidence("blob", jobmanager, taskmanager, "accepted", theirs, self.now - 200 + number))
        return Evidence(tuple(entries))

    async def drain_taskmanager(self, name: str, draining: bool) -> None:
        raise NotImplementedError

    async def service_counts(self) -> ServiceCounts:
        return ServiceCounts(self.count)


def evidence(  # noqa: PLR0917  a row of a table
    channel: str, local: str, peer: str, direction: str, shown: PeerCertificate, at: float, protocol: str = "TLSv1.3"
) -> ConnectionEvidence:
    """Return the evidence of one connection, as ``local`` recorded it."""
    return ConnectionEvidence(
        channel=channel,
        local=local,
        peer=peer,
        direction=direction,
        protocol=protocol,
        cipher=SUITE,
        address="10.0.0.7:40123",
        opened_at=at,
        certificate=shown,
    )
