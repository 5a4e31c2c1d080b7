"""Timeouts of many asks with few timers.

An event loop timer per ask would cost more than the rest of the ask. Asks of one method have the same timeout, so they
expire in the order in which they were made: one timer per timeout value is enough, set for the oldest ask.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Expired(Exception):
    """The exception of a future whose timeout is over."""


class Deadlines:
    """Fails futures that are still pending when their timeout is over. Use it on one event loop only."""

    def __init__(self) -> None:
        self._watched: dict[float, dict[asyncio.Future[Any], float]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return sum(len(watched) for watched in self._watched.values())

    def watch(self, future: asyncio.Future[Any], seconds: float) -> None:
        """Fail ``future`` with :class:`Expired` after ``seconds``, unless it is done or forgotten by then."""
        watched = self._watched.get(seconds)
        if watched is None:
            watched = self._watched[seconds] = {}
        loop = future.get_loop()
        watched[future] = deadline = loop.time() + seconds
        if seconds not in self._timers:
            self._timers[seconds] = loop.call_at(deadline, self._look, seconds)

    def forget(self, future: asyncio.Future[Any], seconds: float) -> None:
        """Stop watching ``future``. Call it for each watched future."""
        self._watched[seconds].pop(future, None)

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _look(self, seconds: float) -> None:
        del self._timers[seconds]
        watched = self._watched[seconds]
        expired = []
        for future, deadline in watched.items():
            loop = future.get_loop()
            if deadline > loop.time():
                self._timers[seconds] = loop.call_at(deadline, self._look, seconds)
                break
            expired.append(future)
        for future in expired:
            del watched[future]
            if not future.done():
                future.set_exception(Expired())
