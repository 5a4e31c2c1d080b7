"""Decides which processes count as dead: those not heard from for too long, or with too many failed calls in a row.

No I/O; the clock is injected. The limits correspond to Flink's ``heartbeat.timeout`` and
``heartbeat.rpc-failure-threshold``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

RPC_FAILURE_THRESHOLD = 2
"""Number of consecutive calls that fail to reach a target before it counts as dead."""
MOST_STALLS = 3
"""Number of stalls in a row that are tolerated: a process that is always slow must also give up dead peers."""

_T = TypeVar("_T", bound=Hashable)


@dataclass(slots=True)
class _Signs:
    last_heard: float
    failures: int = 0


def stall_limit(period: float, timeout: float) -> float:
    """Return ``stalled_after`` of a monitor that is asked every ``period`` seconds."""
    return 2 * period + timeout / 4


class HeartbeatMonitor(Generic[_T]):
    """Watches targets. :meth:`beat` also starts watching a new target.

    Args:
        timeout: time without a sign of life after which a target is dead, in seconds.
        failure_threshold: number of consecutive failed calls after which a target is dead.
        stalled_after: time between two calls of :meth:`expired` after which this process counts as having stalled, in
            seconds. Signs of life may then be unread, so no target is dead for its silence until the next call.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        timeout: float,
        *,
        failure_threshold: int = RPC_FAILURE_THRESHOLD,
        stalled_after: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout = timeout
        self._failure_threshold = failure_threshold
        self._stalled_after = stalled_after
        self._checked_at = clock()
        self._stalls = 0
        self._clock = clock
        self._targets: dict[_T, _Signs] = {}

    def beat(self, target: _T) -> None:
        """Record a sign of life of ``target`` now."""
        self._targets[target] = _Signs(self._clock())

    def call_failed(self, target: _T) -> None:
        """Record that a call did not reach ``target``; several in a row make it expire at once."""
        if target in self._targets:
            self._targets[target].failures += 1

    def forget(self, target: _T) -> None:
        """Stop watching ``target``."""
        self._targets.pop(target, None)

    def expired(self, now: float | None = None) -> list[_T]:
        """Return the targets that are dead now, and stop watching them."""
        moment = self._clock() if now is None else now
        late, self._checked_at = moment - self._checked_at > self._stalled_after, moment
        self._stalls = self._stalls + 1 if late else 0
        timeout = math.inf if 0 < self._stalls <= MOST_STALLS else self._timeout
        dead = [
            target
            for target, signs in self._targets.items()
            if moment - signs.last_heard > timeout or signs.failures >= self._failure_threshold
        ]
        for target in dead:
            del self._targets[target]
        return dead
