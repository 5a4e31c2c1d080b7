"""A rehearsal of a job: its JVMs record what they load, and what of it runs often.

Driver and executor are started as those of any job, with agent, guard and mutual TLS. Their identities come from an
authority that is made for it and goes with it. Nothing of a cluster takes part, nor any job's code.

``python -m sluice.runtime.spark.training.rehearsal ORDER.json`` in a network of its own: nobody else of the machine
reaches what it listens on, and it reaches nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from sluice.core import Home, SluiceError, make_private_directory
from sluice.pki import PkiConfig, SpiffeId
from sluice.pki.issuing import LocalIssuer
from sluice.runtime.messages import ExecutorLaunch, SparkRegistration
from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import new_network
from sluice.runtime.spark.driver import Bridge, BridgeEvent
from sluice.runtime.spark.errors import ClassArchiveFailed
from sluice.runtime.spark.jvm import (
    DRIVER_LISTENS,
    EXECUTOR_LISTENS,
    Command,
    DriverShape,
    Gateway,
    JvmPlace,
    SparkRuntime,
    default_conf,
    driver_jvm_command,
    executor_command,
    launcher_conf,
    make_temp_dir,
    read_gateway,
    remove_temp_dir,
)

TIMEOUT_SECONDS = 900
"""It may run at idle priority beside jobs."""
JOB = Path(__file__).with_name("job.py")
MEMORY_MB = 768
HOST = "127.0.0.1"
_TRUST_DOMAIN = "sluice.local"
_JOB_ID = "0" * 32
_POLL_SECONDS = 0.05
_TOLD_CHARACTERS = 700


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to record, and where."""

    spark: SparkRuntime
    directory: Path
    """Private; for everything that is written."""
    driver_options: tuple[str, ...]
    executor_options: tuple[str, ...]
    executor_classes: Path
    """The list of classes that the executor writes."""
    both_in_driver: bool
    """Whether the driver's JVM is to do and load also what executors do and load."""
    own_network: bool = True


def written(order: Order) -> bytes:
    """The order as JSON."""
    return msgspec.json.encode(order, enc_hook=str)


def read(content: bytes) -> Order:
    """The order in JSON."""
    return msgspec.json.decode(content, type=Order, dec_hook=lambda declared, value: declared(value))


def class_names(listed: str) -> list[str]:
    """The classes of a list that come from jars or from Java's own modules.

    Not those that the JVM makes by itself (``@lambda-proxy``) nor those of other class loaders (``source:``): where
    there is a Java agent, a JVM of Java 17 looks for the class file of each class that it takes from an archive, and
    dies (SIGSEGV in ``KlassFactory::check_shared_class_file_load_hook``) when there is none.
    """
    lines = (line.split() for line in listed.splitlines() if line and line[0] not in "#@")
    return [words[0] for words in lines if "source:" not in words]


class Rehearsal:
    """One job with one executor, run for its records."""

    def __init__(self, order: Order, temp: Path) -> None:
        self._order = order
        self._work = order.directory
        self._temp = temp
        self._secret = secrets.token_hex(32)
        self._registration: asyncio.Future[SparkRegistration] = asyncio.get_running_loop().create_future()
        self._issuer = LocalIssuer(Home.at(make_private_directory(self._work / "home")), PkiConfig())
        self._bridge = Bridge(temp / "bridge", self._on_event)
        self._started: list[ChildProcess] = []

    async def run(self) -> None:
        """Run it to its end; raises :class:`ClassArchiveFailed`."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await asyncio.to_thread(self._issuer.ensure_authorities)
                await self._bridge.start()
                await self._play()
        except TimeoutError as error:
            raise ClassArchiveFailed(f"the rehearsal took longer than {TIMEOUT_SECONDS} s") from error
        except SluiceError as error:
            raise ClassArchiveFailed(f"{error.what}; {self._told()}") from error
        finally:
            await asyncio.gather(*(process.stop(0) for process in self._started))
            await self._bridge.close()

    async def _play(self) -> None:
        driver, gateway = await self._start_driver()
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._execute())
                both.create_task(self._run_python(gateway, str(self._work)))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if self._order.both_in_driver:
            listed = self._work / "executor.names"
            text = await asyncio.to_thread(self._order.executor_classes.read_text)
            names = (name.replace("/", ".") for name in class_names(text))
            await asyncio.to_thread(listed.write_text, "\n".join(names))
            await self._run_python(gateway, str(self._work), str(listed))
        if driver.stdin is not None:
            driver.stdin.close()  # it ends in order, and writes down what it has recorded
        ended = await driver.wait()
        if ended.code != 0:
            raise ClassArchiveFailed(f"the driver ended with {ended}")

    def _on_event(self, event: BridgeEvent) -> None:
        if isinstance(event, SparkRegistration) and not self._registration.done():
            self._registration.set_result(event)

    async def _start_driver(self) -> tuple[ChildProcess, Gateway]:
        info = self._temp / "gateway"
        shape = DriverShape(1, 1, MEMORY_MB, MEMORY_MB)
        conf = {
            **default_conf(),
            **launcher_conf(job_id=_JOB_ID, name="classes", host=HOST, shape=shape),
            "spark.authenticate.secret": self._secret,
            "spark.sql.warehouse.dir": str(self._work / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
        }
        command = driver_jvm_command(
            conf,
            self._order.spark,
            self._place("driver", SpiffeId.driver(_TRUST_DOMAIN, _JOB_ID), DRIVER_LISTENS),
            memory_mb=MEMORY_MB,
            bridge=self._bridge.path,
            connection_info=info,
            job_id=_JOB_ID,
            attempt=1,
        )
        jvm = await self._start(command, "driver", self._order.driver_options)
        while not info.exists():
            if not jvm.running:
                raise ClassArchiveFailed("Spark's JVM did not start")
            await asyncio.sleep(_POLL_SECONDS)
        return jvm, read_gateway(info.read_bytes())

    async def _execute(self) -> None:
        """Run the executor that the driver asks for, to its end."""
        registration = await self._registration
        launch = ExecutorLaunch(
            job_id=_JOB_ID,
            allocation_id="slot",
            executor_id=1,
            app_id=registration.app_id,
            driver_url=registration.driver_url,
            resource_profile_id=0,
            cores=registration.executor_cores,
            memory_mb=registration.executor_memory_mb,
            startup_conf=registration.startup_conf,
            java_options=registration.java_options,
            spark_auth_secret=self._secret,
            python=sys.executable,
        )
        place = self._place("executor", SpiffeId.executor(_TRUST_DOMAIN, _JOB_ID, 1), EXECUTOR_LISTENS)
        command = executor_command(launch, self._order.spark, place)
        process = await self._start(command, "executor", self._order.executor_options)
        await process.wait()

    def _place(self, name: str, spiffe_id: SpiffeId, listens: Sequence[str]) -> JvmPlace:
        """Directories, an identity and ports for one of the JVMs."""
        identity = self._work / f"{name}-identity"
        accept = (f"spiffe://{_TRUST_DOMAIN}/job/{_JOB_ID}/*",)
        self._issuer.issue_to(identity, spiffe_id, ips=[HOST], accept=accept)
        work, reports = (make_private_directory(self._work / each) for each in (name, f"{name}-reports"))
        return JvmPlace(
            identity, work, self._temp, reports, HOST, dict(zip(listens, free_ports(len(listens)), strict=True))
        )

    async def _start(self, command: Command, name: str, options: Sequence[str]) -> ChildProcess:
        command.write_files()
        java, *arguments = command.argv
        with (self._work / f"{name}.log").open("wb") as log:
            process = await ChildProcess.start(
                (java, *options, *arguments),
                env=command.env,
                cwd=self._work / name,
                stdin=asyncio.subprocess.PIPE,
                stdout=log.fileno(),
                stderr=log.fileno(),
            )
        self._started.append(process)
        return process

    async def _run_python(self, gateway: Gateway, *arguments: str) -> None:
        env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self._work),
            "TMPDIR": str(self._temp),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SPARK_HOME": str(self._order.spark.distribution.home),
            "SPARK_LOCAL_IP": HOST,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_GATEWAY_PORT": str(gateway.port),
            "PYSPARK_GATEWAY_SECRET": gateway.secret,
        }
        with (self._work / "python.log").open("ab") as log:
            process = await ChildProcess.start(
                (sys.executable, "-P", str(JOB), *arguments),
                env=env,
                cwd=self._work,
                stdout=log.fileno(),
                stderr=log.fileno(),
            )
        self._started.append(process)
        ended = await process.wait()
        if ended.code != 0:
            raise ClassArchiveFailed(f"its pipeline ended with {ended}")

    def _told(self) -> str:
        """The end of what its processes printed; nothing of it is secret."""
        logs = (self._work / f"{name}.log" for name in ("python", "driver", "executor"))
        return " | ".join(log.read_text(errors="replace")[-_TOLD_CHARACTERS:].strip() for log in logs if log.exists())


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


async def rehearse(order: Order) -> None:
    """Run a rehearsal; raises :class:`ClassArchiveFailed`."""
    temp = make_temp_dir()
    try:
        await Rehearsal(order, temp).run()
    finally:
        remove_temp_dir(temp)


def main(argv: Sequence[str], *, enter: Callable[[], None] = new_network) -> int:
    """Command line entry point; ``argv`` without the program's name."""
    order = read(Path(argv[0]).read_bytes())
    try:
        if order.own_network:
            enter()
        asyncio.run(rehearse(order))
    except (SluiceError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
