"""Guessing is slow: after a few failures a key has to wait, longer each time. Times are passed in; no I/O."""

from __future__ import annotations

from collections import OrderedDict

FREE_FAILURES = 5
MAX_WAIT_SECONDS = 300.0
FORGET_SECONDS = 900.0
MAX_KEYS = 10_000


class Throttle:
    """Failures by key (a name and an address, say), the oldest forgotten when there are too many."""

    def __init__(self, free: int = FREE_FAILURES) -> None:
        self._free = free
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, key: str, now: float) -> float:
        """Seconds until the next try counts; 0: it may be now."""
        count, last = self._failures.get(key, (0, 0.0))
        if count < self._free or now - last > FORGET_SECONDS:
            return 0.0
        return max(0.0, last + min(MAX_WAIT_SECONDS, 2.0 ** (count - self._free)) - now)

    def failed(self, key: str, now: float) -> None:
        """A try has failed."""
        count, last = self._failures.pop(key, (0, now))
        self._failures[key] = (1 if now - last > FORGET_SECONDS else count + 1, now)
        while len(self._failures) > MAX_KEYS:
            self._failures.popitem(last=False)

    def succeeded(self, key: str) -> None:
        """A try was right: the slate is clean."""
        self._failures.pop(key, None)
