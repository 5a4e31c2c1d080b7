"""Driver agents as processes: a new one for a driver, or the spare one that has its imports done and waits.

Python and the imports of an agent take half a second of CPU time, at the start of every job. So a TaskManager keeps one
agent started. It knows no job, has no identity and no connection, and ends when the TaskManager ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.core import SluiceError, make_private_directory, remove_untrusted
from sluice.runtime.job_network import attachment_sockets
from sluice.runtime.messages import DRIVER_LOGS
from sluice.runtime.node import ChildProcess, can_return, kill_processes_below, open_log
from sluice.runtime.spark.driver import BEGIN, SPARE
from sluice.runtime.taskmanager.waiting import PASSED_ENVIRONMENT

_LOG = logging.getLogger(__name__)

LOG_FILES = dict(
    zip(DRIVER_LOGS, ("driver.stdout", "driver.stderr", "driver.jvm.log", "driver.agent.log"), strict=True)
)
"""The file of each log in a driver's directory."""

AGENT = (sys.executable, "-P", "-m", "sluice.runtime.spark.driver.main")
"""The command of the driver agent; ``-P`` keeps a job's files off its module path."""

REFILL_SECONDS = 20.0
"""Pause before the next spare agent is started, so that it does not slow down the job that took the last one."""
RETRY_SECONDS = 60.0
"""Pause after a spare agent could not be started, or ended by itself."""
DIRECTORY = "agents"
"""Name below a TaskManager's directory."""


@dataclass(slots=True)
class StartedAgent:
    """A driver agent that waits for its spec.


    Attributes:
        child: the process.
        directory: its working directory, which contains its log.
        attachments: our end of the socket over which its boxes attach to the driver's network; None: no networks, or
            it is served.
        inherited: the agent's descriptor of the other end; -1: none.
        spare: whether it was started before it was known which driver it runs.
    """

    child: ChildProcess
    directory: Path
    attachments: socket.socket | None
    inherited: int
    spare: bool = False

    @classmethod
    async def start(cls, argv: Sequence[str], directory: Path, *, networked: bool, spare: bool = False) -> StartedAgent:
        """Start one with working directory ``directory``; raises :class:`OSError`."""
        environment = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
        with contextlib.ExitStack() as unless_started, contextlib.ExitStack() as stack:
            ours, inherited = None, -1
            if networked:
                ours, theirs = attachment_sockets()
                unless_started.callback(ours.close)
                inherited = stack.enter_context(theirs).fileno()
            log = stack.enter_context(open_log(directory / LOG_FILES["driver.agent"]))
            child = await ChildProcess.start(
                argv,
                env=environment,
                cwd=directory,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=() if inherited < 0 else (inherited,),
                background=spare and can_return(),
            )
            unless_started.pop_all()
        return cls(child, directory, ours, inherited, spare)

    async def move(self, directory: Path) -> None:
        """Give a spare agent normal priority, and its log to the driver in ``directory``; raises :class:`OSError`."""
        if not self.child.running:
            raise BrokenPipeError("it has ended")
        if can_return():
            await self.child.to_foreground()
        name = LOG_FILES["driver.agent"]
        await asyncio.to_thread((self.directory / name).rename, directory / name)

    async def begin(self, spec: Path) -> None:
        """Tell the agent that its spec is written. If it has ended, the watcher of its process reports that."""
        stdin = self.child.stdin
        if stdin is None:
            raise BrokenPipeError("the driver agent has no standard input")
        with contextlib.suppress(OSError):
            stdin.write(os.fsencode(spec) + b"\n" if self.spare else BEGIN)
            await stdin.drain()
        stdin.close()

    async def close(self) -> None:
        """End it; no driver has begun in it."""
        await self.child.stop(0)
        if self.attachments is not None:
            self.attachments.close()


class SpareAgent:
    """Keeps one driver agent started that knows no driver yet.


    Args:
        argv: the command of an agent.
        work: the directory of this TaskManager.
        networked: whether drivers have networks of their own.
        refill_seconds: pause before an agent that was taken is replaced.
    """

    def __init__(
        self, argv: Sequence[str], work: Path, *, networked: bool, refill_seconds: float = REFILL_SECONDS
    ) -> None:
        self._argv = (*argv, SPARE)
        self._parent = make_private_directory(work / DIRECTORY)
        self._networked = networked
        self._refill_seconds = refill_seconds
        self._agent: StartedAgent | None = None
        self._taken = asyncio.Event()

    async def take(self, directory: Path) -> StartedAgent | None:
        """The spare agent, with its log in ``directory``; None if there is none that can be used."""
        agent, self._agent = self._agent, None
        if agent is None:
            return None
        self._taken.set()
        try:
            await agent.move(directory)
        except BaseException as error:
            await asyncio.shield(agent.close())
            if not isinstance(error, OSError):
                raise
            _LOG.warning("the spare driver agent could not be used, a new one is started: %s", error)
            return None
        finally:
            await asyncio.to_thread(self._remove, agent.directory)
        return agent

    async def run(self) -> None:
        """Keep one started until cancelled."""
        try:
            await asyncio.to_thread(kill_processes_below, self._parent)
            for left in self._parent.iterdir():
                self._remove(left)
            while True:
                pause = await self._keep()
                await asyncio.sleep(pause)
        except (SluiceError, OSError):
            _LOG.exception("no spare driver agent from now on; each driver's agent is started with it")
        finally:
            await self.close()

    async def _keep(self) -> float:
        """Start one, and return when it was taken or has ended: the seconds until the next start."""
        self._taken.clear()
        directory = self._parent / secrets.token_hex(8)
        try:
            make_private_directory(directory)
            agent = self._agent = await StartedAgent.start(self._argv, directory, networked=self._networked, spare=True)
        except (SluiceError, OSError) as error:
            _LOG.warning("no spare driver agent: %s; drivers start without it", error)
            self._remove(directory)
            return RETRY_SECONDS
        taken = asyncio.ensure_future(self._taken.wait())
        ended = asyncio.ensure_future(agent.child.wait())
        try:
            await asyncio.wait((taken, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            taken.cancel()
            ended.cancel()
        if self._taken.is_set():
            return self._refill_seconds
        _LOG.warning("the spare driver agent ended: %s; drivers start without it for a while", ended.result())
        await self.close()
        return RETRY_SECONDS

    async def close(self) -> None:
        """End the spare agent."""
        agent, self._agent = self._agent, None
        if agent is not None:
            await asyncio.shield(agent.close())
            self._remove(agent.directory)

    def _remove(self, directory: Path) -> None:
        remove_untrusted(directory.parent, directory.name)
