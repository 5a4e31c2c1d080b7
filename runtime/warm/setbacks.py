"""How long one kind of process is left alone after it has failed. Decisions only; the time is passed in."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 10.0, 600.0
"""After a process that could not be started."""
MAX_IN_VAIN = 3
"""So many in a row could not be used when their job had come: then none waits for a while."""
FIRST_REST_SECONDS, LAST_REST_SECONDS = 600.0, 6 * 3600.0
"""How long none waits then; each time twice as long."""


@dataclass(slots=True)
class Setbacks:
    """What has failed in a row."""

    _until: float = 0.0
    _pause: float = FIRST_PAUSE_SECONDS
    _in_vain: int = 0
    _rest: float = FIRST_REST_SECONDS

    def allow(self, now: float) -> bool:
        """Whether one may be started."""
        return now >= self._until

    @property
    def given_up(self) -> bool:
        """Whether those that wait could not be used the last times."""
        return self._in_vain >= MAX_IN_VAIN

    def not_started(self, now: float) -> float:
        """One could not be started; for how many seconds none is."""
        seconds = self._pause
        self._until = max(self._until, now + seconds)
        self._pause = min(2 * seconds, LAST_PAUSE_SECONDS)
        return seconds

    def started(self) -> None:
        """One waits."""
        self._pause = FIRST_PAUSE_SECONDS

    def in_vain(self, now: float) -> float:
        """One could not be used when its job had come; for how many seconds none waits now, 0: they go on."""
        self._in_vain += 1
        if not self.given_up:
            return 0.0
        seconds = self._rest
        self._until = max(self._until, now + seconds)
        self._rest = min(2 * seconds, LAST_REST_SECONDS)
        return seconds

    def used(self) -> None:
        """One has become what its job wanted."""
        self._in_vain = 0
        self._rest = FIRST_REST_SECONDS
