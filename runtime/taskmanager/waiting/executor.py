"""A warm JVM: it waits in a sandbox of its own to become one executor."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from sluice.core import is_regular_file
from sluice.runtime.messages import ExecutorLaunch
from sluice.runtime.node import ChildProcess, open_log, own_checkpoints
from sluice.runtime.sandbox import SandboxRefused, Subject, View
from sluice.runtime.spark import SparkError
from sluice.runtime.spark.jvm import READY, Command, JvmPlace, can_become, job_line
from sluice.runtime.taskmanager.errors import ExecutorNotStarted
from sluice.runtime.taskmanager.waiting.place import WaitingPlace
from sluice.runtime.taskmanager.waiting.process import ADMISSION_SECONDS, POLL_SECONDS, WaitingProcess, send_line

END_SECONDS = 1.0
STREAMS = ("stdout", "stderr")
EXECUTOR = Subject("the executor", "--executor-memory, or python_worker_memory_mb in [isolation]")
ADMISSION_POLL_SECONDS = 0.02


class WaitingExecutor(WaitingProcess):
    """A JVM that waits to become an executor. It sees only its own empty directories, and its network is closed."""

    called = "a JVM"
    command: Command | None = None

    async def start(self) -> None:
        """Start it and return when it waits.


        Raises:
            ExecutorNotStarted: it ended instead.
        """
        place = self.place = await self._room.place(self.size)
        network = self.network = await self._room.networks.wait(place.id)
        where = JvmPlace(place.identity, place.work, place.temp, place.reports, self._room.networks.host, {})
        self._spark = self._launcher.spark()
        command = self.command = self._launcher.waiting(where, self.size.memory_mb)
        own = (place.work, place.temp, place.reports)

        def prepare() -> View:
            command.write_files()
            self._room.sandbox.own(own, place.id)
            read_only = (*command.read_only, place.workload)
            shown = {Path(self.size.checkpoints): place.checkpoints} if self.size.checkpoints else {}
            return View(place.id, read_only, own, identity=place.identity, read_only_remapped=shown, home=place.work)

        view = await asyncio.to_thread(prepare)
        limits = self._room.sandbox.executor_limits(heap_mb=self.size.memory_mb, cores=self.size.cores)
        box = self._room.sandbox.box(view, limits, network=network.attach("executor"))
        with open_log(place.directory / "stdout") as out, open_log(place.directory / "stderr") as err:
            self.child = await ChildProcess.start(
                command.argv,
                env=command.env,
                cwd=place.work,
                stdout=out,
                stderr=err,
                stdin=asyncio.subprocess.PIPE,
                box=box,
                guard=self._room.sandbox.guard(limits, EXECUTOR, directories=own, logs=(out, err)),
                background=self._background,
            )
        while not is_regular_file(place.temp, READY):
            if not self.child.running:
                raise ExecutorNotStarted(f"a warm JVM ended before it was ready: {await self.child.wait()}")
            await asyncio.sleep(POLL_SECONDS)

    async def become(
        self, launch: ExecutorLaunch, command: Command, more: Mapping[str, str], logs: Path
    ) -> ChildProcess | None:
        """Let it become an executor; None if it cannot, and has ended.


        Args:
            launch: the executor.
            command: the command of the executor in this JVM's directories.
            more: additional environment variables.
            logs: the directory for its logs.
        """
        child, place = self.child, self.place
        if child is None or place is None or self.command is None or not child.running:
            return None
        try:
            _check(self.command, command)
            await asyncio.to_thread(self._open, child, place, launch)
            if self._background:
                await child.to_foreground()
            await asyncio.to_thread(place.hand_over, STREAMS, logs)
            await send_line(child, job_line(command, more))
            await _taken(child, place.temp)
        except (OSError, TimeoutError, SandboxRefused, SparkError) as error:
            await self._give_up(child, error)
            return None
        self._room.used(self.size.kind)
        return child

    def _open(self, child: ChildProcess, place: WaitingPlace, launch: ExecutorLaunch) -> None:
        """Mount the job's shared checkpoint directories into the sandbox."""
        sandbox = self._room.sandbox
        found = own_checkpoints(launch.checkpoints, sandbox, launch.job_id)
        for each in found:
            (place.checkpoints / each.name).mkdir()
        sandbox.mount_later(child.pid, place.id, launch.job_id, found)
        child.watch(found)

    async def _dismiss(self, child: ChildProcess) -> None:
        await child.stop(END_SECONDS)


async def _taken(child: ChildProcess, temp: Path) -> None:
    """Wait until the JVM has taken the job; raises :class:`BrokenPipeError` or :class:`TimeoutError`."""
    async with asyncio.timeout(ADMISSION_SECONDS):
        while is_regular_file(temp, READY):
            if not child.running:
                raise BrokenPipeError(f"it ended when it was given its job: {await child.wait()}")
            await asyncio.sleep(ADMISSION_POLL_SECONDS)


def _check(waiting: Command, command: Command) -> None:
    if not can_become(waiting, command):
        raise SparkError("it was started with other options than this executor needs")
