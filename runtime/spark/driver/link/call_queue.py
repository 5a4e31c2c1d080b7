"""The queue of a driver's calls to its JobMaster, in the order of delivery."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sluice.runtime.gateways import JobMasterGateway
from sluice.runtime.rpc import MailboxFull
from sluice.runtime.spark.driver.link.reported_state import Call

MAX_QUEUED_CALLS = 10_000
"""Maximum number of queued calls. More mean that the JobMaster has been away for too long."""

BUSY_CALLS = 64
"""With this many queued calls, the agent stops reading from the JVM, because each call may be as large as a message."""

RETRY_SECONDS = 0.5

_T = TypeVar("_T")


@dataclass(slots=True)
class _Queued:
    call: Call
    done: asyncio.Future[None]
    state: str = ""
    """The name of the state that this call reports, if any. A newer call for the same state replaces this one."""


class CallQueue:
    """A bounded queue of calls; ``overflowed`` is called with the reason if there are too many."""

    def __init__(self, overflowed: Callable[[str], None]) -> None:
        self._overflowed = overflowed
        self._queue: deque[_Queued] = deque()
        self._waiting = asyncio.Event()
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    async def room(self, lost: asyncio.Future[Any]) -> None:
        """Wait until fewer than :data:`BUSY_CALLS` are queued, or the JobMaster is ``lost``."""
        while len(self._queue) >= BUSY_CALLS and not lost.done():
            self._left.clear()
            await self._left.wait()

    def wake(self) -> None:
        """Wake the callers of :meth:`room`."""
        self._left.set()

    def put(self, call: Call, *, state: str = "") -> asyncio.Future[None]:
        """Queue a call; the future is done when the call was answered."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._queue) >= MAX_QUEUED_CALLS:
            self._overflowed(f"{MAX_QUEUED_CALLS} messages wait for the JobMaster")
        else:
            self._queue.append(_Queued(call, done, state))
            self._waiting.set()
        return done

    def put_state(self, what: str, call: Call) -> None:
        """Queue a report of the state ``what``, replacing an older report of it.

        A report is not replaced if it is being delivered, or if a call that reports no state was queued after it.
        """
        for place in range(len(self._queue) - 1, 0, -1):
            if not self._queue[place].state:
                break
            if self._queue[place].state == what:
                del self._queue[place]
                break
        self.put(call, state=what)

    def drop_states(self) -> None:
        """Drop queued reports of states, because their latest values are reported again."""
        self._queue = deque(each for each in self._queue if not each.state)
        self._left.set()

    async def deliver(self, jobmaster: JobMasterGateway) -> None:
        """Make the calls one after another until cancelled. A call that fails stays at the head of the queue."""
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
    """Repeat a call while the mailbox of the other side is full."""
    while True:
        try:
            return await call()
        except MailboxFull:
            await asyncio.sleep(RETRY_SECONDS)
