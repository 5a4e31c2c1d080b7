"""A warm driver agent: it waits with a JVM and a Python process to run one driver."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

from sluice.runtime.job_network import AttachmentServer, attachment_sockets
from sluice.runtime.node import ChildProcess, open_log
from sluice.runtime.spark.driver import AGENT_READY, WAITING_LOGS, WaitingSpec
from sluice.runtime.taskmanager.errors import DriverNotStarted
from sluice.runtime.taskmanager.waiting.place import WaitingPlace
from sluice.runtime.taskmanager.waiting.process import ADMISSION_SECONDS, POLL_SECONDS, WaitingProcess, send_line

AGENT_LOG = "driver.agent.log"
LOGS = (*WAITING_LOGS, AGENT_LOG)
END_SECONDS = 2.0
CONFIRM_POLL_SECONDS = 0.01

PASSED_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "JAVA_HOME", "XDG_CACHE_HOME", "USER")
"""The only environment variables that a driver agent inherits from the TaskManager."""


WAITING_AGENT = (sys.executable, "-P", "-m", "sluice.runtime.spark.driver.main", "--wait")
"""The command of a warm driver agent; ``-P`` keeps a job's files off its module path."""


class WaitingDriverAgent(WaitingProcess):
    """A driver agent that waits with a JVM and a Python process."""

    called = "a driver agent"

    async def start(self) -> None:
        """Start it and return when it waits; raises :class:`DriverNotStarted` if it ends instead."""
        place = self.place = await self._room.place(self.size)
        self._spark = self._launcher.spark()
        network = self.network = await self._room.networks.wait(place.id)
        ours, theirs = attachment_sockets()
        AttachmentServer(network, ours)  # the event loop holds it
        with theirs:
            spec = await asyncio.to_thread(self._write_spec, place, theirs)
            with open_log(place.directory / AGENT_LOG) as log:
                child = self.child = await ChildProcess.start(
                    (*WAITING_AGENT, str(spec)),
                    env={name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ},
                    cwd=place.directory,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    background=self._background,
                )
        while not (place.directory / AGENT_READY).exists():
            if not child.running:
                raise DriverNotStarted(f"a warm driver agent ended before it was ready: {await child.wait()}")
            await asyncio.sleep(POLL_SECONDS)

    def _write_spec(self, place: WaitingPlace, attachments: socket.socket) -> Path:
        sandbox = self._room.sandbox
        return WaitingSpec(
            id=place.id,
            directory=str(place.directory),
            host=self._room.networks.host,
            memory_mb=self.size.memory_mb,
            checkpoints=self.size.checkpoints,
            isolation=sandbox.config,
            trial=sandbox.trial,
            spark=self._spark,
            private_dirs=tuple(map(str, sandbox.private)),
            attachments=attachments.fileno(),
        ).write(place.directory / "waiting.json")

    async def become(self, spec: Path, logs: Path) -> ChildProcess | None:
        """Tell it which driver to run; None if it has ended.


        Args:
            spec: the file with the driver's spec.
            logs: the directory for its logs.
        """
        child, place = self.child, self.place
        if child is None or place is None or not child.running:
            return None
        try:
            if self._background:
                await child.to_foreground()
            await asyncio.to_thread(place.hand_over, LOGS, logs)
            await send_line(child, os.fsencode(spec) + b"\n")
            await self._confirmed(child, place)
        except (OSError, TimeoutError) as error:
            await self._give_up(child, error)
            return None
        return child

    @staticmethod
    async def _confirmed(child: ChildProcess, place: WaitingPlace) -> None:
        async with asyncio.timeout(ADMISSION_SECONDS):
            while (place.directory / AGENT_READY).exists():
                if not child.running:
                    raise BrokenPipeError("it has ended")
                await asyncio.sleep(CONFIRM_POLL_SECONDS)

    async def _dismiss(self, child: ChildProcess) -> None:
        """Tell the agent that it is not needed; it ends its JVM and Python itself."""
        with contextlib.suppress(OSError, TimeoutError):
            if self._background:
                await child.to_foreground()
            if child.stdin is not None:
                child.stdin.close()
            async with asyncio.timeout(END_SECONDS):
                await child.wait()
        await child.stop(0)
