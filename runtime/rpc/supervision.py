"""What happens when an endpoint fails: decisions. :mod:`sluice.runtime.rpc.guardian` carries them out.

A failure is an error that no caller waits for: of a timer, of a posted function, of work that was handed off, of a
tell. Errors of asks go back to their callers and are no failure.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


class Directive(enum.Enum):
    """What to do with an endpoint that failed."""

    RESUME = "resume"
    """Nothing: its state is sound all the same."""
    RESTART = "restart"
    """Stop it, with its children, and start a new one of the same name after a pause."""
    STOP = "stop"
    """Stop it for good."""
    ESCALATE = "escalate"
    """Its parent has failed."""


@dataclass(frozen=True, slots=True)
class Terminated:
    """Told to watchers: nobody of that name will handle a message any more. ``error`` is None when it was stopped."""

    name: str
    error: BaseException | None = None


def always(directive: Directive) -> Callable[[BaseException], Directive]:
    """Decide the same whatever the error is."""
    return lambda _: directive


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a parent treats one child.

    Attributes:
        decide: what to do about an error.
        first_pause: seconds before the first restart; each further one in a row waits ``pause_factor`` times longer.
        longest_pause: in seconds.
        max_restarts: so many ``within`` seconds; one more escalates.
        within: in seconds; after as long without a failure the pause is the first again.
    """

    decide: Callable[[BaseException], Directive] = field(default=always(Directive.RESTART))
    first_pause: float = 0.1
    pause_factor: float = 2.0
    longest_pause: float = 30.0
    max_restarts: int = 5
    within: float = 60.0


RESUME = Strategy(decide=always(Directive.RESUME))
"""Log it and go on: how endpoints are treated that are started without a strategy."""


class Restarts:
    """The restarts of one child so far."""

    def __init__(self, strategy: Strategy, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._strategy = strategy
        self._clock = clock
        self._recent: deque[float] = deque()
        self._in_a_row = 0
        self.total = 0

    def next_pause(self) -> float | None:
        """Seconds to wait before one more restart; None when there were too many."""
        strategy, now = self._strategy, self._clock()
        if self._recent and now - self._recent[-1] > strategy.within:
            self._in_a_row = 0
        while self._recent and now - self._recent[0] > strategy.within:
            self._recent.popleft()
        if len(self._recent) >= strategy.max_restarts:
            return None
        self._recent.append(now)
        pause = min(strategy.longest_pause, strategy.first_pause * strategy.pause_factor**self._in_a_row)
        self._in_a_row += 1
        self.total += 1
        return pause
