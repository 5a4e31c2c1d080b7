"""The Spark UI of one ended job: a JVM in a sandbox without a network that reads the job's event log.

The job wrote the log, and Spark's reader does not expect hostile input: it instantiates classes that the log names.
Therefore the JVM is sandboxed like a process of the job: it runs with the job's uid, sees nothing but the log and
Spark, has limited memory, disk and time, and has neither an identity nor a network. It answers over a Unix socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Counter

from sluice.core import REGISTRY, SluiceError, end_tasks, make_private_directory, printable, remove_untrusted
from sluice.runtime.messages import UiPage, UiRequest
from sluice.runtime.node import ChildProcess, Exit, kill_processes_below, open_log
from sluice.runtime.sandbox import Sandbox, Subject, View
from sluice.runtime.spark.driver import UI_SOCKET, ask_ui
from sluice.runtime.spark.jvm import SparkRuntime, history_ui_command, make_temp_dir, remove_temp_dir

FAILED = Counter(
    "sluice_history_uis_failed_total",
    "Spark UIs of ended jobs that this TaskManager could not show: their event logs could not be read.",
    registry=REGISTRY,
)
READ_SECONDS = 300.0
"""How long the JVM may take to start and read the event log."""
DISK_MB = 256
TEMPORARY_MB = 64
EVENT_LOG = "events.gz"
JVM_LOG = "history.log"
MAX_WHY_CHARACTERS = 600
_POLL_SECONDS = 0.05
_LOG = logging.getLogger(__name__)
SUBJECT = Subject("the JVM that shows Spark's UI", "ui_memory_mb in [history]")


@dataclass(frozen=True, slots=True)
class UiPlaces:
    """The directories of one UI. Its JVM sees ``work`` and ``socket``."""

    directory: Path
    temp: Path

    @property
    def work(self) -> Path:
        """The working directory of the JVM; it contains the event log."""
        return self.directory / "work"

    @property
    def event_log(self) -> Path:
        """The event log that the UI shows."""
        return self.work / EVENT_LOG

    @property
    def socket(self) -> Path:
        """The directory in which the JVM creates its socket; a short path."""
        return self.temp / "jvm"

    @classmethod
    def make(cls, directory: Path) -> UiPlaces:
        """Create the directories; raises ``StoreError``."""
        make_private_directory(directory.parent)
        remove_untrusted(directory.parent, directory.name)
        places = cls(make_private_directory(directory), make_temp_dir())
        for path in (places.work, places.socket):
            make_private_directory(path)
        return places

    def remove(self) -> None:
        """Remove the directories after the end of the JVM; raises ``OrphansRemain``."""
        kill_processes_below(self.directory)
        remove_temp_dir(self.temp)
        remove_untrusted(self.directory.parent, self.directory.name)


class EndedUi:
    """The JVM of one UI, from its start to its end.


    Args:
        spark: returns the Java and Spark installation that the JVM is started from.
        memory_mb: its heap size in MiB.

    Attributes:
        why: the reason why it failed; empty if it has not failed.
        shown: whether the event log has been read and pages are available.
    """

    def __init__(
        self, job_id: str, places: UiPlaces, *, spark: Callable[[], SparkRuntime], sandbox: Sandbox, memory_mb: int
    ) -> None:
        self._spark = spark
        self._sandbox = sandbox
        self._memory_mb = memory_mb
        self.job_id = job_id
        self.places = places
        self.why = ""
        self.shown = False
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start it in the background. :attr:`why` contains the reason of a failure."""
        self._running = asyncio.create_task(self._run(), name=f"Spark UI of job {self.job_id}")

    async def ask(self, request: UiRequest) -> UiPage:
        """A page; its status is 502 to 504 if the UI does not serve it."""
        return await ask_ui(self.places.socket / UI_SOCKET, request)

    async def end(self) -> None:
        """Stop the JVM and remove its files."""
        if self._running is not None:
            await end_tasks(self._running)
        await asyncio.to_thread(self.places.remove)

    async def _run(self) -> None:
        try:
            jvm = await self._start()
            try:
                ended = await self._until_ended(jvm)
            finally:
                await asyncio.shield(jvm.stop(0))
            self.why = f"{jvm.excess or f'its JVM ended: {ended}'}{self._last_words()}"
        except TimeoutError:
            self.why = f"its event log could not be read within {READ_SECONDS:.0f} seconds"
        except (SluiceError, OSError) as error:
            self.why = f"its JVM could not be started: {error}"
        self.why = self.why[:MAX_WHY_CHARACTERS]
        self.shown = False
        FAILED.inc()
        _LOG.warning("the Spark UI of job %s is not shown: %s", self.job_id, self.why)

    async def _start(self) -> ChildProcess:
        places, sandbox, memory_mb = self.places, self._sandbox, self._memory_mb
        command = history_ui_command(
            await asyncio.to_thread(self._spark),
            event_log=places.event_log,
            work_dir=places.work,
            temp_dir=Path("/tmp"),  # noqa: S108  # the sandbox's own
            bridge=places.socket / "bridge",
            memory_mb=memory_mb,
        )
        own = (places.work, places.socket)

        def prepare() -> None:
            command.write_files()
            sandbox.own(own, self.job_id)

        await asyncio.to_thread(prepare)
        view = View(job_id=self.job_id, read_only=command.read_only, writable=own, home=places.work)
        limits = sandbox.history_ui_limits(heap_mb=memory_mb, disk_mb=DISK_MB, tmp_mb=TEMPORARY_MB)
        box = await asyncio.to_thread(sandbox.offline_box, view, limits)
        with open_log(places.directory / JVM_LOG) as log:
            return await ChildProcess.start(
                command.argv,
                env=command.env,
                cwd=places.work,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                box=box,
                guard=sandbox.guard(limits, SUBJECT, directories=own, logs=(log,)),
            )

    async def _until_ended(self, jvm: ChildProcess) -> Exit:
        """Wait for the end of the JVM and return it; raises :class:`TimeoutError` if it is not ready in time."""
        async with asyncio.timeout(READ_SECONDS):
            while jvm.running and not (self.places.socket / UI_SOCKET).is_socket():  # noqa: ASYNC110  # made by the JVM
                await asyncio.sleep(_POLL_SECONDS)
        self.shown = jvm.running
        return await jvm.wait()

    def _last_words(self) -> str:
        """The last line that the JVM printed, as a suffix for a message."""
        with contextlib.suppress(OSError), (self.places.directory / JVM_LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - 4096))
            lines = log.read().decode(errors="replace").strip().splitlines()
            said = [line for line in lines if not line.startswith(("\t", " ", "WARNING:"))]
            if said:
                return f"; it said: {printable(said[-1], ' ')[:300]}"
        return ""
