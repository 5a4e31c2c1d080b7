"""The lease of a driver: how long it may go on without word from a JobManager that leads.

It counts from the moment at which the last answered question was *asked*: only then did the JobManager surely lead. A
new leader starts the job again when every lease of its predecessor must be over, unless the driver has registered at
it before (ADR 103).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sluice.runtime.ha import NotReconciled
from sluice.runtime.rpc import MailboxFull, RpcTimeout

_T = TypeVar("_T")

RENEWALS_PER_LEASE = 5
"""How often a lease is renewed within its length."""
LEAST_ANSWER_SECONDS = 1.0
"""An answer is waited for at least as long, and otherwise until the next renewal is due."""


async def _never() -> bool:
    return False


class DriverLease:
    """The lease of one driver, renewed by asking the JobManager.

    Args:
        seconds: its length; 0: no other JobManager could lead, and it is never over.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._renewed_at = clock()

    @property
    def left(self) -> float:
        """Seconds that are left of it."""
        return self._renewed_at + self._seconds - self._clock() if self._seconds > 0 else float("inf")

    async def ask(self, question: Callable[[], Awaitable[_T]]) -> _T:
        """Ask once; an answer renews the lease, and so does :class:`NotReconciled`."""
        asked_at = self._clock()
        try:
            answer = await question()
        except NotReconciled:
            self._renewed_at = max(self._renewed_at, asked_at)
            raise
        self._renewed_at = max(self._renewed_at, asked_at)
        return answer

    async def keep(
        self, question: Callable[[], Awaitable[None]], superseded: Callable[[], Awaitable[bool]] = _never
    ) -> None:
        """Ask again and again; ends with an error that is an answer, or when there is none in time and another leads.

        That no answer comes is otherwise for :meth:`over`.
        """
        pause = self._seconds / RENEWALS_PER_LEASE
        while self._seconds > 0:
            try:
                # Not wait_for(): until Python 3.12 it drops a cancellation that comes together with the answer.
                async with asyncio.timeout(max(pause, LEAST_ANSWER_SECONDS)):
                    await self.ask(question)
            except MailboxFull:
                pass
            except (RpcTimeout, TimeoutError):
                if await superseded():
                    return
            await asyncio.sleep(pause)
        await asyncio.Event().wait()

    async def over(self) -> None:
        """Return when it is over."""
        if self._seconds <= 0:
            await asyncio.Event().wait()
        while True:
            left = self.left
            if left <= 0:
                return
            await asyncio.sleep(left)
