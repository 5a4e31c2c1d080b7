"""The warmed-up JVM and Python process that wait for a driver's job, each in its box, without identity and network.

The agent that has started them waits for one line on its standard input: the path of the
:class:`~sluice.runtime.spark.driver.spec.DriverSpec`. The end of the input means that they are not needed.
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
from sluice.runtime.spark.driver.program.imported_python import imported_python_argv, run_pipeline, send_line
from sluice.runtime.spark.driver.program.pipeline import python_environment
from sluice.runtime.spark.driver.program.places import DriverPlaces
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
"""A file that exists while the agent, the JVM and Python wait. The agent removes it when it gets its driver."""
WAITING_LOGS = ("driver.stdout", "driver.stderr", "driver.jvm.log")
POLL_SECONDS = 0.1


class WaitingSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The start parameters of a waiting agent, from its TaskManager.

    Attributes:
        id: replaces a job id; determines the uid of the boxes.
        directory: its own directory; its boxes see ``work``, ``reports``, ``identity`` and ``checkpoints`` below it.
        host: the address that the driver's Spark will listen on.
        memory_mb: heap of the JVM in MiB.
        checkpoints: the directory of all jobs' checkpoints; empty: there is none.
        isolation: the isolation of JVM and Python.
        trial: the TaskManager's trial of this isolation; None: the agent tries it itself.
        spark: the installation to start them from; None: the agent finds Java and Spark itself.
        private_dirs: directories that they may not see.
        attachments: descriptor over which the boxes attach to a network.
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
        """Write the spec to ``path`` with mode 0600; return ``path``."""
        write_secret(path, msgspec.json.encode(self, enc_hook=str))  # str() encodes paths
        return path

    @classmethod
    def read(cls, path: Path) -> WaitingSpec:
        """Read a spec.

        Raises:
            DriverFailed: the file cannot be decoded.
        """
        try:
            return msgspec.json.decode(read_secret(path, MAX_SPEC_BYTES), type=cls, dec_hook=as_path)
        except msgspec.DecodeError as error:
            raise DriverFailed(f"{path} is not the spec of a waiting driver: {error}") from error


class WaitingDriver:
    """A JVM and a Python process that wait for a driver.

    Args:
        spec: their directories, and the known parameters of the driver.
        spark: the installation to start them from.
        sandbox: creates their boxes.
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
        """Start both, wait until they are ready, and create :data:`AGENT_READY`.

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
                    raise DriverFailed(f"a waiting process ended: {await process.wait()}")
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
            read_only_remapped=shown,
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
        """Check that both still wait when their job arrives, give them processor time, and remove :data:`AGENT_READY`.

        Raises:
            DriverFailed: one of them has ended.
        """
        try:
            for each in (self.jvm, self.python):
                if each is None or not each.running:
                    raise DriverFailed("the waiting JVM or Python process has ended")
                each.restore_cpu_share()
        except OSError as error:
            raise DriverFailed(f"the control group of a waiting process is gone: {error.strerror}") from error
        (self.directory / AGENT_READY).unlink()

    async def ended(self) -> None:
        """Return when one of them has ended."""
        waits = [asyncio.ensure_future(each.wait()) for each in (self.jvm, self.python) if each is not None]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(*waits)

    async def become_jvm(self, command: Command, more: Mapping[str, str]) -> ChildProcess:
        """Let the JVM take over ``command``. Its standard input stays open, because the JVM ends when it is closed.

        Raises:
            SparkError: the JVM was started with other options.
            OSError: the JVM has ended.
            TimeoutError: the JVM does not read its input.
        """
        if self.jvm is None or self._command is None or not can_become(self._command, command):
            raise SparkError("the waiting JVM was started with other options")
        await send_line(self.jvm, job_line(command, more))
        return self.jvm

    async def become_python(self, command: Command, more: Mapping[str, str], directory: Path) -> ChildProcess:
        """Let Python run ``command`` in ``directory``. Raises the same errors as :meth:`become_jvm`."""
        if self.python is None:
            raise SparkError("there is no waiting Python process")
        await run_pipeline(self.python, command, more, directory)
        return self.python

    def mount(self, job_id: str, checkpoints: tuple[Path, ...]) -> None:
        """Mount the job's checkpoints into the boxes of both. Blocks.

        Raises:
            SandboxRefused: this machine does not support it, or a process has ended.
        """
        for each in checkpoints:
            (self.checkpoints / each.name).mkdir()
        for process in (self.jvm, self.python):
            if process is not None:
                self.sandbox.mount_later(process.pid, self.spec.id, job_id, checkpoints)
        if self.jvm is not None:
            self.jvm.watch(checkpoints)

    async def end(self) -> None:
        """Kill both."""
        for process in (self.jvm, self.python):
            if process is not None:
                await process.stop(0)
