"""The guard of one box: puts it into its control group if available, and watches what the kernel does not limit.

Usage::

    guard = Guard(limits, Subject("the executor"), directories=[work], logs=[stdout, stderr])
    child = await ChildProcess.start(…, guard=guard)
    await child.wait()
    child.excess  # why it was killed, if it exceeded a limit
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from sluice.runtime.sandbox.bounds.cgroups import BoxGroup, ControlGroups, Events
from sluice.runtime.sandbox.bounds.directories import devices_of, measure_directories
from sluice.runtime.sandbox.bounds.excess import MIB, Subject, Usage, excess
from sluice.runtime.sandbox.bounds.processes import SharedTable, has_swap, memory_bytes, unlinked_bytes
from sluice.runtime.sandbox.limits import Limits

ROUND_SECONDS = 0.5
"""Minimum interval between measurements of processes, memory and logs."""
DISK_ROUND_SECONDS = 2.0
"""Minimum interval between walks through the directories."""
SHARE_OF_TIME = 0.05
"""Maximum fraction of time spent on measuring."""
UNBOUNDED_FILES = 1_000_000
"""Maximum number of files in a walk when the number of files is not limited."""

_LOG = logging.getLogger(__name__)
_TABLE = SharedTable()
_QUICK = ThreadPoolExecutor(1, thread_name_prefix="bounds")
_WALKS = ThreadPoolExecutor(2, thread_name_prefix="bounds-walk")
"""Separate threads, so that slow walks through the directories of jobs do not block other work."""


async def first_excess(
    measure: Callable[[], Awaitable[Usage]],
    judge: Callable[[Usage], str],
    *,
    pause: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Measure repeatedly until ``judge`` reports an excess; return its message.

    Each round starts with a wait of at least ``pause`` seconds, long enough to keep the time spent on measuring below
    :data:`SHARE_OF_TIME`. So a process that ends at once is never measured.
    """
    wait = pause
    while True:
        await sleep(wait)
        began = clock()
        said = judge(await measure())
        if said:
            return said
        wait = max(pause, (clock() - began) / SHARE_OF_TIME)


def _make_group(groups: ControlGroups | None, limits: Limits) -> BoxGroup | None:
    """Create the group of a box; None: no group can be created, and the box is watched instead."""
    try:
        return groups.make(limits) if groups is not None else None
    except OSError as error:
        _LOG.warning("cannot create a control group for a box, which is watched instead: %s", error)
        return None


class Guard:
    """Enforces the limits of one box.

    Args:
        limits: the limits of the box.
        subject: how messages name the box.
        directories: directories that the box can write to but cannot replace.
        logs: the log files that the box writes.
        groups: creates control groups; None: they are not available, so memory and processes are watched too.
    """

    def __init__(
        self,
        limits: Limits,
        subject: Subject,
        *,
        directories: Sequence[Path] = (),
        logs: Sequence[IO[bytes]] = (),
        groups: ControlGroups | None = None,
    ) -> None:
        self.limits = limits
        self.subject = subject
        self.reason = ""
        """Why the box must be killed; empty: no excess is known."""
        self._directories = tuple(directories)
        self._devices = devices_of(directories)
        self._logs = [os.dup(log.fileno()) for log in logs]
        self._swaps = has_swap()
        self._unlinked_memory = 0
        self._group = _make_group(groups, limits)

    def lower_cpu_share(self) -> None:
        """Let the box use only idle processor time until :meth:`restore_cpu_share`.

        Does nothing without control groups.

        Raises:
            OSError: the box's control group is gone.
        """
        if self._group is not None:
            self._group.lower_cpu_share()

    def restore_cpu_share(self) -> None:
        """Restore the box's share of processor time.

        Raises:
            OSError: the box's control group is gone.
        """
        if self._group is not None:
            self._group.restore_cpu_share()

    def watch(self, directories: Sequence[Path]) -> None:
        """Also measure ``directories`` from now on."""
        self._devices = devices_of((*self._directories, *directories))
        self._directories = (*self._directories, *directories)

    def enter(self) -> None:
        """Move the calling process into the control group. Runs between fork and exec: only writes to descriptors."""
        if self._group is not None:
            self._group.enter()

    async def exceeded(self, pid: int) -> str:
        """Wait until the box, whose first process is ``pid``, exceeds a limit; return :attr:`reason`."""
        loop = asyncio.get_running_loop()

        def repeat(threads: ThreadPoolExecutor, measure: Callable[[int], Usage], pause: float) -> asyncio.Future[str]:
            measured = first_excess(lambda: loop.run_in_executor(threads, measure, pid), self._judge, pause=pause)
            return asyncio.ensure_future(measured)

        rounds = (repeat(_QUICK, self.measure, ROUND_SECONDS), repeat(_WALKS, self.measure_files, DISK_ROUND_SECONDS))
        try:
            done, _ = await asyncio.wait(rounds, return_when=asyncio.FIRST_COMPLETED)
            self.reason = self.reason or self._reason_of(next(iter(done)))
            return self.reason
        finally:
            for each in rounds:
                each.cancel()

    def _reason_of(self, done: asyncio.Future[str]) -> str:
        error = done.exception()
        if error is None:
            return done.result()
        _LOG.error("cannot measure %s", self.subject.name, exc_info=error)
        return f"cannot measure {self.subject.name} any more, so it was killed: {error}"

    def measure(self, pid: int) -> Usage:
        """Measure processes, memory and logs."""
        if self._group is not None:
            return self._events(log_bytes=self._log_bytes())
        processes = _TABLE.read().below(pid)
        return Usage(
            memory_bytes=memory_bytes(processes, self.limits.memory_mb * MIB, swaps=self._swaps)
            + self._unlinked_memory,
            tasks=sum(each.tasks for each in processes),
            log_bytes=self._log_bytes(),
        )

    def measure_files(self, pid: int) -> Usage:
        """Measure the directories, and deleted files that the processes still have open."""
        found = measure_directories(self._directories, max_entries=self.limits.files or UNBOUNDED_FILES)
        on_disk, self._unlinked_memory = unlinked_bytes(self._pids(pid), self._devices)
        return Usage(disk_bytes=found.bytes + on_disk, entries=found.entries, hidden=found.hidden)

    def _pids(self, pid: int) -> list[int]:
        if self._group is not None:
            return self._group.processes()
        return [each.pid for each in _TABLE.read().below(pid)]

    def _events(self, *, log_bytes: int = 0) -> Usage:
        events = self._group.events() if self._group is not None else Events()
        return Usage(memory_kills=events.memory_kills, tasks_refused=events.tasks_refused, log_bytes=log_bytes)

    def _log_bytes(self) -> int:
        return max((os.fstat(log).st_size for log in self._logs), default=0)

    def _judge(self, usage: Usage) -> str:
        return excess(usage, self.limits, self.subject)

    def kill(self) -> None:
        """Send SIGKILL to every process in the control group, if there is one."""
        if self._group is not None:
            self._group.kill()

    def excess_so_far(self) -> str:
        """:attr:`reason`, updated from the kernel's counters. Does not measure anything itself."""
        self.reason = self.reason or self._judge(self._events())
        return self.reason

    def close(self) -> None:
        """Kill the remaining processes of the box, remove its group and close its logs. Takes a moment."""
        if self._group is not None:
            self._group.remove()
        while self._logs:
            with contextlib.suppress(OSError):
                os.close(self._logs.pop())
