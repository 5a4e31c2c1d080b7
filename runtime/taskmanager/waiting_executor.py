"""A JVM that waits in a box of its own, to become one executor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from sluice.core import is_regular_file, make_private_directory
from sluice.runtime.job_network import WaitingNetwork
from sluice.runtime.messages import ExecutorLaunch
from sluice.runtime.node import ChildProcess, open_log, own_checkpoints
from sluice.runtime.sandbox import Sandbox, SandboxRefused, Subject, View
from sluice.runtime.spark import SparkError
from sluice.runtime.spark.jvm import READY, Command, SparkRuntime, can_become, job_line
from sluice.runtime.taskmanager.errors import ExecutorNotStarted
from sluice.runtime.taskmanager.launcher import ExecutorPlace, WaitingLauncher
from sluice.runtime.taskmanager.networks import Networks
from sluice.runtime.taskmanager.waiting_place import WaitingPlace
from sluice.runtime.warm import WarmKind, WarmSize

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 0.1
END_SECONDS = 1.0
STREAMS = ("stdout", "stderr")
EXECUTOR = Subject("the executor", "--executor-memory, or python_worker_memory_mb in [isolation]")
ADMISSION_SECONDS = 10.0
"""How long a JVM that waits may take to become what it reads."""
ADMISSION_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class WaitingRoom:
    """What all processes that wait on a TaskManager have in common."""

    parent: Path
    """The directory of their directories."""
    sandbox: Sandbox
    networks: Networks
    used: Callable[[WarmKind], None]
    """Hears that one which has waited has become its job's."""
    in_vain: Callable[[WarmKind, str], None]
    """Hears why one could not."""
    in_background: bool
    """Whether they get only the processor time that nobody else wants, until they are taken."""

    async def place(self, size: WarmSize) -> WaitingPlace:
        """Directories for one more, if its box could be given what is its job's; raises ``SandboxRefused``."""
        place = await asyncio.to_thread(WaitingPlace.make, self.parent)
        try:
            folders = [make_private_directory(Path(size.checkpoints))] if size.checkpoints else []
            await asyncio.to_thread(self.sandbox.try_later, place.id, folders)
        except BaseException:
            await asyncio.to_thread(place.remove)
            raise
        return place


class WaitingExecutor:
    """See the module's documentation. It sees nothing but its own empty directories, and has no network.

    Args:
        size: of the executor.
        room: of all that wait here.
        launcher: knows the command.
    """

    def __init__(self, size: WarmSize, room: WaitingRoom, launcher: WaitingLauncher) -> None:
        self.size = size
        self._room = room
        self._launcher = launcher
        self.place: WaitingPlace | None = None
        self.network: WaitingNetwork | None = None
        self.command: Command | None = None
        self.child: ChildProcess | None = None
        self._spark: SparkRuntime | None = None
        self._background = room.in_background

    @property
    def usable(self) -> bool:
        """Whether it waits, and would be started in the same way now."""
        return self.child is not None and self.child.running and self._spark is self._launcher.spark()

    async def start(self) -> None:
        """Start it; returns when it waits.

        Raises:
            ExecutorNotStarted: it ended.
        """
        place = self.place = await self._room.place(self.size)
        network = self.network = await self._room.networks.wait(place.id)
        where = ExecutorPlace(place.identity, place.work, place.temp, place.reports, self._room.networks.host, {})
        self._spark = self._launcher.spark()
        command = self.command = self._launcher.waiting(where, self.size.memory_mb)
        own = (place.work, place.temp, place.reports)

        def prepare() -> View:
            command.write_files()
            self._room.sandbox.own(own, place.id)
            read_only = (*command.read_only, place.workload)
            shown = {Path(self.size.checkpoints): place.checkpoints} if self.size.checkpoints else {}
            return View(place.id, read_only, own, identity=place.identity, shown_elsewhere=shown, home=place.work)

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
                raise ExecutorNotStarted(f"a JVM that should wait ended: {await self.child.wait()}")
            await asyncio.sleep(POLL_SECONDS)

    async def become(
        self, launch: ExecutorLaunch, command: Command, more: Mapping[str, str], logs: Path
    ) -> ChildProcess | None:
        """Tell it what it is from now on; None: it cannot be that, and has ended.

        Args:
            launch: which executor.
            command: of the executor, in this one's place.
            more: environment besides.
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
            why = str(error) or type(error).__name__
            _LOG.warning("a JVM that waited could not be used, another one is started: %s", why)
            self._room.in_vain(self.size.kind, why)
            await child.stop(0)
            return None
        self._room.used(self.size.kind)
        return child

    def _open(self, child: ChildProcess, place: WaitingPlace, launch: ExecutorLaunch) -> None:
        """Show it what is the job's and not only this process's."""
        sandbox = self._room.sandbox
        found = own_checkpoints(launch.checkpoints, sandbox, launch.job_id)
        for each in found:
            (place.checkpoints / each.name).mkdir()
        sandbox.mount_later(child.pid, place.id, launch.job_id, found)
        child.watch(found)

    def used_seconds(self) -> float:
        """Processor time of the JVM so far."""
        return 0.0 if self.child is None else used_seconds(self.child.pid)

    async def close(self) -> None:
        """End it, and remove what it has left."""
        if self.child is not None:
            await self.child.stop(END_SECONDS)
        await asyncio.to_thread(self._remove)

    async def end(self) -> None:
        """End it, if nobody has taken it over."""
        if self.child is not None:
            await self.child.stop(0)

    def _remove(self) -> None:
        if self.network is not None:
            self.network.close()
        if self.place is not None:
            self.place.remove()


async def _taken(child: ChildProcess, temp: Path) -> None:
    """Return when it has its identity; raises :class:`BrokenPipeError` or :class:`TimeoutError`."""
    async with asyncio.timeout(ADMISSION_SECONDS):
        while is_regular_file(temp, READY):
            if not child.running:
                raise BrokenPipeError(f"it ended when its job came: {await child.wait()}")
            await asyncio.sleep(ADMISSION_POLL_SECONDS)


def _check(waiting: Command, command: Command) -> None:
    if not can_become(waiting, command):
        raise SparkError("it was started in another way")


async def send_line(child: ChildProcess, line: bytes, *, last: bool = True) -> None:
    """Write to the standard input of a process, and close it if this is the ``last``.

    Raises:
        OSError: it has ended.
        TimeoutError: it does not read.
    """
    if child.stdin is None:
        raise BrokenPipeError("it has no standard input")
    child.stdin.write(line)
    async with asyncio.timeout(ADMISSION_SECONDS):
        await child.stdin.drain()
    if last:
        child.stdin.close()


def used_seconds(pid: int) -> float:
    """Processor time of a process and all below it."""
    found = 0.0
    with contextlib.suppress(psutil.Error):
        for each in (top := psutil.Process(pid), *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = each.cpu_times()
                found += times.user + times.system
    return found
