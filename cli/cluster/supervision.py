"""Supervises the processes of a local cluster: restarts each one that ends, without a limit on attempts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from sluice.core import SluiceError, end_tasks
from sluice.runtime import DRAINED_EXIT_CODE
from sluice.runtime.node import ChildProcess, Exit

_LOG = logging.getLogger(__name__)

RESTART_DELAYS_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
STABLE_AFTER_SECONDS = 60.0
"""A process that ran this long starts again with the shortest delay."""
RECORD_RETRY_SECONDS = 5.0
"""How soon to retry writing the record of running processes."""


@dataclass(slots=True, eq=False)
class Member:
    """One process of the cluster: ``sluice run ARGUMENTS``."""

    name: str
    arguments: tuple[str, ...]
    child: ChildProcess | None = None
    started_at: float = 0.0
    failures: int = 0
    coming_back: bool = False
    """Whether it starts again although it was drained; kept until it runs, whatever fails meanwhile."""


def unfailing(report: Callable[[str], None]) -> Callable[[str], None]:
    """``report``, whose errors end nothing: the disk with the log may be full, or the terminal gone."""

    def tell(line: str) -> None:
        with contextlib.suppress(OSError, SystemExit):  # rich makes a SystemExit of a broken pipe
            report(line)

    return tell


@dataclass
class Supervisor:
    """Watches the members until it is stopped.

    Attributes:
        members: shared with the launcher; one that has left is removed.
        start: starts the process of a member; retried after an error.
        record: writes which processes run; retried after an error.
        report: receives a line for each event.
        comes_back: whether to restart an ended one even if it was drained; called once for each end.
        pause: sleeps.
    """

    members: list[Member]
    start: Callable[[Member], Awaitable[None]]
    record: Callable[[], None]
    report: Callable[[str], None]
    comes_back: Callable[[str], bool] = lambda _: False
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _recorded: bool = True

    def __post_init__(self) -> None:
        """Make ``report`` unfailing."""
        self.report = unfailing(self.report)

    async def run(self, stop: asyncio.Event, *loops: tuple[str, Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Watch every member, and keep the ``loops`` (name and coroutine function) running, until ``stop``."""
        for member in self.members:
            self.watch(member)
        for what, loop in (*loops, ("writing down which processes run", self._keep_record)):
            self._keep(what, loop)
        try:
            await stop.wait()
        finally:
            await end_tasks(*self._tasks)

    def watch(self, member: Member) -> None:
        """Start ``member`` again whenever it ends, until it has left."""
        self._keep(f"starting {member.name}", lambda: self._watch(member))

    def write_record(self) -> None:
        """Write which processes run; retried later after an error."""
        try:
            self.record()
            self._recorded = True
        except (OSError, SluiceError) as error:
            if self._recorded:
                self.report(f"cannot write down which processes run: {error}; trying again")
            self._recorded = False

    def _keep(self, what: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.create_task(self._going(what, loop))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _going(self, what: str, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``loop`` until it is done; after an error, report it and start again."""
        failures = 0
        while True:
            try:
                await loop()
            except Exception as error:  # noqa: BLE001  the loop must go on after any error
                _LOG.exception("%s failed", what)
                delay = RESTART_DELAYS_SECONDS[min(failures, len(RESTART_DELAYS_SECONDS) - 1)]
                failures += 1
                self.report(f"{what} failed: {error or type(error).__name__}; trying again in {delay:.0f} s")
                await self.pause(delay)
            else:
                return

    async def _watch(self, member: Member) -> None:
        # After an error this starts again, with the ended process or the started one.
        while member.child is not None:
            ended: Exit = await member.child.wait()
            drained = ended.code == DRAINED_EXIT_CODE
            member.coming_back = self.comes_back(member.name) or member.coming_back
            if drained and not member.coming_back:
                self.report(f"{member.name} is drained and has left")
                self.members.remove(member)
                self.write_record()
                return
            lived = self.clock() - member.started_at
            member.failures = 0 if drained or lived > STABLE_AFTER_SECONDS else member.failures + 1
            delay = RESTART_DELAYS_SECONDS[min(member.failures, len(RESTART_DELAYS_SECONDS) - 1)]
            how = "is drained" if drained else f"ended ({ended})"
            self.report(f"{member.name} {how}; starting it again in {delay:.0f} s")
            await self.pause(delay)
            await self.start(member)
            member.coming_back = False
            self.write_record()

    async def _keep_record(self) -> None:
        while True:
            await self.pause(RECORD_RETRY_SECONDS)
            if not self._recorded:
                self.write_record()
