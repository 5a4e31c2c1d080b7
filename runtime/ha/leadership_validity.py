"""How long a leader may still take it that it leads. No I/O; the clock is passed in."""

from __future__ import annotations

from collections.abc import Callable

SAFE_SHARE = 0.8
"""Of the session's time-out: how long a leader takes it that it leads after sending its last answered request."""


class LeadershipValidity:
    """A leader goes by the moment at which its last answered request was *sent*.

    The service that elects has heard of it at that moment or later, so it ends the session no earlier than one time-out
    after it; the leader stops before.

    Args:
        timeout: of the session as it was granted, in seconds; 0 while that is not known.
        confirmed_at: when the request was sent whose answer proved the leadership.
        clock: monotonic seconds.
    """

    def __init__(self, timeout: Callable[[], float], confirmed_at: float, clock: Callable[[], float]) -> None:
        self._timeout = timeout
        self._confirmed_at = confirmed_at
        self._clock = clock

    def confirm(self, asked_at: float) -> None:
        """A request that was sent at ``asked_at`` was answered as to the leader."""
        self._confirmed_at = max(self._confirmed_at, asked_at)

    @property
    def remaining(self) -> float:
        """Seconds for which the leadership is certain; not positive: it is not any more."""
        return self._confirmed_at + SAFE_SHARE * self._timeout() - self._clock()
