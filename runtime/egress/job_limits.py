"""Limits for the outbound connections of one job on one TaskManager: open connections, and new ones per second.

One job must not exhaust what all jobs share: connections of the gateway's proxy, ports of the machine, journal rows.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

BURST_SECONDS = 5
"""After a pause, a job may open as many connections at once as the rate allows in this many seconds."""
MAX_JOBS = 10_000
"""Number of jobs with remembered state. The least recently active jobs are forgotten first."""
TOO_MANY, TOO_FAST = "too_many_connections", "too_many_a_second"


class JobLimits:
    """A token bucket per job, plus a limit for open connections. Not thread-safe.

    Args:
        count: returns the number of open connections of a job.
        max_open: maximum number of open connections of a job.
        per_second: maximum rate of new connections of a job.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self,
        count: Callable[[str], int],
        *,
        max_open: int,
        per_second: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = count
        self._max_open = max_open
        self._per_second = per_second
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def objection(self, job_id: str) -> str:
        """Why the job may not open another connection now; empty if it may, and then the connection is counted."""
        if self._count(job_id) >= self._max_open:
            return TOO_MANY
        burst, now = float(BURST_SECONDS * self._per_second), self._clock()
        left, at = self._left.pop(job_id, (burst, now))
        left = min(burst, left + (now - at) * self._per_second)
        self._left[job_id] = max(left - 1, 0.0) if left >= 1 else left, now
        while len(self._left) > MAX_JOBS:
            self._left.popitem(last=False)
        return "" if left >= 1 else TOO_FAST
