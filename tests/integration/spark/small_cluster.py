"""The smallest cluster that runs a real driver agent: a JobMaster endpoint that starts executors.

RPC, blob server, driver agent, JVMs and certificates are real; only scheduling is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from sluice.core.files import make_private_directory
from sluice.core.home import Home
from sluice.pki.issuing.leaf import SignedChain
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.trust import place_reports
from sluice.runtime.blob.server import BlobServer
from sluice.runtime.blob.store import BlobStore
from sluice.runtime.gateways import (
    DRIVER,
    DriverGateway,
    JobMasterGateway,
    jobmaster_endpoint,
)
from sluice.runtime.messages import (
    BlobRef,
    CsrToSign,
    DriverAssignment,
    DriverCsr,
    DriverExit,
    DriverProcessEnd,
    ExecutorExit,
    ExecutorLaunch,
    ExecutorTargets,
    GivenSecret,
    JobProgress,
    JobToken,
    OutputLocation,
    RunningDriver,
    ShuffleAllocation,
    SlotOffer,
    SparkRegistration,
    StageTable,
    StreamingState,
    TaskFailure,
    TokenKeys,
)
from sluice.runtime.node.addresses import JobManagerAddress, publish_jobmanager
from sluice.runtime.node.child_process import ChildProcess
from sluice.runtime.node.leader_finder import LeaderDiscovery
from sluice.runtime.rpc import PermanentlyFencedRpcEndpoint, RemotePeer, RpcService
from sluice.runtime.sandbox import IsolationConfig
from sluice.runtime.shuffle.control_plane.errors import NoShuffleService
from sluice.runtime.spark.driver.spec import BEGIN, SPARE, DriverSpec
from sluice.runtime.spark.jvm.command import SparkRuntime, TlsEngine, executor_command
from sluice.runtime.spark.jvm.place import JvmPlace
from sluice.runtime.spark.jvm.tempdir import make_temp_dir, remove_temp_dir
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.processes import command_line, descendants

JOB_ID = "0123456789abcdef0123456789abcdef"
HOST = "127.0.0.1"
DEADLINE_SECONDS = 110.0
ACCEPT = (f"spiffe://{TRUST_DOMAIN}/job/{JOB_ID}/*",)


def reports_of(identity: Path) -> Path:
    """The directory of the reports of the process with this identity directory."""
    return identity.with_name(f"{identity.name}-reports")


Issue = Callable[[Path, SpiffeId], object]
"""Puts the identity of an executor into a directory."""


@dataclass
class Work:
    """What a job is submitted with."""

    script: Path
    args: Sequence[str] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[Path] = ()
    executors: int = 2
    shared: Path | None = None
    """Where the job may write besides."""
    held: int = 0
    """How many executors are held back."""
    spare: bool = False
    """Whether its agent is started before it knows the job, as the one that a TaskManager keeps."""


class OneJobMaster(PermanentlyFencedRpcEndpoint):
    """The JobMaster of one job; launches its executors on this machine."""

    def __init__(
        self, issue: Issue, directory: Path, spark: SparkRuntime, assignment: DriverAssignment, *, held: int = 0
    ) -> None:
        super().__init__(jobmaster_endpoint(JOB_ID), JobMasterGateway, secrets.token_bytes(16), job_id=JOB_ID)
        self._issue = issue
        self._directory = directory
        self._spark = spark
        self._assignment = assignment
        self.auth_secret = assignment.spark_auth_secret
        self.driver: RemotePeer | None = None
        self.registrations: list[SparkRegistration] = []
        self.wanted = 0
        self.unregistered_shuffles: list[int] = []
        self.lost_shuffle_workers: list[str] = []
        self.stopping = False
        self.targets_version = 0
        self.executors: dict[int, ChildProcess] = {}
        self.launched = 0
        self.progress = JobProgress()
        self.stages = StageTable()
        self.streaming = StreamingState()
        self.task_failures: list[TaskFailure] = []
        self.exit_reports: list[ExecutorExit] = []
        self.succeeded = asyncio.Event()
        """Told before the driver's JVM has ended."""
        self.finished: asyncio.Future[DriverExit] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()
        self.held = held
        """So many executors are not launched until :meth:`release`."""

    def release(self) -> None:
        """Launch the executors that were held back."""
        self.held = 0
        self._fill()

    async def register_driver(self, attempt: int, pid: int, running: RunningDriver | None) -> DriverAssignment:
        assert attempt == 1
        assert pid > 1
        self.driver = self.caller.peer
        self._tell()
        return self._assignment

    async def renew_lease(self, attempt: int) -> None:
        assert attempt == 1

    async def spark_started(self, registration: SparkRegistration) -> None:
        self.registrations.append(registration)

    async def set_executor_targets(self, targets: ExecutorTargets) -> None:
        assert targets.version > self.targets_version
        self.targets_version = targets.version
        self.wanted = sum(target.total for target in targets.targets)
        self._fill()

    async def kill_executors(self, executor_ids: tuple[int, ...]) -> None:
        for number in executor_ids:
            if number in self.executors:
                self.executors[number].signal_group(signal.SIGTERM)

    async def report_progress(self, progress: JobProgress) -> None:
        self.progress = progress
        self._tell()

    async def report_stages(self, stages: StageTable) -> None:
        self.stages = stages
        self._tell()

    async def report_streaming(self, state: StreamingState) -> None:
        self.streaming = state

    async def report_task_failure(self, failure: TaskFailure) -> None:
        self.task_failures.append(failure)

    async def register_shuffle(self, shuffle_id: int, partitions: int) -> ShuffleAllocation:
        raise NoShuffleService("this cluster has no shuffle service")

    async def locate_shuffle(self, shuffle_id: int) -> tuple[OutputLocation, ...]:
        """Not implemented: no job of these tests asks for a shuffle's location."""
        raise NotImplementedError

    async def unregister_shuffle(self, shuffle_id: int) -> None:
        self.unregistered_shuffles.append(shuffle_id)

    async def shuffle_workers_lost(self, shuffle_id: int, workers: tuple[str, ...]) -> None:
        self.lost_shuffle_workers.extend(workers)

    async def driver_succeeded(self) -> None:
        self.succeeded.set()

    async def driver_finished(self, result: DriverExit) -> None:
        self.wanted = 0
        self.finished.set_result(result)
        self._tell()

    async def offer_slot(self, offer: SlotOffer) -> bool:
        raise NotImplementedError(offer)

    async def sign_executor_identity(self, request: CsrToSign) -> SignedChain:
        raise NotImplementedError(request)

    async def sign_driver_identity(self, request: DriverCsr) -> SignedChain:
        raise NotImplementedError(request)

    async def issue_driver_token(self, attempt: int, audience: tuple[str, ...]) -> JobToken:
        raise NotImplementedError(audience)

    async def issue_executor_token(self, executor_id: int, audience: tuple[str, ...]) -> JobToken:
        raise NotImplementedError(audience)

    async def token_keys(self) -> TokenKeys:
        raise NotImplementedError

    async def driver_secrets(self, attempt: int) -> tuple[GivenSecret, ...]:
        return ()

    async def driver_process_ended(self, end: DriverProcessEnd) -> None:
        raise NotImplementedError(end)

    async def executor_exited(self, exit_report: ExecutorExit) -> None:
        raise NotImplementedError(exit_report)

    async def executor_listens(self, executor_id: int, ports: tuple[int, ...]) -> None:
        raise NotImplementedError(executor_id)

    async def driver_listens(self, attempt: int, ports: tuple[int, ...]) -> None:
        raise NotImplementedError(ports)

    async def listeners_on(self, port: int) -> tuple[str, ...]:
        raise NotImplementedError(port)

    def identity_dir(self, number: int) -> Path:
        return self._directory / f"executor-{number}" / "identity"

    def stop_replacing(self) -> None:
        self.wanted = 0
        self.stopping = True

    async def stop_executors(self) -> None:
        await asyncio.gather(*(process.stop(1.0) for process in self.executors.values()))

    def _fill(self) -> None:
        while len(self.executors) < self.wanted - self.held:
            self.launched += 1
            number = self.launched
            self.executors[number] = None  # type: ignore[assignment]  # the place is taken while it starts
            self.hand_off(self._launch(number))

    async def _launch(self, number: int) -> None:
        registration = self.registrations[-1]
        work = self._directory / f"executor-{number}"
        work.mkdir()
        identity = self.identity_dir(number)
        self._issue(identity, SpiffeId.executor(TRUST_DOMAIN, JOB_ID, number))
        make_private_directory(reports_of(identity))
        launch = ExecutorLaunch(
            job_id=JOB_ID,
            allocation_id=f"slot-{number}",
            executor_id=number,
            app_id=registration.app_id,
            driver_url=registration.driver_url,
            resource_profile_id=0,
            cores=registration.executor_cores,
            memory_mb=registration.executor_memory_mb,
            startup_conf=registration.startup_conf,
            java_options=registration.java_options,
            spark_auth_secret=self._assignment.spark_auth_secret,
            python=sys.executable,
        )
        temp_dir = make_temp_dir()
        # Both TLS engines side by side: odd numbers run the JDK's, even ones OpenSSL's.
        spark = replace(self._spark, engine=TlsEngine.JDK if number % 2 else TlsEngine.OPENSSL)
        command = executor_command(launch, spark, JvmPlace(identity, work, temp_dir, reports_of(identity), HOST))
        command.write_files()
        with (work / "log").open("wb") as log:
            process = await ChildProcess.start(
                command.argv, env=command.env, cwd=work, stdout=log.fileno(), stderr=log.fileno()
            )
        self.executors[number] = process
        spiffe_id = SpiffeId.executor(TRUST_DOMAIN, JOB_ID, number)
        place_reports(identity, process.pid, str(spiffe_id), reports_of(identity))
        self._tell()
        ended = await process.wait()
        process.signal_group(signal.SIGKILL)
        remove_temp_dir(temp_dir)
        del self.executors[number]
        if not self.stopping and not self.finished.done() and self.driver is not None:
            report = ExecutorExit(
                executor_id=number, exit_code=ended.code, by_application=ended.code > 0, reason=str(ended), host=HOST
            )
            self.exit_reports.append(report)
            await self.driver.gateway(DriverGateway, DRIVER).executor_exited(report)
            self._fill()
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass
class RunningJob:
    """A job whose driver agent was started."""

    master: OneJobMaster
    agent: ChildProcess
    directory: Path
    identity_dir: Path

    def log(self, name: str) -> str:
        """The text of a file in the job's directory, empty when it is not there yet."""
        path = self.directory / name
        return path.read_text(errors="replace") if path.exists() else ""

    async def result(self) -> DriverExit:
        """Wait until the driver has ended; returns how it ended."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await asyncio.shield(self.master.finished)

    async def until(self, condition: object, *, deadline: float = DEADLINE_SECONDS) -> None:
        """Wait until ``condition()`` holds; checked after each change, and ten times a second."""
        assert callable(condition)
        async with asyncio.timeout(deadline):
            while not condition():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.master.changed.wait(), 0.1)

    def processes(self, name: str) -> list[psutil.Process]:
        """The descendants of the agent whose program name begins with ``name``."""
        lines = ((child, command_line(child)) for child in descendants(self.agent.pid))
        return [child for child, line in lines if line and Path(line[0]).name.startswith(name)]

    def driver_gateway(self) -> DriverGateway:
        """A gateway to the driver agent, called as the JobManager."""
        assert self.master.driver is not None
        return self.master.driver.gateway(DriverGateway, DRIVER)


@contextlib.asynccontextmanager
async def running_job(
    pki: TestPki, directory: Path, spark: SparkRuntime, work: Work, *, issue: Issue | None = None
) -> AsyncIterator[RunningJob]:
    """Start everything for one job, and stop it all afterwards.

    ``issue`` issues the identities of the executors; by default ``pki`` does.
    """

    def issue_by_pki(directory: Path, spiffe_id: SpiffeId) -> None:
        pki.issuer.issue_to(directory, spiffe_id, ips=[HOST], accept=ACCEPT)

    make_private_directory(directory)
    name = "jm-1"
    identity = TlsIdentity(pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, name)))
    store = BlobStore(directory / "blobs", 1 << 20)
    blobs = BlobServer(identity, store)
    service = RpcService(identity)
    blob_host, blob_port = await blobs.start(HOST, 0)
    assignment = DriverAssignment(
        pipeline=_put(store, work.script),
        files=tuple(_put(store, file) for file in work.files),
        args=tuple(work.args),
        spark_conf=dict(work.conf),
        spark_auth_secret=secrets.token_hex(32),
        blob_host=blob_host,
        blob_port=blob_port,
    )
    master = OneJobMaster(issue or issue_by_pki, directory, spark, assignment, held=work.held)
    await service.start(master)
    home = Home.at(make_private_directory(directory / "home"))
    rpc = await service.listen(HOST, 0)
    publish_jobmanager(home, JobManagerAddress(name=name, rpc=rpc, blob=(blob_host, blob_port), rest="", pid=1))
    identity_dir = pki.directory(SpiffeId.driver(TRUST_DOMAIN, JOB_ID), accept=ACCEPT)
    assert master.fencing_token is not None
    spec = DriverSpec(
        job_id=JOB_ID,
        attempt=1,
        name="test job",
        trust_domain=TRUST_DOMAIN,
        leader=LeaderDiscovery(home=str(home.root)),
        jobmaster_token=master.fencing_token.hex(),
        identity_dir=str(identity_dir),
        work_dir=str(make_private_directory(directory / "work")),
        reports_dir=str(make_private_directory(reports_of(identity_dir))),
        log_dir=str(directory),
        executors=work.executors,
        executor_memory_mb=512,
        driver_memory_mb=512,
        reconnect_seconds=5,
        isolation=IsolationConfig(writable=(str(work.shared),) if work.shared else ()),
        private_dirs=(str(pki.home.root),),
    )
    path = spec.write(directory / "driver.json")
    with (directory / "agent.log").open("wb") as log:
        agent = await ChildProcess.start(
            [sys.executable, "-m", "sluice.runtime.spark.driver.main", SPARE if work.spare else str(path)],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(Path.home()),
                "JAVA_HOME": str(spark.java.executable.parent.parent),
            },
            cwd=Path.cwd(),
            stdin=asyncio.subprocess.PIPE,
            stdout=log.fileno(),
            stderr=log.fileno(),
        )
    assert agent.stdin is not None
    agent.stdin.write(f"{path}\n".encode() if work.spare else BEGIN)
    try:
        yield RunningJob(master, agent, directory, identity_dir)
    finally:
        master.stop_replacing()
        await agent.stop(10.0)
        await master.stop_executors()
        await service.close()
        await blobs.close()


def _put(store: BlobStore, path: Path) -> BlobRef:
    with store.writer(JOB_ID, path.name) as writer:
        writer.write(path.read_bytes())
        return writer.commit()
