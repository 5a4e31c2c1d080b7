"""A Spark job for benchmarks: a driver and its executors, started with the commands of the runtime.

The driver program answers each input line with one output line. With :attr:`Channels.PLAINTEXT`, the same
commands run without the TLS provider: only the agent and all ``spark.ssl`` and ``spark.authenticate``
settings are removed.
"""

from __future__ import annotations

import asyncio
import enum
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil

from sluice.core import make_private_directory
from sluice.pki import SpiffeId
from sluice.pki.issuing import DirectoryIssuer
from sluice.runtime import ExecutorLaunch, OutputLocation, ShuffleAllocation, SparkRegistration
from sluice.runtime.node import ChildProcess
from sluice.runtime.spark import read_evidence
from sluice.runtime.spark.driver import (
    Bridge,
    BridgeEvent,
    LocateShuffle,
    RegisterShuffle,
    ShuffleAnswer,
    SparkStopped,
    UnregisterShuffle,
)
from sluice.runtime.spark.jvm import (
    ALLOWED_PROPERTY,
    RESERVED_PROPERTY,
    Command,
    DriverShape,
    JvmPlace,
    SparkRuntime,
    TlsEngine,
    default_conf,
    driver_jvm_command,
    executor_command,
    launcher_conf,
    make_temp_dir,
    read_gateway,
    remove_temp_dir,
    shuffle_conf,
)

HOST = "127.0.0.1"
SHAPE = DriverShape(executors=2, executor_cores=1, executor_memory_mb=1024, driver_memory_mb=768)
FOUR_PARTITIONS = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "4"}
ROUNDS = Path(__file__).with_name("shuffle_rounds.py")
START_SECONDS = 180
ROUND_SECONDS = 300.0
MAX_ANSWER_BYTES = 16 << 20

_T = TypeVar("_T")


class Channels(enum.StrEnum):
    """How the channels of a job are secured."""

    PLAINTEXT = "plaintext"
    JDK = "mutual_tls_jdk"
    OPENSSL = "mutual_tls_openssl"


class ShuffleService(Protocol):
    """Allocates workers for the shuffles of a job; see :mod:`benchmarks.shuffle_workers`."""

    def allocate(self, context: int, shuffle_id: int) -> ShuffleAllocation:
        """Allocate workers for shuffle ``shuffle_id`` of the job's SparkContext number ``context``."""

    def release(self, job_id: str, context: int, shuffle_id: int) -> None:
        """Release a shuffle that is no longer needed."""


@dataclass
class Job:
    """A driver that runs a round of work for every number that it receives, and its executors."""

    channels: Channels
    directory: Path
    spark: SparkRuntime
    issuer: DirectoryIssuer
    trust_domain: str
    script: Path = ROUNDS
    shape: DriverShape = SHAPE
    conf: Mapping[str, str] = field(default_factory=lambda: FOUR_PARTITIONS)
    shuffle: ShuffleService | None = None
    hosts: Sequence[str] = (HOST,)
    job_id: str = field(default_factory=lambda: secrets.token_hex(16))
    executors: dict[int, ChildProcess] = field(default_factory=dict)
    _secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    _jvms: list[ChildProcess] = field(default_factory=list)
    _python: asyncio.subprocess.Process | None = None
    _registration: SparkRegistration = field(init=False)
    _temp_dir: Path = field(init=False)

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the driver and the executors; they end with ``stack``."""
        self.spark = replace(
            self.spark, engine=TlsEngine.OPENSSL if self.channels is Channels.OPENSSL else TlsEngine.JDK
        )
        self._issue_driver()
        temp_dir = make_temp_dir()
        stack.callback(remove_temp_dir, temp_dir)
        self._temp_dir = temp_dir
        events: asyncio.Queue[BridgeEvent] = asyncio.Queue()

        def received(event: BridgeEvent) -> None:
            if isinstance(event, RegisterShuffle | LocateShuffle):
                answer: ShuffleAnswer | str = self._allocate(bridge.contexts, event.shuffle_id)
                if isinstance(event, LocateShuffle) and isinstance(answer, ShuffleAllocation):
                    answer = tuple(OutputLocation(pushed_to=each.name, address=each) for each in answer.workers)
                bridge.answer_shuffle(bridge.contexts, event.id, answer)
            elif isinstance(event, UnregisterShuffle):
                if self.shuffle:
                    self.shuffle.release(self.job_id, bridge.contexts, event.shuffle_id)
            else:
                events.put_nowait(event)

        bridge = Bridge(temp_dir / "bridge", received)
        await bridge.start()
        stack.push_async_callback(bridge.close)
        stack.push_async_callback(self._stop)
        async with asyncio.timeout(START_SECONDS):
            await self._start_driver(bridge.path, temp_dir)
            self._registration = await _next(events, SparkRegistration)
            for number in range(1, self.shape.executors + 1):
                await self.start_executor(number)

    def _allocate(self, context: int, shuffle_id: int) -> ShuffleAllocation | str:
        return self.shuffle.allocate(context, shuffle_id) if self.shuffle else "there is no shuffle service here"

    async def round(self, work: int) -> tuple[float, float]:
        """Run one round; returns its wall time and the CPU time of the job's JVMs, both in seconds."""
        before = self.cpu_seconds()
        wall = float(await self.ask(str(work)))
        return wall, self.cpu_seconds() - before

    async def ask(self, line: str) -> str:
        """Send a line to the driver program; returns its answer."""
        if self._python is None or self._python.stdin is None or self._python.stdout is None:
            raise RuntimeError("the job was not started")
        self._python.stdin.write(f"{line}\n".encode())
        answer = await asyncio.wait_for(self._python.stdout.readline(), ROUND_SECONDS)
        if not answer:
            raise RuntimeError(f"the {self.channels} job ended: see the logs in {self.directory}")
        return answer.decode().rstrip("\n")

    def check_channels(self) -> None:
        """Raise unless the executors used the expected channels.

        These are TLS connections to shuffle workers, or connections to each other with or without TLS.
        """
        lines = [line for directory in self._identities() for line in read_evidence(_reports(directory)).connections]
        peers = [line.peer for line in lines if "/executor/" in line.local]
        between_executors = sum("/executor/" in peer for peer in peers)
        to_workers = sum("/shuffle-worker/" in peer for peer in peers)
        if self.shuffle is not None:
            right = to_workers > 0
        else:
            right = to_workers == 0 and bool(between_executors) == (self.channels is not Channels.PLAINTEXT)
        if not right:
            raise RuntimeError(
                f"{between_executors} TLS connections between executors of the {self.channels} job, "
                f"{to_workers} to shuffle workers"
            )

    async def _start_driver(self, bridge: Path, temp_dir: Path) -> None:
        conf = {
            **default_conf(),
            **launcher_conf(job_id=self.job_id, name=self.channels, host=HOST, shape=self.shape),
            **(shuffle_conf() if self.shuffle else {}),
            "spark.authenticate.secret": self._secret,
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            # Executors share this machine; make them fetch from each other over the network nevertheless.
            "spark.shuffle.readHostLocalDisk": "false",
            **self.conf,
        }
        gateway = temp_dir / "gateway"
        command = driver_jvm_command(
            conf,
            self.spark,
            JvmPlace(
                self._identities()[0], self.directory, temp_dir, reports=_reports(self._identities()[0]), host=HOST
            ),
            memory_mb=self.shape.driver_memory_mb,
            bridge=bridge,
            connection_info=gateway,
            job_id=self.job_id,
            attempt=1,
        )
        self._jvms.append(await self._start_jvm(command, self.directory))
        while not gateway.exists():  # noqa: ASYNC110  # Spark signals this with a file
            await asyncio.sleep(0.02)
        address = read_gateway(gateway.read_bytes())
        env = {
            **command.env,
            "PATH": os.defpath,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_GATEWAY_PORT": str(address.port),
            "PYSPARK_GATEWAY_SECRET": address.secret,
        }
        with (self.directory / "python.log").open("wb") as log:
            self._python = await asyncio.create_subprocess_exec(
                sys.executable,
                str(self.script),
                env=env,
                cwd=self.directory,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=MAX_ANSWER_BYTES,
            )

    async def start_executor(self, number: int) -> None:
        """Start another executor. Each number can be used once."""
        registration, temp_dir = self._registration, self._temp_dir
        self._issue_executor(number)
        work_dir = self.directory / f"executor-{number}"
        own = [option for option in registration.java_options if not option.startswith("-Dsluice")]
        launch = ExecutorLaunch(
            job_id=self.job_id,
            allocation_id=f"slot-{number}",
            executor_id=number,
            app_id=registration.app_id,
            driver_url=registration.driver_url,
            resource_profile_id=0,
            cores=self.shape.executor_cores,
            memory_mb=self.shape.executor_memory_mb,
            startup_conf={},
            java_options=tuple(own),
            spark_auth_secret=self._secret,
            python=sys.executable,
        )
        identity, host = work_dir / "identity", self.hosts[number % len(self.hosts)]
        place = JvmPlace(identity, work_dir, temp_dir, reports=_reports(identity), host=host)
        command = executor_command(launch, self.spark, place)
        self.executors[number] = jvm = await self._start_jvm(command, work_dir)
        self._jvms.append(jvm)

    async def _start_jvm(self, command: Command, work_dir: Path) -> ChildProcess:
        if self.channels is Channels.PLAINTEXT:
            command = without_tls(command, self.spark.plugin)
        command.write_files()
        with (work_dir / "jvm.log").open("wb") as log:
            return await ChildProcess.start(
                command.argv,
                env=command.env,
                cwd=work_dir,
                stdout=log.fileno(),
                stderr=log.fileno(),
                stdin=asyncio.subprocess.PIPE,
            )

    def _identities(self) -> list[Path]:
        """Return the identity directories: the driver's, then the executors'."""
        return [self.directory / "identity", *sorted(self.directory.glob("executor-*/identity"))]

    @property
    def _accept(self) -> list[str]:
        return [f"spiffe://{self.trust_domain}/job/{self.job_id}/*"]

    def _issue_driver(self) -> None:
        self.directory.mkdir()
        driver = SpiffeId.driver(self.trust_domain, self.job_id)
        self.issuer.issue_to(self.directory / "identity", driver, accept=self._accept)

    def _issue_executor(self, number: int) -> None:
        executor = SpiffeId.executor(self.trust_domain, self.job_id, number)
        self.issuer.issue_to(self.directory / f"executor-{number}" / "identity", executor, accept=self._accept)

    def cpu_seconds(self) -> float:
        """CPU time of the job's running JVMs so far."""
        times = [psutil.Process(jvm.pid).cpu_times() for jvm in self._jvms if jvm.running]
        return sum(each.user + each.system for each in times)

    async def _stop(self) -> None:
        if self._python is not None:
            if self._python.returncode is None:
                self._python.kill()
            await self._python.wait()
        for jvm in self._jvms:
            await jvm.stop(0)


def _reports(identity: Path) -> Path:
    """Return the directory for the reports of the process with this identity."""
    return make_private_directory(identity.with_name("reports"))


def without_tls(command: Command, plugin: Path) -> Command:
    """Return ``command`` for stock Spark in plaintext: without the agent, TLS and authentication settings."""
    files = {}
    for path, content in command.files.items():
        lines = content.decode().splitlines()
        unchecked = (f'"-D{RESERVED_PROPERTY}=none"', f'"-D{ALLOWED_PROPERTY}=*"')
        kept = [*unchecked, *(line for line in lines if not _is_about_tls(line))]
        if kept[-2] != '"-cp"':
            raise RuntimeError("the class path is no longer the last option")
        kept[-1] = kept[-1][:-1] + os.pathsep + str(plugin) + '"'  # has the cluster manager; -javaagent added it before
        files[path] = ("\n".join(kept) + "\n").encode()
    env = {name: value for name, value in command.env.items() if name != "_SPARK_AUTH_SECRET"}
    return Command(command.argv, env, files)


def _is_about_tls(option: str) -> bool:
    properties = (f"-D{RESERVED_PROPERTY}=", f"-D{ALLOWED_PROPERTY}=")
    return option.removeprefix('"').startswith(("-javaagent:", "-Dspark.ssl.", "-Dspark.authenticate", *properties))


async def _next(events: asyncio.Queue[Any], kind: type[_T]) -> _T:
    """Return the next event of a kind, and discard those before it."""
    while True:
        event = await events.get()
        if isinstance(event, kind):
            return event
        if isinstance(event, SparkStopped):
            raise RuntimeError("Spark ended before it had started")  # noqa: TRY004  # not a wrong type
