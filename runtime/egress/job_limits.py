"""How many connections out of its boxes a job may have beside one process, and how many new ones in a second.

One job must not use up what is there for all: places in the gateway's proxy, ports of the machine, rows.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

BURST_SECONDS = 5
"""So many seconds' worth of new connections at once, after a pause."""
MAX_JOBS = 10_000
"""That are remembered; those that were quiet for longest are forgotten first."""
TOO_MANY, TOO_FAST = "too_many_connections", "too_many_a_second"


class JobLimits:
    """For one thread.

    Args:
        count: open connections of a job.
        most: of them.
        per_second: new ones.
        clock: seconds that never go back.
    """

    def __init__(
        self, count: Callable[[str], int], *, most: int, per_second: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._most = most
        self._per_second = per_second
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def objection(self, job_id: str) -> str:
        """Why the job may not have another connection now; empty: it may, and this one counts."""
        if self._count(job_id) >= self._most:
            return TOO_MANY
        burst, now = float(BURST_SECONDS * self._per_second), self._clock()
        left, at = self._left.pop(job_id, (burst, now))
        left = min(burst, left + (now - at) * self._per_second)
        self._left[job_id] = max(left - 1, 0.0) if left >= 1 else left, now
        while len(self._left) > MAX_JOBS:
            self._left.popitem(last=False)
        return "" if left >= 1 else TOO_FAST
