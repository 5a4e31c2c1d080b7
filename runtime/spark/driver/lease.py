"""The lease of a driver: how long it may go on without word from a JobManager that leads.

It counts from the moment at which the last answered question was *asked*: only then did the JobManager surely lead. A
new leader on another machine starts the job again when every lease of its predecessor must be over.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from sluice.runtime.rpc import MailboxFull, RpcTimeout

RENEWALS_PER_LEASE = 5
"""How often a lease is renewed within its length."""


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

    async def ask(self, question: Callable[[], Awaitable[None]]) -> None:
        """Ask once; an answer renews the lease."""
        asked_at = self._clock()
        await question()
        self._renewed_at = max(self._renewed_at, asked_at)

    async def keep(self, question: Callable[[], Awaitable[None]]) -> None:
        """Ask again and again; ends only with an error that is an answer. None in time is for :meth:`over`."""
        while self._seconds > 0:
            with contextlib.suppress(MailboxFull, RpcTimeout):
                await self.ask(question)
            await asyncio.sleep(self._seconds / RENEWALS_PER_LEASE)
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
