"""The calls of a driver that wait for its JobMaster, in the order in which they are to arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sluice.runtime.gateways import JobMasterGateway
from sluice.runtime.rpc import MailboxFull
from sluice.runtime.spark.driver.reported_state import Call

MAX_QUEUED_CALLS = 10_000
"""Most calls that wait for the JobMaster; more mean that it has been away for too long."""

BUSY_CALLS = 64
"""So many waiting calls are enough: a JVM is not read until some have left. Each may be as long as a line of it."""

RETRY_SECONDS = 0.5

_T = TypeVar("_T")


@dataclass(slots=True)
class _Queued:
    call: Call
    done: asyncio.Future[None]
    shows: str = ""
    """What it shows the state of: the next one about the same makes it superfluous."""


class CallQueue:
    """Calls that wait; ``overflowed`` is told why when they are too many."""

    def __init__(self, overflowed: Callable[[str], None]) -> None:
        self._overflowed = overflowed
        self._queue: deque[_Queued] = deque()
        self._waiting = asyncio.Event()
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    async def room(self, lost: asyncio.Future[Any]) -> None:
        """Wait while :data:`BUSY_CALLS` or more wait, unless the JobMaster is ``lost``."""
        while len(self._queue) >= BUSY_CALLS and not lost.done():
            self._left.clear()
            await self._left.wait()

    def wake(self) -> None:
        """Let those look again who wait for room."""
        self._left.set()

    def put(self, call: Call, *, shows: str = "") -> asyncio.Future[None]:
        """Queue a call; the future is done when it was answered."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._queue) >= MAX_QUEUED_CALLS:
            self._overflowed(f"{MAX_QUEUED_CALLS} messages wait for the JobMaster")
        else:
            self._queue.append(_Queued(call, done, shows))
            self._waiting.set()
        return done

    def show(self, what: str, call: Call) -> None:
        """Queue ``call`` in place of one that shows the same, unless that is on its way or others came after it."""
        for place in range(len(self._queue) - 1, 0, -1):
            if not self._queue[place].shows:
                break
            if self._queue[place].shows == what:
                del self._queue[place]
                break
        self.put(call, shows=what)

    def forget_shown(self) -> None:
        """What waits of what is repeated at its latest must not come after it."""
        self._queue = deque(each for each in self._queue if not each.shows)
        self._left.set()

    async def deliver(self, jobmaster: JobMasterGateway) -> None:
        """Make the calls, one after the other, until cancelled; one that fails stays the first."""
        while True:
            while self._queue:
                queued = self._queue[0]
                await accepted(lambda call=queued.call: call(jobmaster))  # type: ignore[misc]  # default argument
                self._queue.remove(queued)
                self._left.set()
                if not queued.done.done():
                    queued.done.set_result(None)
            self._waiting.clear()
            await self._waiting.wait()


async def accepted(call: Callable[[], Awaitable[_T]]) -> _T:
    """Call again while the other side is too busy to take it."""
    while True:
        try:
            return await call()
        except MailboxFull:
            await asyncio.sleep(RETRY_SECONDS)
