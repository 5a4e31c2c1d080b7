"""A bound on what is under way: further work waits its turn.

Thousands of requests sent at once would all be answered at last, but the later ones after their time limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ConcurrencyLimit:
    """Starts work in the order of submission, never more than ``limit`` pieces at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._under_way = 0
        self._waiting: deque[Callable[[], bool]] = deque()

    def __len__(self) -> int:
        """Pieces that wait."""
        return len(self._waiting)

    def submit(self, start: Callable[[], bool]) -> None:
        """Call ``start`` now or later; it returns whether there was anything to do. :meth:`done` tells its end."""
        self._waiting.append(start)
        self._advance()

    def done(self) -> None:
        """One piece that was started has ended."""
        self._under_way -= 1
        self._advance()

    def _advance(self) -> None:
        while self._waiting and self._under_way < self._limit:
            if self._waiting.popleft()():
                self._under_way += 1
