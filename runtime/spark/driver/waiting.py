"""The JVM and the Python of a driver whose job has not come: each in its box, warmed up, without identity and network.

The agent that has started them waits with them, for one line on its standard input: the path of the
:class:`~sluice.runtime.spark.driver.spec.DriverSpec`. The end of the input instead means that nobody needs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec

from sluice.core import end_tasks, is_regular_file, read_secret, write_secret
from sluice.runtime.job_network import AttachmentClient, ReceivedAttachment
from sluice.runtime.node import ChildProcess, open_log
from sluice.runtime.sandbox import IsolationConfig, Sandbox, Subject, Trial, View
from sluice.runtime.spark.driver.imported_python import imported_python_argv, run_pipeline, send_line
from sluice.runtime.spark.driver.pipeline import python_environment
from sluice.runtime.spark.driver.places import DriverPlaces
from sluice.runtime.spark.driver.spec import MAX_SPEC_BYTES, as_path
from sluice.runtime.spark.errors import DriverFailed, SparkError
from sluice.runtime.spark.jvm import (
    READY,
    Command,
    SparkRuntime,
    can_become,
    job_line,
    jvm_environment,
    jvm_options,
    make_temp_dir,
    waiting_command,
)
from sluice.runtime.workload import WorkloadPlace

PIPELINE = Subject("the pipeline's Python process", "driver_python_memory_mb in [isolation]")
JVM = Subject("the driver's JVM", "memory_overhead_mb or python_worker_memory_mb in [isolation]", owner="the driver")

PYTHON_READY = "python-ready"
AGENT_READY = "agent-ready"
"""The file that says that all three wait; the agent removes it when it has heard which driver it is."""
WAITING_LOGS = ("driver.stdout", "driver.stderr", "driver.jvm.log")
POLL_SECONDS = 0.1


class WaitingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a TaskManager tells an agent that is to wait.

    Attributes:
        id: in the place of a job's id: whose uid the boxes have.
        directory: of its own; its boxes see ``work``, ``reports``, ``identity`` and ``checkpoints`` below it.
        host: the address that the driver's Spark will listen on.
        memory_mb: heap.
        checkpoints: the directory of all jobs' checkpoints; empty: there is none.
        isolation: what JVM and Python wait in.
        trial: how this machine was found to give that; None: the agent tries it itself.
        spark: what they are started from; None: the agent examines Java and Spark itself.
        private_dirs: what they may not see.
        attachments: descriptor over which the boxes are attached to a network.
    """

    id: str
    directory: str
    host: str
    memory_mb: int
    checkpoints: str
    isolation: IsolationConfig
    trial: Trial | None = None
    spark: SparkRuntime | None = None
    private_dirs: tuple[str, ...]
    attachments: int

    def write(self, path: Path) -> Path:
        """Write it to ``path`` with mode 0600; returns ``path``."""
        write_secret(path, msgspec.json.encode(self, enc_hook=str))  # paths
        return path

    @classmethod
    def read(cls, path: Path) -> WaitingSpec:
        """Read it; raises :class:`DriverFailed` for a file that does not decode."""
        try:
            return msgspec.json.decode(read_secret(path, MAX_SPEC_BYTES), type=cls, dec_hook=as_path)
        except msgspec.DecodeError as error:
            raise DriverFailed(f"{path} says nothing about a driver that waits: {error}") from error


class WaitingDriver:
    """See the module's documentation.

    Args:
        spec: where, and what of it is known.
        spark: what JVM and Python are started from.
        sandbox: what they wait in.
    """

    def __init__(self, spec: WaitingSpec, spark: SparkRuntime, sandbox: Sandbox) -> None:
        self.spec = spec
        self.spark = spark
        self.sandbox = sandbox
        self.attachments = AttachmentClient(spec.attachments)
        self.directory = Path(spec.directory)
        self.identity = self.directory / "identity"
        self.checkpoints = self.directory / "checkpoints"
        self.temp = make_temp_dir()
        self.places = DriverPlaces(self.directory / "work", self.directory / "reports", self.directory, self.temp)
        self.places.make()
        WorkloadPlace(self.places.workload, sandbox.uid(spec.id)).make()
        self.jvm: ChildProcess | None = None
        self.python: ChildProcess | None = None
        self._command: Command | None = None

    async def start(self) -> None:
        """Start both; returns when they wait, and says so to whoever looks.

        Raises:
            DriverFailed: one of them ended.
        """
        places = self.places
        place = places.jvm_place(self.identity, self.spec.host, {})
        options = jvm_options(self.spark, place, self.spec.memory_mb)
        env = jvm_environment(self.spark, places.work, places.scratch, self.spec.host)
        command = self._command = waiting_command(
            self.spark, options, env, temp_dir=places.scratch, argfile=places.work / "waiting.args"
        )
        await asyncio.to_thread(self._prepare, command)
        with self._log("driver.jvm.log") as log:
            self.jvm = await self._start(command.argv, command.env, "jvm", (log, log))
        with self._log("driver.stdout") as out, self._log("driver.stderr") as err:
            argv = imported_python_argv(places.scratch / PYTHON_READY)
            self.python = await self._start(argv, python_environment(self.spark, places), "python", (out, err))
        for process, ready in ((self.jvm, READY), (self.python, PYTHON_READY)):
            while not is_regular_file(places.scratch, ready):
                if not process.running:
                    raise DriverFailed(f"a process that should wait ended: {await process.wait()}")
                await asyncio.sleep(POLL_SECONDS)
        (places.scratch / PYTHON_READY).unlink()
        (self.directory / AGENT_READY).touch(mode=0o600)

    def _prepare(self, command: Command) -> None:
        command.write_files()
        places = self.places
        self.sandbox.own((places.work, places.scratch, places.jvm, places.reports), self.spec.id)

    async def _start(
        self, argv: tuple[str, ...], env: Mapping[str, str], name: str, logs: tuple[IO[bytes], IO[bytes]]
    ) -> ChildProcess:
        places, sandbox, is_jvm = self.places, self.sandbox, name == "jvm"
        writable = (places.work, places.scratch, *((places.jvm, places.reports) if is_jvm else ()))
        shown = {Path(self.spec.checkpoints): self.checkpoints} if self.spec.checkpoints else {}
        view = View(
            self.spec.id,
            (*self.spark.read_only, places.workload),
            writable,
            identity=self.identity if is_jvm else None,
            shown_elsewhere=shown,
            home=places.work,
        )
        limits = sandbox.driver_jvm_limits(heap_mb=self.spec.memory_mb) if is_jvm else sandbox.driver_python_limits()
        attachment: ReceivedAttachment = await asyncio.to_thread(self.attachments.attach, name)
        box = sandbox.box(view, limits, network=attachment)
        watched = writable if is_jvm else ()
        guard = sandbox.guard(limits, JVM if is_jvm else PIPELINE, directories=watched, logs=logs)
        return await ChildProcess.start(
            argv,
            env=env,
            cwd=places.work,
            stdout=logs[0].fileno(),
            stderr=logs[1].fileno(),
            stdin=asyncio.subprocess.PIPE,
            box=box,
            guard=guard,
        )

    def _log(self, name: str) -> IO[bytes]:
        return open_log(self.directory / name)

    def confirm(self) -> None:
        """Say that both still wait, now that their job has come; raises :class:`DriverFailed`."""
        try:
            for each in (self.jvm, self.python):
                if each is None or not each.running:
                    raise DriverFailed("the JVM or the Python that waited has ended")
                each.take_share()
        except OSError as error:
            raise DriverFailed(f"what waited has no control group any more: {error.strerror}") from error
        (self.directory / AGENT_READY).unlink()

    async def ended(self) -> None:
        """Return when one of them has ended."""
        waits = [asyncio.ensure_future(each.wait()) for each in (self.jvm, self.python) if each is not None]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(*waits)

    async def become_jvm(self, command: Command, more: Mapping[str, str]) -> ChildProcess:
        """Tell the JVM what it is from now on; its standard input stays open, because it ends with it.

        Raises:
            SparkError: it cannot be that.
            OSError: it has ended.
            TimeoutError: it does not read.
        """
        if self.jvm is None or self._command is None or not can_become(self._command, command):
            raise SparkError("the JVM that has waited was started in another way")
        await send_line(self.jvm, job_line(command, more))
        return self.jvm

    async def become_python(self, command: Command, more: Mapping[str, str], directory: Path) -> ChildProcess:
        """Tell Python what to run, and where; raises as :meth:`become_jvm`."""
        if self.python is None:
            raise SparkError("no Python has waited")
        await run_pipeline(self.python, command, more, directory)
        return self.python

    def mount(self, job_id: str, checkpoints: tuple[Path, ...]) -> None:
        """Show both what is the job's and not only this attempt's; raises ``SandboxRefused``. Blocks."""
        for each in checkpoints:
            (self.checkpoints / each.name).mkdir()
        for process in (self.jvm, self.python):
            if process is not None:
                self.sandbox.mount_later(process.pid, self.spec.id, job_id, checkpoints)
        if self.jvm is not None:
            self.jvm.watch(checkpoints)

    async def end(self) -> None:
        """End both."""
        for process in (self.jvm, self.python):
            if process is not None:
                await process.stop(0)
