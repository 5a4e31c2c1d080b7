"""The pool of warm processes, and which drivers and executors may use them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sluice.core import SluiceError, make_private_directory
from sluice.runtime.messages import DriverLaunch, ExecutorLaunch, WarmJvms
from sluice.runtime.node import can_return, checkpoint_directory
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.taskmanager.launcher import WaitingLauncher
from sluice.runtime.taskmanager.networks import Networks
from sluice.runtime.taskmanager.waiting.driver import WaitingDriverAgent
from sluice.runtime.taskmanager.waiting.executor import WaitingExecutor
from sluice.runtime.taskmanager.waiting.place import DIRECTORY, remove_left_places
from sluice.runtime.taskmanager.waiting.process import WaitingRoom
from sluice.runtime.warm import MAX_AUTOMATIC, Machine, Sizing, WarmConfig, WarmKind, WarmPool, WarmSize

_LOG = logging.getLogger(__name__)


def objection(sandbox: Sandbox, networks: Networks | None) -> str:
    """The reason why no process can wait here for a job; empty: processes can."""
    if networks is None:
        return "jobs have no networks of their own"
    if not sandbox.can_mount_later:
        return "jobs have no uids of their own: this process is not root, or there is no sandbox"
    return ""


class WarmProcesses:
    """Chooses processes from the pool.

    Args:
        config: how many.
        work: the directory of this TaskManager.
        sandbox: what they wait in.
        networks: theirs.
        launcher: knows the commands of executors.
    """

    def __init__(
        self, config: WarmConfig, work: Path, sandbox: Sandbox, networks: Networks, launcher: WaitingLauncher
    ) -> None:
        always = config.fill == "always"
        in_background = can_return() and not always
        room = WaitingRoom(
            make_private_directory(work / DIRECTORY), sandbox, networks, self.used, self.in_vain, in_background
        )

        def make(size: WarmSize) -> WaitingExecutor | WaitingDriverAgent:
            if size.kind is WarmKind.DRIVER:
                return WaitingDriverAgent(size, room, launcher)
            return WaitingExecutor(size, room, launcher)

        self._parent = room.parent
        limit = MAX_AUTOMATIC if config.jvms == "auto" else config.jvms
        self.pool = WarmPool(make, Sizing(limit), Machine(), in_background=in_background, always=always)

    def executor(self, launch: ExecutorLaunch) -> WaitingExecutor | None:
        """The process that becomes this executor; None: a new one does.

        Secrets are files in the memory of a box, which only those have that are made for their job.
        """
        if launch.secrets:
            return None
        size = WarmSize(WarmKind.EXECUTOR, launch.memory_mb, launch.cores, _parent(launch.checkpoints))
        taken = self.pool.take(size)
        return taken if isinstance(taken, WaitingExecutor) else None

    def driver(self, launch: DriverLaunch) -> WaitingDriverAgent | None:
        """The agent that becomes this driver's; None: a new one does."""
        if not launch.may_have_waited:
            return None
        taken = self.pool.take(WarmSize(WarmKind.DRIVER, launch.driver_memory_mb, 1, _parent(launch.checkpoints)))
        return taken if isinstance(taken, WaitingDriverAgent) else None

    def used(self, kind: WarmKind) -> None:
        """Count a warm process that has become what its job wanted."""
        self.pool.used(kind)

    def in_vain(self, kind: WarmKind, why: str) -> None:
        """Count a warm process that could not be used when its job came."""
        self.pool.in_vain(kind, why)

    def figures(self) -> WarmJvms:
        """The numbers of the pool, for reports about the TaskManager."""
        figures = self.pool.figures
        waiting = self.pool.waiting()
        return WarmJvms(waiting=waiting.total(), hits=figures.hits.total(), misses=figures.misses.total())

    async def run(self) -> None:
        """Keep processes waiting, until cancelled."""
        try:
            await asyncio.to_thread(remove_left_places, self._parent)
            await self.pool.run()
        except (SluiceError, OSError):
            _LOG.exception("no JVM waits for jobs any more, which start without")


def _parent(url: str) -> str:
    directory = checkpoint_directory(url)
    return "" if directory is None else str(directory.parent)
