"""A warm process: it waits on a TaskManager to become a process of a job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

from sluice.core import make_private_directory
from sluice.runtime.job_network import JobNetwork, WaitingNetwork
from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.spark.jvm import SparkRuntime
from sluice.runtime.taskmanager.launcher import WaitingLauncher
from sluice.runtime.taskmanager.networks import Networks
from sluice.runtime.taskmanager.waiting.place import WaitingPlace
from sluice.runtime.warm import WarmKind, WarmSize

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 0.1
ADMISSION_SECONDS = 10.0
"""How long a warm process may take to become the driver or executor it is told to be."""


@dataclass(frozen=True, slots=True)
class WaitingRoom:
    """Settings that all warm processes of a TaskManager share."""

    parent: Path
    """The directory that contains a directory per process."""
    sandbox: Sandbox
    networks: Networks
    used: Callable[[WarmKind], None]
    """Called when a warm process has become a process of its job."""
    unusable: Callable[[WarmKind, str], None]
    """Called with the reason when a warm process could not be used."""
    in_background: bool
    """Whether they run at idle priority until they are taken."""

    async def place(self, size: WarmSize) -> WaitingPlace:
        """Directories for one more process; raises ``SandboxRefused`` if a job could not be mounted into it later."""
        place = await asyncio.to_thread(WaitingPlace.make, self.parent)
        try:
            folders = [make_private_directory(Path(size.checkpoints))] if size.checkpoints else []
            await asyncio.to_thread(self.sandbox.try_later, place.id, folders)
        except BaseException:
            await asyncio.to_thread(place.remove)
            raise
        return place


class WaitingProcess(ABC):
    """A process with its own directories and network that waits to be told which driver or executor to become.


    Args:
        size: the kind and size of the process it can become.
        room: the settings that all warm processes share.
        launcher: knows the Java and Spark installation.
    """

    called: ClassVar[str]
    """Its kind with an article, for messages."""

    def __init__(self, size: WarmSize, room: WaitingRoom, launcher: WaitingLauncher) -> None:
        self.size = size
        self._room = room
        self._launcher = launcher
        self._spark: SparkRuntime | None = None
        self.place: WaitingPlace | None = None
        self.network: WaitingNetwork | None = None
        self.child: ChildProcess | None = None
        self._background = room.in_background

    @property
    def usable(self) -> bool:
        """Whether it waits, and Java and Spark have not changed since its start."""
        return self.child is not None and self.child.running and self._spark is self._launcher.spark()

    def used_seconds(self) -> float:
        """The CPU time of the process and its descendants so far."""
        return 0.0 if self.child is None else _used_seconds(self.child.pid)

    async def end(self) -> None:
        """End it if no job has taken it over."""
        if self.child is not None:
            await self.child.stop(0)

    async def close(self) -> None:
        """End it and remove its network and directories."""
        if self.child is not None:
            await self._dismiss(self.child)
        await asyncio.to_thread(release_resources, self.place, self.network)

    @abstractmethod
    async def _dismiss(self, child: ChildProcess) -> None:
        """End the process because it is not needed."""

    async def _give_up(self, child: ChildProcess, error: Exception) -> None:
        """Report that the process could not be used, and end it."""
        why = str(error) or type(error).__name__
        _LOG.warning("%s that waited could not be used, a new one is started: %s", self.called, why)
        self._room.unusable(self.size.kind, why)
        await child.stop(0)


def release_resources(place: WaitingPlace | None, network: JobNetwork | WaitingNetwork | None) -> None:
    """Close the network and remove the directories of a process that has ended."""
    if network is not None:
        network.close()
    if place is not None:
        place.remove()


async def send_line(child: ChildProcess, line: bytes) -> None:
    """Write a line to the standard input of a process and close it.


    Raises:
        OSError: it has ended.
        TimeoutError: it does not read.
    """
    if child.stdin is None:
        raise BrokenPipeError("it has no standard input")
    child.stdin.write(line)
    async with asyncio.timeout(ADMISSION_SECONDS):
        await child.stdin.drain()
    child.stdin.close()


def _used_seconds(pid: int) -> float:
    """The CPU time of a process and its descendants."""
    found = 0.0
    with contextlib.suppress(psutil.Error):
        for each in (top := psutil.Process(pid), *top.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = each.cpu_times()
                found += times.user + times.system
    return found
