"""A JobManager and TaskManagers in this process, over real mutual TLS; drivers and executors are Python processes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
import pytest

from sluice.cli.run.receipts import proving
from sluice.core.home import Home
from sluice.pki.ca.address import CaAddress
from sluice.pki.issuing.issuer import Issuer, LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.config import JobManagerConfig, RuntimeConfig, TaskManagerConfig
from sluice.runtime.ha.config import HaConfig
from sluice.runtime.messages import ExecutorLaunch
from sluice.runtime.node.addresses import JobManagerAddress
from sluice.runtime.processes.jobmanager import jobmanager
from sluice.runtime.processes.taskmanager import taskmanager
from sluice.runtime.spark.jvm import JvmPlace
from sluice.runtime.spark.jvm.command import Command
from tests.assertions import AssertingGateway
from tests.hostile import TRUST_DOMAIN, TestPki

DEADLINE_SECONDS = 40.0
LEASE_SECONDS = 8.0
"""A driver gives up by itself when it gets no processor for so long."""
SHORT_LEASE = pytest.mark.parametrize("cluster", [{"lease": 4.0}], indirect=True, ids=["short lease"])
"""For tests that wait until it is over."""
JOBMANAGER = "jm-1"
FAKE_DRIVER = Path(__file__).with_name("fake_driver.py")

JOBMANAGER_CONFIG = JobManagerConfig(
    heartbeat_interval=0.2,
    heartbeat_timeout=5.0,
    cancel_grace=1.0,
    executor_failure_budget=2,
    finished_jobs_kept=3,
)

EXECUTOR = """
import pathlib, sys, time
identity = pathlib.Path(sys.argv[1])
assert (identity / "key.pem").stat().st_mode & 0o777 == 0o600
leaf = (identity / "chain.pem").read_text()
line = '{"channel":"data","local":"%s","peer":"p","direction":"dialed","protocol":"TLSv1.3","cipher":"C","opened_at":1}'
(pathlib.Path(sys.argv[4]) / "connections.jsonl").write_text(line % sys.argv[2] + chr(10))
print("here", flush=True)
if sys.argv[3] == "fail":
    sys.exit(7)
time.sleep(600)
"""


@dataclass
class FakeLauncher:
    """Launches executors that sleep; with ``behaviour`` ``fail`` they exit at once."""

    behaviour: str = "sleep"

    def prepare(self) -> None:
        """Do nothing; nothing needs preparation."""

    def command(self, launch: ExecutorLaunch, place: JvmPlace) -> Command:
        """Return the command of a Python process.

        The process shows that it runs, and leaves evidence as the JVM does.
        """
        name = f"{launch.job_id}/{launch.executor_id}"
        argv = (sys.executable, "-c", EXECUTOR, str(place.identity), name, self.behaviour, str(place.reports))
        return Command(argv, {"PATH": "/usr/bin:/bin"}, {place.work / "settings": b"secret"})

    def spark(self) -> None:
        """Return None, because the fake driver starts no JVM."""


async def eventually(check: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Poll ``check`` until its result is true, and return that result."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        answer = await check()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.03)


FAKE_AGENT = (sys.executable, str(FAKE_DRIVER))
"""The command of the fake driver."""


@dataclass
class Cluster:
    """A cluster as tests use it; everything it starts is stopped at the end of the test."""

    pki: TestPki
    home: Home
    config: RuntimeConfig
    tmp: Path
    taskmanagers: dict[str, AsyncExitStack] = field(default_factory=dict)
    master: AsyncExitStack = field(default_factory=AsyncExitStack)
    address: JobManagerAddress | None = None
    pipeline_extras: dict[str, Any] = field(default_factory=dict)
    """What else the pipelines of the fake driver do."""

    async def start_jobmanager(
        self,
        *,
        issuer: Issuer | None = None,
        online: bool = False,
        locate_ca: Callable[[], Sequence[CaAddress]] | None = None,
    ) -> JobManagerAddress:
        """Start the JobManager, for the first time or again.

        The identities of jobs are signed by ``issuer`` or, with ``online``, by the online authority.
        """
        if issuer is None and not online:
            issuer = LocalIssuer(self.home, self.pki.config)
        directory = self.home.identity(Role.JOBMANAGER, JOBMANAGER)
        self.pki.issuer.issue_to(
            directory, SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, JOBMANAGER), ips=["127.0.0.1"]
        )
        node = await self.master.enter_async_context(
            jobmanager(
                self.home,
                self.config,
                self.pki.config,
                JOBMANAGER,
                issuer=issuer,
                locate_ca=locate_ca,
                prove=proving(self.home),
            )
        )
        self.address = node.address
        return self.address

    async def start_taskmanager(
        self, name: str, *, behaviour: str = "sleep", home: Home | None = None, **settings: Any
    ) -> asyncio.Task[None]:
        """Start a TaskManager and wait until it is registered.

        With a ``home`` of its own it is given the JobManager's address. ``settings`` replace those of its
        configuration section.
        """
        assert self.address is not None
        config = msgspec.structs.replace(
            self.config, taskmanager=msgspec.structs.replace(self.config.taskmanager, **settings)
        )
        where = home or self.home
        self.pki.issuer.issue_to(
            where.identity(Role.TASKMANAGER, name), SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, name)
        )
        stack = self.taskmanagers[name] = AsyncExitStack()
        link = await stack.enter_async_context(
            taskmanager(
                where,
                config,
                name,
                jobmanagers=() if home is None else (self.address.rpc,),
                launcher=FakeLauncher(behaviour),
                argv=FAKE_AGENT,
            )
        )
        await self.until_registered(name)

        async def announced() -> bool:
            return (where.run / "endpoints" / f"taskmanager-{name}.json").exists()

        await eventually(announced, f"{name} knows that it is registered")
        return link

    async def start_driver_host(self) -> None:
        """A TaskManager for drivers: its one slot is too small for any executor."""
        await self.start_taskmanager("tm-drivers", slots=1, slot_memory_mb=1)

    async def until_registered(self, *names: str) -> None:
        """Wait until all these TaskManagers are registered; there may be others."""

        async def there() -> bool:
            document = await self.get("/v1/taskmanagers")
            return set(names) <= {each["id"] for each in document["taskmanagers"]}

        await eventually(there, f"{names} are registered")

    async def call(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Send a REST request; return the status and the document."""
        connector = aiohttp.UnixConnector(str(self.home.sockets / "rest.sock"))
        options["headers"] = AssertingGateway(self.home).headers(method, path) | options.get("headers", {})
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, f"http://rest{path}", **options) as response,
        ):
            return response.status, json.loads(await response.read())

    async def get(self, path: str) -> Any:
        """Send a REST query, check that it succeeds, and return the document."""
        status, document = await self.call("GET", path)
        assert status == 200, document
        return document

    async def submit(
        self,
        *,
        end: str = "when-told",
        executors: int = 2,
        args: Sequence[str] = (),
        failures: int = 0,
        restart: Mapping[str, object] | None = None,
        stream: Sequence[int] = (),
        **extra: Any,
    ) -> str:
        """Submit a pipeline of the fake driver, with ``extra`` in the request; return the job ID.

        If the pipeline has no executors and there is no TaskManager, one is started for its driver.
        """
        if not executors and not self.taskmanagers:
            await self.start_taskmanager("tm-drivers")
        pipeline: dict[str, object] = {"executors": executors, "end": end, "flag": str(self.flag), "failures": failures}
        pipeline |= self.pipeline_extras
        if stream:
            pipeline["stream"] = list(stream)
        form = aiohttp.FormData()
        request = {"executors": max(1, executors), "args": list(args), "restart": dict(restart or {}), **extra}
        form.add_field("request", json.dumps(request), content_type="application/json")
        form.add_field("pipeline", json.dumps(pipeline).encode(), filename="pipeline.json")
        status, document = await self.call("POST", "/v1/jobs", data=form)
        assert status == 202, document
        return str(document["job_id"])

    def form(self, pipeline: bytes) -> aiohttp.FormData:
        """Return a submission form with ``pipeline`` as the content of the pipeline."""
        form = aiohttp.FormData()
        form.add_field("request", "{}", content_type="application/json")
        form.add_field("pipeline", pipeline, filename="pipeline.json")
        return form

    def driver_directory(self, job_id: str, attempt: int = 1) -> Path:
        """Return the directory of an attempt's driver, or where it would be."""
        name = f"jobs/{job_id}/driver-{attempt}"
        return next(self.home.root.glob(f"work/*/{name}"), self.home.root / "work" / "nowhere" / name)

    @property
    def flag(self) -> Path:
        """The file that ends ``when-told`` pipelines."""
        return self.tmp / "finish"

    async def job(self, job_id: str) -> Any:
        """Return the REST document of a job."""
        return await self.get(f"/v1/jobs/{job_id}")

    async def until(self, job_id: str, state: str) -> Any:
        """Wait until the job is in ``state``; fails at once when it ended otherwise."""

        async def reached() -> Any:
            job = await self.job(job_id)
            assert job["state"] == state or job["end_time"] is None, job
            return job if job["state"] == state else None

        return await eventually(reached, f"job is {state}")

    async def until_running(self, job_id: str, count: int, *, excluding: Sequence[int] = ()) -> list[Any]:
        """Wait until ``count`` executors run that are not among ``excluding``."""

        async def enough() -> Any:
            job = await self.job(job_id)
            running = [e for e in job["executors"] if e["state"] == "RUNNING" and e["id"] not in excluding]
            return running if len(running) == count else None

        found: list[Any] = await eventually(enough, f"{count} executors run")
        return found

    async def pid(self, job_id: str, executor: Any, *, silent: bool = False) -> int:
        """Wait until a fake executor runs; return the PID of the process that its TaskManager watches.

        A ``silent`` one need not show that it runs: at idle priority it may get no processor time for long.
        """
        place = self.home.root.joinpath("work", executor["taskmanager"], "jobs", job_id, f"executor-{executor['id']}")

        async def shown() -> int:
            document = await self.get(f"/v1/jobs/{job_id}/logs?source=executor-{executor['id']}.stdout")
            shows = silent or document["data"].strip()
            found = [path.name for path in place.glob("identity/in-use/*.place.json")]
            return int(found[0].partition(".")[0]) if shows and found else 0

        return int(await eventually(shown, "the executor shows that it runs"))

    async def stop_taskmanager(self, name: str) -> None:
        """Stop a TaskManager in an orderly way."""
        await self.taskmanagers.pop(name).aclose()

    async def close(self) -> None:
        """Stop everything."""
        await self.master.aclose()
        for name in list(self.taskmanagers):
            await self.stop_taskmanager(name)


async def until_gone(pid: int) -> None:
    """Wait until a process has ended."""

    async def gone() -> bool:
        return not psutil.pid_exists(pid)

    await eventually(gone, f"process {pid} is gone")


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster with a JobManager with short heartbeat intervals, and no TaskManager yet.

    A fixture parameter gives other settings of the JobManager; its ``lease`` is the lease of drivers.
    """
    pki = TestPki(tmp_path)
    settings: dict[str, Any] = {"lease": LEASE_SECONDS} | getattr(request, "param", {})
    ha = HaConfig(lease=settings.pop("lease"))
    config = RuntimeConfig(
        trust_domain=TRUST_DOMAIN,
        jobmanager=msgspec.structs.replace(JOBMANAGER_CONFIG, **settings),
        taskmanager=TaskManagerConfig(slots=2),
        ha=ha,
    )
    cluster = Cluster(pki, pki.home, config, tmp_path)
    before = set(psutil.Process().children(recursive=True))  # of fixtures that last longer than this one
    await cluster.start_jobmanager()
    yield cluster
    await cluster.close()
    left = set(psutil.Process().children(recursive=True)) - before
    _, alive = await asyncio.to_thread(psutil.wait_procs, left, timeout=DEADLINE_SECONDS)  # what was killed ends soon
    assert not alive, "processes are left over"
