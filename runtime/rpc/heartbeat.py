"""Decides which processes count as dead: those not heard from for too long, or with too many failed calls in a row.

No I/O; the clock is injected. The limits correspond to Flink's ``heartbeat.timeout`` and
``heartbeat.rpc-failure-threshold``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

RPC_FAILURE_THRESHOLD = 2
"""Number of consecutive calls that fail to reach a target before it counts as dead."""

_T = TypeVar("_T", bound=Hashable)


@dataclass(slots=True)
class _Signs:
    last_heard: float
    failures: int = 0


class HeartbeatMonitor(Generic[_T]):
    """Watches targets. :meth:`beat` also starts watching a new target."""

    def __init__(
        self,
        timeout: float,
        *,
        failure_threshold: int = RPC_FAILURE_THRESHOLD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout = timeout
        self._failure_threshold = failure_threshold
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
        dead = [
            target
            for target, signs in self._targets.items()
            if moment - signs.last_heard > self._timeout or signs.failures >= self._failure_threshold
        ]
        for target in dead:
            del self._targets[target]
        return dead
