"""How long a leader may rely on its last confirmation. No I/O; the clock is injected."""

from __future__ import annotations

from collections.abc import Callable

SAFE_SHARE = 0.8
"""The share of the session timeout for which a leader relies on its last confirmed request."""


class LeadershipValidity:
    """Counts the validity of a leadership from the moment its last answered request was *sent*.

    The election service received that request at that moment or later, so it ends the session no earlier than one
    session timeout after it. The leader stops before then.

    Args:
        timeout: returns the granted session timeout in seconds, or 0 while it is unknown.
        confirmed_at: when the request was sent whose answer proved the leadership.
        clock: returns monotonic seconds.
    """

    def __init__(self, timeout: Callable[[], float], confirmed_at: float, clock: Callable[[], float]) -> None:
        self._timeout = timeout
        self._confirmed_at = confirmed_at
        self._clock = clock

    def confirm(self, asked_at: float) -> None:
        """Note that a request sent at ``asked_at`` was answered and confirmed the leadership."""
        self._confirmed_at = max(self._confirmed_at, asked_at)

    @property
    def remaining(self) -> float:
        """Seconds for which the leadership is still certain; zero or negative once it is not."""
        return self._confirmed_at + SAFE_SHARE * self._timeout() - self._clock()
