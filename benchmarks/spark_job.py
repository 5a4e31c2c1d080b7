"""One Spark job for measurements: a driver and executors of its own, started with the commands of the runtime.

With :attr:`Channels.PLAINTEXT` the same commands run without the provider: the agent and every ``spark.ssl`` and
``spark.authenticate`` setting are taken out, nothing else.
"""

from __future__ import annotations

import asyncio
import enum
import os
import secrets
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from pki.identity import SpiffeId
from pki.issuer import Issuer
from runtime.messages import ExecutorLaunch, SparkRegistration
from runtime.process import ChildProcess
from runtime.spark.bridge import Bridge, BridgeEvent, SparkStopped
from runtime.spark.command import Command, SparkRuntime, TlsEngine, driver_jvm_command, executor_command
from runtime.spark.conf import FORBIDDEN_PATTERNS_PROPERTY, DriverShape, default_conf, launcher_conf
from runtime.spark.driver_process import read_gateway
from runtime.spark.evidence import read_evidence
from runtime.spark.tempdir import make_temp_dir, remove_temp_dir

HOST = "127.0.0.1"
EXECUTORS = 2
SHAPE = DriverShape(executors=EXECUTORS, executor_cores=1, executor_memory_mb=1024, driver_memory_mb=768)
START_SECONDS = 90.0
ROUND_SECONDS = 300.0

_T = TypeVar("_T")


class Channels(enum.StrEnum):
    """How the channels of a job are secured."""

    PLAINTEXT = "plaintext"
    JDK = "mutual_tls_jdk"
    OPENSSL = "mutual_tls_openssl"


@dataclass
class Job:
    """A driver that runs a round of work for every number it is given, and its executors."""

    channels: Channels
    directory: Path
    spark: SparkRuntime
    issuer: Issuer
    trust_domain: str
    job_id: str = field(default_factory=lambda: secrets.token_hex(16))
    _secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    _jvms: list[ChildProcess] = field(default_factory=list)
    _python: asyncio.subprocess.Process | None = None

    async def start(self, stack: AsyncExitStack) -> None:
        """Start everything; it ends with ``stack``."""
        self.spark = replace(
            self.spark, engine=TlsEngine.OPENSSL if self.channels is Channels.OPENSSL else TlsEngine.JDK
        )
        self._issue_identities()
        temp_dir = make_temp_dir()
        stack.callback(remove_temp_dir, temp_dir)
        events: asyncio.Queue[BridgeEvent] = asyncio.Queue()
        bridge = Bridge(temp_dir / "bridge", events.put_nowait)
        await bridge.start()
        stack.push_async_callback(bridge.close)
        stack.push_async_callback(self._stop)
        async with asyncio.timeout(START_SECONDS):
            await self._start_driver(bridge.path, temp_dir)
            registration = await _next(events, SparkRegistration)
            for number in range(1, EXECUTORS + 1):
                await self._start_executor(number, registration, temp_dir)

    async def round(self, work: int) -> tuple[float, float]:
        """Run one round; returns its wall time and the CPU time of the job's JVMs meanwhile, both in seconds."""
        before = self._cpu_seconds()
        if self._python is None or self._python.stdin is None or self._python.stdout is None:
            raise RuntimeError("the job was not started")
        self._python.stdin.write(f"{work}\n".encode())
        line = await asyncio.wait_for(self._python.stdout.readline(), ROUND_SECONDS)
        if not line:
            raise RuntimeError(f"the {self.channels} job ended: see the logs in {self.directory}")
        return float(line), self._cpu_seconds() - before

    def check_channels(self) -> None:
        """Raise unless the executors talked to each other over what :attr:`channels` says."""
        seen = [line for directory in self._identities() for line in read_evidence(directory)]
        between_executors = [line for line in seen if "/executor/" in line.local and "/executor/" in line.peer]
        if bool(between_executors) != (self.channels is not Channels.PLAINTEXT):
            raise RuntimeError(f"{len(between_executors)} TLS connections between executors of the {self.channels} job")

    async def _start_driver(self, bridge: Path, temp_dir: Path) -> None:
        conf = {
            **default_conf(),
            **launcher_conf(job_id=self.job_id, name=self.channels, host=HOST, shape=SHAPE),
            "spark.authenticate.secret": self._secret,
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            # Executors share this machine; make them fetch from each other all the same.
            "spark.shuffle.readHostLocalDisk": "false",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.shuffle.partitions": "4",
        }
        gateway = temp_dir / "gateway"
        command = driver_jvm_command(
            conf,
            spark=self.spark,
            identity_dir=self._identities()[0],
            work_dir=self.directory,
            temp_dir=temp_dir,
            host=HOST,
            memory_mb=SHAPE.driver_memory_mb,
            bridge=bridge,
            connection_info=gateway,
            job_id=self.job_id,
            attempt=1,
        )
        await self._start_jvm(command, self.directory)
        while not gateway.exists():  # noqa: ASYNC110  # Spark tells it by a file
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
                str(Path(__file__).with_name("shuffle_rounds.py")),
                env=env,
                cwd=self.directory,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    async def _start_executor(self, number: int, registration: SparkRegistration, temp_dir: Path) -> None:
        work_dir = self.directory / f"executor-{number}"
        own = [option for option in registration.java_options if not option.startswith("-Dsluice")]
        launch = ExecutorLaunch(
            job_id=self.job_id,
            allocation_id=f"slot-{number}",
            executor_id=number,
            app_id=registration.app_id,
            driver_url=registration.driver_url,
            resource_profile_id=0,
            cores=SHAPE.executor_cores,
            memory_mb=SHAPE.executor_memory_mb,
            startup_conf={},
            java_options=tuple(own),
            spark_auth_secret=self._secret,
            python=sys.executable,
        )
        command = executor_command(
            launch,
            spark=self.spark,
            identity_dir=self._identities()[number],
            work_dir=work_dir,
            temp_dir=temp_dir,
            host=HOST,
        )
        await self._start_jvm(command, work_dir)

    async def _start_jvm(self, command: Command, work_dir: Path) -> None:
        if self.channels is Channels.PLAINTEXT:
            command = without_tls(command, self.spark.plugin)
        command.write_files()
        with (work_dir / "jvm.log").open("wb") as log:
            jvm = await ChildProcess.start(
                command.argv,
                env=command.env,
                cwd=work_dir,
                stdout=log.fileno(),
                stderr=log.fileno(),
                stdin=asyncio.subprocess.PIPE,
            )
        self._jvms.append(jvm)

    def _identities(self) -> list[Path]:
        """Identity directories: the driver's, then the executors'."""
        numbers = range(1, EXECUTORS + 1)
        return [self.directory / "identity", *(self.directory / f"executor-{n}" / "identity" for n in numbers)]

    def _issue_identities(self) -> None:
        self.directory.mkdir()
        driver, *executors = self._identities()
        accept = [f"spiffe://{self.trust_domain}/job/{self.job_id}/*"]
        self.issuer.issue_to(driver, SpiffeId.driver(self.trust_domain, self.job_id), accept=accept)
        for number, directory in enumerate(executors, 1):
            self.issuer.issue_to(directory, SpiffeId.executor(self.trust_domain, self.job_id, number), accept=accept)

    def _cpu_seconds(self) -> float:
        times = [psutil.Process(jvm.pid).cpu_times() for jvm in self._jvms]
        return sum(each.user + each.system for each in times)

    async def _stop(self) -> None:
        if self._python is not None:
            if self._python.returncode is None:
                self._python.kill()
            await self._python.wait()
        for jvm in self._jvms:
            await jvm.stop(0)


def without_tls(command: Command, plugin: Path) -> Command:
    """``command`` for stock Spark in plaintext: no agent, no TLS or authentication settings."""
    files = {}
    for path, content in command.files.items():
        lines = content.decode().splitlines()
        kept = [f'"-D{FORBIDDEN_PATTERNS_PROPERTY}=none"', *(line for line in lines if not _is_about_tls(line))]
        if kept[-2] != '"-cp"':
            raise RuntimeError("the class path is no longer the last option")
        kept[-1] = kept[-1][:-1] + os.pathsep + str(plugin) + '"'  # the cluster manager, which -javaagent brought
        files[path] = ("\n".join(kept) + "\n").encode()
    env = {name: value for name, value in command.env.items() if name != "_SPARK_AUTH_SECRET"}
    return Command(command.argv, env, files)


def _is_about_tls(option: str) -> bool:
    prefixes = ("-javaagent:", "-Dspark.ssl.", "-Dspark.authenticate", f"-D{FORBIDDEN_PATTERNS_PROPERTY}=")
    return option.removeprefix('"').startswith(prefixes)


async def _next(events: asyncio.Queue[Any], kind: type[_T]) -> _T:
    """The next event of a kind; the ones before it are of no interest."""
    while True:
        event = await events.get()
        if isinstance(event, kind):
            return event
        if isinstance(event, SparkStopped):
            raise RuntimeError("Spark ended before it had begun")  # noqa: TRY004  # not a wrong type
