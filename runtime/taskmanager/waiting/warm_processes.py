"""The pool of warm processes; decides which drivers and executors may use them."""

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
    """The reason why this TaskManager can have no warm processes; empty if it can."""
    if networks is None:
        return "jobs do not have networks of their own"
    if not sandbox.can_mount_later:
        return "jobs do not have uids of their own: this process is not root, or there is no sandbox"
    return ""


class WarmProcesses:
    """Chooses warm processes for drivers and executors.


    Args:
        config: the number of processes and when they are started.
        work: the directory of this TaskManager.
        sandbox: the sandbox that they wait in.
        networks: opens their networks.
        launcher: builds the commands of executors.
    """

    def __init__(
        self, config: WarmConfig, work: Path, sandbox: Sandbox, networks: Networks, launcher: WaitingLauncher
    ) -> None:
        always = config.fill == "always"
        in_background = can_return() and not always
        room = WaitingRoom(
            make_private_directory(work / DIRECTORY), sandbox, networks, self.used, self.unusable, in_background
        )

        def make(size: WarmSize) -> WaitingExecutor | WaitingDriverAgent:
            if size.kind is WarmKind.DRIVER:
                return WaitingDriverAgent(size, room, launcher)
            return WaitingExecutor(size, room, launcher)

        self._parent = room.parent
        limit = MAX_AUTOMATIC if config.jvms == "auto" else config.jvms
        self.pool = WarmPool(make, Sizing(limit), Machine(), in_background=in_background, always=always)

    def executor(self, launch: ExecutorLaunch) -> WaitingExecutor | None:
        """The warm JVM for this executor; None if a new JVM must be started.

        An executor with secrets needs a new JVM: secrets are in-memory files that a sandbox gets when it is created.
        """
        if launch.secrets:
            return None
        size = WarmSize(WarmKind.EXECUTOR, launch.memory_mb, launch.cores, _parent(launch.checkpoints))
        taken = self.pool.take(size)
        return taken if isinstance(taken, WaitingExecutor) else None

    def driver(self, launch: DriverLaunch) -> WaitingDriverAgent | None:
        """The warm agent for this driver; None if a new agent must be started."""
        if not launch.may_have_waited:
            return None
        taken = self.pool.take(WarmSize(WarmKind.DRIVER, launch.driver_memory_mb, 1, _parent(launch.checkpoints)))
        return taken if isinstance(taken, WaitingDriverAgent) else None

    def used(self, kind: WarmKind) -> None:
        """Count a warm process that its job uses."""
        self.pool.used(kind)

    def unusable(self, kind: WarmKind, why: str) -> None:
        """Count a warm process that could not be used for its job."""
        self.pool.unusable(kind, why)

    def figures(self) -> WarmJvms:
        """The numbers of the pool for the slot report."""
        figures = self.pool.figures
        waiting = self.pool.waiting()
        return WarmJvms(waiting=waiting.total(), hits=figures.hits.total(), misses=figures.misses.total())

    async def run(self) -> None:
        """Maintain the pool until cancelled."""
        try:
            await asyncio.to_thread(remove_left_places, self._parent)
            await self.pool.run()
        except (SluiceError, OSError):
            _LOG.exception("the pool of warm processes failed; jobs start without it from now on")


def _parent(url: str) -> str:
    directory = checkpoint_directory(url)
    return "" if directory is None else str(directory.parent)
