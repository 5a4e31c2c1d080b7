"""The lease of a driver: how long it may continue without an answer from a leading JobManager.

It starts when the last answered request was *sent*, because that is the latest time at which the JobManager certainly
led. A new leader restarts the job once every lease of its predecessor must have expired, unless the driver has
registered at the new leader before (ADR 103).
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
"""How many times a lease is renewed within its duration."""
LEAST_ANSWER_SECONDS = 1.0
"""Minimum timeout for an answer, which is otherwise the interval of renewals."""


async def _never() -> bool:
    return False


class DriverLease:
    """The lease of one driver, renewed by requests to the JobManager.

    Args:
        seconds: its duration; 0: it never expires, because no other JobManager could lead.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._renewed_at = clock()

    @property
    def left(self) -> float:
        """The remaining seconds."""
        return self._renewed_at + self._seconds - self._clock() if self._seconds > 0 else float("inf")

    async def ask(self, question: Callable[[], Awaitable[_T]]) -> _T:
        """Send a request. An answer renews the lease, and so does the error :class:`NotReconciled`."""
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
        """Renew the lease repeatedly.

        Returns if a request times out and another JobManager leads; other timeouts are left to :meth:`over`. Raises any
        other error of a request except a full mailbox.
        """
        pause = self._seconds / RENEWALS_PER_LEASE
        while self._seconds > 0:
            try:
                # Not wait_for(): before Python 3.12 it drops a cancellation that arrives together with the answer.
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
        """Return when the lease has expired."""
        if self._seconds <= 0:
            await asyncio.Event().wait()
        while True:
            left = self.left
            if left <= 0:
                return
            await asyncio.sleep(left)
