"""Backoff after failures of one kind of warm process. Decisions only; the caller passes the time."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 10.0, 600.0
"""Shortest and longest pause after a process could not be started; the pause doubles each time."""
MAX_UNUSABLE = 3
"""After this many processes in a row could not be used for their job, no new ones are started for a while."""
FIRST_REST_SECONDS, LAST_REST_SECONDS = 600.0, 6 * 3600.0
"""Shortest and longest duration of that rest; it doubles each time."""


@dataclass(slots=True)
class Backoff:
    """The consecutive failures of one kind of process."""

    _until: float = 0.0
    _pause: float = FIRST_PAUSE_SECONDS
    _unusable: int = 0
    _rest: float = FIRST_REST_SECONDS

    def allow(self, now: float) -> bool:
        """Whether a process may be started."""
        return now >= self._until

    @property
    def given_up(self) -> bool:
        """Whether the last :data:`MAX_UNUSABLE` processes could not be used."""
        return self._unusable >= MAX_UNUSABLE

    def not_started(self, now: float) -> float:
        """Note a failed start; return the seconds until the next start."""
        seconds = self._pause
        self._until = max(self._until, now + seconds)
        self._pause = min(2 * seconds, LAST_PAUSE_SECONDS)
        return seconds

    def started(self) -> None:
        """Note a successful start."""
        self._pause = FIRST_PAUSE_SECONDS

    def unusable(self, now: float) -> float:
        """Note a process that could not be used for its job; return the seconds of the rest that follows, or 0."""
        self._unusable += 1
        if not self.given_up:
            return 0.0
        seconds = self._rest
        self._until = max(self._until, now + seconds)
        self._rest = min(2 * seconds, LAST_REST_SECONDS)
        return seconds

    def used(self) -> None:
        """Note a process that its job uses."""
        self._unusable = 0
        self._rest = FIRST_REST_SECONDS
