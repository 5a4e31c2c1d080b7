"""A limit on work in progress: further work waits its turn.

Of thousands of requests sent at once, the later ones would be answered only after their timeouts.
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
        """The number of pieces that wait."""
        return len(self._waiting)

    def submit(self, start: Callable[[], bool]) -> None:
        """Call ``start`` now or later; it returns whether it started anything.

        Call :meth:`done` when that has ended.
        """
        self._waiting.append(start)
        self._advance()

    def done(self) -> None:
        """Note that one started piece has ended, and start the next."""
        self._under_way -= 1
        self._advance()

    def _advance(self) -> None:
        while self._waiting and self._under_way < self._limit:
            if self._waiting.popleft()():
                self._under_way += 1
