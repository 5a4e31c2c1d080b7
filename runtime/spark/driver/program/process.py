"""Runs one driver: Spark's gateway JVM, and the user's Python program, which connects to it over loopback.

The JVM is started directly instead of by spark-submit. So there are no secrets in an argument list and no check of the
master URL, and the JVM ends when its standard input is closed, so it cannot outlive this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from sluice.core import (
    StoreError,
    UnsafeFile,
    end_tasks,
    is_regular_file,
    make_private_directory,
    open_untrusted,
    read_untrusted,
    remove_untrusted,
)
from sluice.pki import SpiffeId
from sluice.pki.trust import place_reports
from sluice.runtime.job_network import AttachmentClient, ReceivedAttachment
from sluice.runtime.masking import Masker
from sluice.runtime.messages import GivenSecret
from sluice.runtime.node import ChildProcess, Exit, JobIdentity, masker_of, open_log, own_checkpoints, secret_files
from sluice.runtime.sandbox import Box, IsolationLevel, Limits, Sandbox, SandboxRefused, Subject, View
from sluice.runtime.spark.driver.program.imported_python import imported_python_argv, run_pipeline
from sluice.runtime.spark.driver.program.pipeline import Pipeline, python_command, python_environment
from sluice.runtime.spark.driver.program.places import DriverPlaces
from sluice.runtime.spark.driver.program.waiting import JVM, PIPELINE, WaitingDriver
from sluice.runtime.spark.driver.spec import DriverSpec
from sluice.runtime.spark.errors import DriverFailed, SparkError, WarmProcessUnusable
from sluice.runtime.spark.jvm import Command, Gateway, SparkRuntime, driver_jvm_command, read_gateway
from sluice.runtime.workload import TokenFile, WorkloadPlace

MAX_STDERR_TAIL_BYTES = 64 << 10
MAX_GATEWAY_BYTES = 4 << 10
"""Maximum size of the gateway's address file, which is usually much smaller."""

BOX_COMMAND_SECONDS = 300.0
"""Timeout of a program that works on the job's files, such as unpacking an archive."""
MAX_COMPLAINT_BYTES = 500

_GATEWAY_POLL_SECONDS = 0.02


BOX_COMMAND = Subject("the program that unpacks archives", "driver_python_memory_mb in [isolation]", owner="the driver")


class DriverProcess:
    """The JVM and the Python process of one attempt, each in its own box.

    Both see the job's working directory, but no files of the agent. Only the JVM has the bridge and the identity, which
    the agent's owner renews.
    """

    def __init__(  # noqa: PLR0917  # the collaborators of a driver
        self,
        spec: DriverSpec,
        spark: SparkRuntime,
        sandbox: Sandbox,
        places: DriverPlaces,
        attachments: AttachmentClient | None = None,
        waiting: WaitingDriver | None = None,
    ) -> None:
        self._waiting = waiting
        self._spec = spec
        self._spark = spark
        self._sandbox = sandbox
        self._places = places
        self._attachments = attachments
        shown = None if waiting is None else waiting.identity
        self._identity = JobIdentity(Path(spec.identity_dir), sandbox, spec.waited or spec.job_id, shown)
        self._fresh: asyncio.Task[None] | None = None
        self._checkpoints: tuple[Path, ...] = ()
        self._jvm: ChildProcess | None = None
        self._secret_files: tuple[Path, ...] = ()
        """Files with secrets that the JVM reads at its start; removed afterwards."""
        self._python: ChildProcess | None = None
        self._workload = WorkloadPlace(places.workload, sandbox.uid(spec.waited or spec.job_id))
        self._workload_environment: Mapping[str, str] = {}
        self._secrets: tuple[GivenSecret, ...] = ()
        self._masker: Masker | None = None

    def check_secrets(self) -> None:
        """Check that this driver can get secrets. They are part of a box from its start.

        Raises:
            DriverFailed: its JVM and Python have waited, so their boxes already exist.
        """
        if self._waiting is not None:
            raise DriverFailed("a driver with a waiting JVM cannot get secrets", "this is a bug, please report it")

    def set_secrets(self, secrets: tuple[GivenSecret, ...]) -> Masker:
        """Set the secrets that JVM and Python get at their start; return the masker for output and messages."""
        self._secrets, self._masker = secrets, masker_of(secrets)
        return self._masker

    def prepare_workload_api(self, files: tuple[TokenFile, ...]) -> WorkloadPlace:
        """Prepare the directory of the Workload API. Must be called before either process starts; serves nothing."""
        self._workload.make()
        self._workload_environment = self._workload.environment(files)
        return self._workload

    def own(self, path: Path) -> None:
        """Give ``path`` to the job's uid."""
        self._sandbox.own([path], self._spec.waited or self._spec.job_id)

    async def launch_jvm(self, conf: Mapping[str, str], checkpoints: str = "") -> None:
        """Start the JVM; :meth:`gateway` waits for it.

        Args:
            conf: the complete Spark configuration.
            checkpoints: the directory for checkpoints of the job's streaming queries; empty: there is none.

        Raises:
            SandboxRefused: its box would show too much.
            WarmProcessUnusable: the waiting JVM cannot be used.
        """
        places = self._places
        make_private_directory(places.work / "local")
        command = driver_jvm_command(
            conf,
            self._spark,
            places.jvm_place(self._identity.visible_directory, self._spec.host, self._spec.ports or None),
            memory_mb=self._spec.driver_memory_mb,
            bridge=places.bridge,
            connection_info=places.gateway,
            job_id=self._spec.job_id,
            attempt=self._spec.attempt,
            allow_conf=self._spec.allow_conf,
        )
        if self._waiting is not None:
            with _before_job_code("the driver's JVM"):
                await asyncio.to_thread(self._open_waiting, self._waiting, checkpoints)
                self._jvm = await self._waiting.become_jvm(command, self._workload_environment)
        else:
            self._jvm = await self._start_cold(command, checkpoints)
        self._fresh = asyncio.create_task(self._identity.keep_fresh(), name="identity of the driver's JVM")
        self._secret_files = () if self._waiting is not None else tuple(command.files)
        await asyncio.to_thread(self._place_reports, self._jvm.pid)

    async def gateway(self) -> Gateway:
        """Wait until the gateway of the JVM listens.

        Raises:
            DriverFailed: the JVM ended, or took too long.
            WarmProcessUnusable: the same, for a JVM that has waited.
        """
        jvm = self._jvm
        if jvm is None:
            raise DriverFailed("the driver's JVM was never started")
        if self._waiting is None:
            return await self._listening(jvm)
        with _before_job_code("the driver's JVM"):
            return await self._listening(jvm)

    async def _listening(self, jvm: ChildProcess) -> Gateway:
        places, info = self._places, self._places.gateway
        try:
            async with asyncio.timeout(self._spec.start_timeout_seconds):
                while not is_regular_file(places.jvm, info.name):
                    if not jvm.running:
                        ended = await jvm.wait()
                        raise DriverFailed(f"the driver's JVM did not start: {ended}", "see driver.jvm.log")
                    await asyncio.sleep(_GATEWAY_POLL_SECONDS)
        except TimeoutError as error:
            raise DriverFailed("the driver's JVM took too long to start", "see driver.jvm.log") from error
        gateway = read_gateway(read_untrusted(places.jvm, info.name, limit=MAX_GATEWAY_BYTES))
        remove_untrusted(places.jvm, info.name)
        for path in self._secret_files:
            remove_untrusted(places.work, path.name)  # already read, so do not leave secrets on disk
        return gateway

    async def _start_cold(self, command: Command, checkpoints: str) -> ChildProcess:
        box = await asyncio.to_thread(self._prepare_jvm, command, checkpoints)
        with self._log("driver.jvm.log") as log:
            written = (*box.view.writable, *box.view.shared)
            guard = self._sandbox.guard(box.limits, JVM, directories=written, logs=(log,))
            return await ChildProcess.start(
                command.argv,
                env={**command.env, **self._workload_environment},
                cwd=self._places.work,
                stdout=log.fileno(),
                stderr=log.fileno(),
                stdin=asyncio.subprocess.PIPE,
                box=box,
                guard=guard,
                masker=self._masker,
            )

    def _open_waiting(self, waiting: WaitingDriver, checkpoints: str) -> None:
        """Prepare the files of waiting JVM and Python processes for their job."""
        places = self._places
        self._identity.refresh()
        self._sandbox.own((places.work, places.scratch, places.jvm, places.reports), waiting.spec.id)
        job_id = self._spec.job_id
        waiting.mount(job_id, own_checkpoints(checkpoints, self._sandbox, job_id))

    def _prepare_jvm(self, command: Command, checkpoints: str) -> Box:
        """Prepare the files of the JVM; return its box."""
        places, job_id = self._places, self._spec.job_id
        self._identity.refresh()
        command.write_files()
        own = (places.work, places.scratch, places.jvm, places.reports)
        self._sandbox.own(own, job_id)
        self._checkpoints = own_checkpoints(checkpoints, self._sandbox, job_id)
        view = View(
            job_id=job_id,
            read_only=(*command.read_only, self._workload.directory),
            writable=own,
            shared=self._checkpoints,
            identity=self._identity.visible_directory,
            secrets=secret_files(self._secrets),
            home=places.work,
        )
        limits = self._sandbox.driver_jvm_limits(heap_mb=self._spec.driver_memory_mb)
        return self._sandbox.box(view, limits, network=self._attachment("jvm"))

    def _python_box(self) -> Box:
        places = self._places
        view = View(
            job_id=self._spec.job_id,
            read_only=(*self._spark.read_only, self._workload.directory),
            writable=(places.work, places.scratch),
            shared=self._checkpoints,
            secrets=secret_files(self._secrets),
            home=places.work,
        )
        return self._sandbox.box(view, self._sandbox.driver_python_limits(), network=self._attachment("python"))

    def _attachment(self, box: str) -> ReceivedAttachment | None:
        return None if self._attachments is None else self._attachments.attach(box)

    def _place_reports(self, pid: int) -> None:
        identity = SpiffeId.driver(self._spec.trust_domain, self._spec.job_id)
        place_reports(Path(self._spec.identity_dir), pid, str(identity), self._places.reports)

    async def run_in_box(self, argv: Sequence[str]) -> tuple[Exit, str]:
        """Run a program on the job's files, in the box of the job's Python; return its exit and its error output.

        Raises:
            TimeoutError: it has not ended after :data:`BOX_COMMAND_SECONDS`.
        """
        await asyncio.to_thread(self._sandbox.own, [self._places.work], self._spec.job_id)
        box = await asyncio.to_thread(self._python_box)
        with tempfile.TemporaryFile() as complaints:
            child = await ChildProcess.start(
                argv,
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                cwd=self._places.work,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=complaints,
                box=box,
                guard=self._sandbox.guard(box.limits, BOX_COMMAND, directories=(self._places.work,)),
            )
            try:
                async with asyncio.timeout(BOX_COMMAND_SECONDS):
                    ended = await child.wait()
            finally:
                await child.stop(0)
            if child.excess:
                return ended, child.excess
            complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - MAX_COMPLAINT_BYTES))
            return ended, complaints.read(MAX_COMPLAINT_BYTES).decode(errors="replace")

    async def prepare_python(self) -> None:
        """Start a Python process that imports PySpark while the JVM starts, for :meth:`start_python`."""
        if self._waiting is None:
            environment = python_environment(self._spark, self._places)
            self._python = await self._start_python(
                imported_python_argv(), environment, self._places.work, stdin=asyncio.subprocess.PIPE
            )

    async def start_python(self, pipeline: Pipeline, gateway: Gateway) -> None:
        """Start the user's program. Its output goes to ``driver.stdout`` and ``driver.stderr``.

        Raises:
            DriverFailed: the prepared Python process has ended.
            WarmProcessUnusable: the waiting Python process cannot be used.
        """
        command = python_command(pipeline, gateway, self._spec, self._spark, self._places)
        more, place = self._workload_environment, pipeline.script.parent
        if self._waiting is not None:
            with _before_job_code("the driver's Python"):
                self._python = await self._waiting.become_python(command, more, place)
        elif self._python is None:
            self._python = await self._start_python(command.argv, {**command.env, **more}, place)
        else:
            try:
                await run_pipeline(self._python, command, more, place)
            except (OSError, TimeoutError) as error:
                raise DriverFailed(
                    "the driver's Python ended before it ran the pipeline", "see driver.stderr"
                ) from error

    async def _start_python(
        self, argv: Sequence[str], env: Mapping[str, str], directory: Path, *, stdin: int = asyncio.subprocess.DEVNULL
    ) -> ChildProcess:
        box = await asyncio.to_thread(self._python_box)
        with self._log("driver.stdout") as out, self._log("driver.stderr") as err:
            # The JVM has the same directories, and its guard measures them.
            guard = self._sandbox.guard(box.limits, PIPELINE, logs=(out, err))
            return await ChildProcess.start(
                argv,
                env=env,
                cwd=directory,
                stdin=stdin,
                stdout=out.fileno(),
                stderr=err.fileno(),
                box=box,
                guard=guard,
                masker=self._masker,
            )

    async def wait_python(self) -> Exit:
        """Wait for the end of the user's program."""
        if self._python is None:
            raise DriverFailed("the pipeline was never started")
        return await self._python.wait()

    async def wait_jvm(self) -> Exit:
        """Wait for the end of the JVM."""
        if self._jvm is None:
            raise DriverFailed("the driver's JVM was never started")
        return await self._jvm.wait()

    async def stop_python(self, grace_seconds: float) -> None:
        """Send SIGTERM to the program and its child processes, and SIGKILL after the grace period."""
        if self._python is not None:
            await self._python.stop(grace_seconds)

    async def stop_jvm(self, grace_seconds: float) -> Exit | None:
        """Close the JVM's standard input, so that it stops Spark and exits; kill it after the grace period.

        Returns its exit; None: it had to be killed, or never ran.
        """
        if self._jvm is None:
            return None
        ended = None
        if self._jvm.stdin is not None:
            self._jvm.stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    ended = await self._jvm.wait()
        await self._jvm.stop(0)
        if self._fresh is not None:
            await end_tasks(self._fresh)
        return ended

    @property
    def enforced_limits(self) -> Limits:
        """The limits that the kernel enforces on the pipeline; without a sandbox there are none."""
        unlimited = self._sandbox.level is IsolationLevel.NONE
        return Limits() if unlimited else self._sandbox.driver_python_limits()

    @property
    def excess(self) -> str:
        """The limit for which the JVM or pipeline was killed; known once it has ended. Empty: none."""
        ended = (each.excess for each in (self._jvm, self._python) if each is not None)
        return next((excess for excess in ended if excess), "")

    def jvm_excess_so_far(self) -> str:
        """The limit that the JVM has exceeded so far, whether or not it has ended; empty: none."""
        return "" if self._jvm is None else self._jvm.excess_so_far()

    def stderr_tail(self) -> str:
        """The end of the program's standard error."""
        try:
            with open_untrusted(self._places.logs, "driver.stderr") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - MAX_STDERR_TAIL_BYTES))
                return file.read(MAX_STDERR_TAIL_BYTES).decode(errors="replace")
        except (FileNotFoundError, UnsafeFile):
            return ""

    def _log(self, name: str) -> IO[bytes]:
        return open_log(self._places.logs / name)


@contextlib.contextmanager
def _before_job_code(who: str) -> Iterator[None]:
    """Convert errors to :class:`WarmProcessUnusable`, for steps before any code of the job runs."""
    try:
        yield
    except (SandboxRefused, SparkError, StoreError, OSError) as error:
        raise WarmProcessUnusable(f"cannot use {who}, which has waited: {error or type(error).__name__}") from error
