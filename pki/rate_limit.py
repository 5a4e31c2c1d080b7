"""Rate limits: a token bucket per requester, with a burst and a rate. The clock is passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MAX_REQUESTERS = 4096
"""Most buckets; the least recently used one is forgotten first."""


class RateLimiter:
    """``burst`` requests at once, refilled at ``per_second``; ``clock`` gives seconds that never go back."""

    def __init__(self, *, burst: float, per_second: float, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, requester: str) -> float:
        """Count a request; returns 0 if it is allowed, else the seconds to wait (then it does not count)."""
        now = self._clock()
        level, since = self._buckets.pop(requester, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._per_second)
        admitted = level >= 1
        self._buckets[requester] = (level - 1 if admitted else level, now)
        if len(self._buckets) > MAX_REQUESTERS:
            self._buckets.popitem(last=False)
        return 0.0 if admitted else (1 - level) / self._per_second
