"""Whether and when a failed job is run again: Flink's restart strategies. Decisions only; the clock is a value.

Source: Flink documentation, "Task Failure Recovery", and its ``RestartBackoffTimeStrategy`` classes.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable

from sluice.runtime.messages import Message
from sluice.runtime.restart_config import RestartConfig, RestartStrategy

MAX_TIMES_KEPT = 1000
"""Most failures whose times are passed to the next leader."""


class RestartMemory(Message, frozen=True):
    """What a strategy remembers of earlier failures, for the next leader; each strategy uses what it needs of it."""

    failures: int = 0
    resumed_at: float = 0.0
    times: tuple[float, ...] = ()


NO_MEMORY = RestartMemory()


class RestartBackoff(abc.ABC):
    """Decides after each failure of one job whether and when there is to be another attempt.

    Attributes:
        memory: what it remembers of earlier failures; the next leader's strategy continues with it.
    """

    def __init__(self, memory: RestartMemory = NO_MEMORY) -> None:
        self.memory = memory

    @abc.abstractmethod
    def failed(self, now: float) -> float | None:
        """The job has failed at ``now``; returns how long to wait before the next attempt, None to give up.

        Times are seconds.
        """


class NoRestart(RestartBackoff):
    """The first failure is the last."""

    def failed(self, now: float) -> float | None:  # noqa: ARG002  # of the base class
        """Give up."""
        return None


class FixedDelay(RestartBackoff):
    """A number of restarts, each after the same delay."""

    def __init__(self, attempts: int, delay: float, memory: RestartMemory = NO_MEMORY) -> None:
        super().__init__(memory)
        self._attempts = attempts
        self._delay = delay

    def failed(self, now: float) -> float | None:  # noqa: ARG002  # of the base class
        """The delay; None when no attempts are left."""
        self.memory = RestartMemory(failures=self.memory.failures + 1)
        return self._delay if self.memory.failures <= self._attempts else None


class ExponentialDelay(RestartBackoff):
    """Delays that grow up to a bound, and start over after a long time without a failure.

    Args:
        settings: those of ``exponential-delay``.
        chance: random numbers from -1 to 1, for the jitter.
        memory: what an earlier leader had counted.
    """

    def __init__(self, settings: RestartConfig, chance: Callable[[], float], memory: RestartMemory = NO_MEMORY) -> None:
        super().__init__(memory)
        self._settings = settings
        self._chance = chance

    def failed(self, now: float) -> float | None:
        """The next delay, with jitter; None after too many failures in a row."""
        settings, failures = self._settings, self.memory.failures
        if failures and now - self.memory.resumed_at >= settings.reset_backoff_threshold:
            failures = 0
        failures += 1
        self.memory = RestartMemory(failures=failures, resumed_at=self.memory.resumed_at)
        if 0 < settings.attempts_before_reset_backoff < failures:
            return None
        delay = self._backoff(failures)
        delay += delay * settings.jitter_factor * self._chance()
        self.memory = RestartMemory(failures=failures, resumed_at=now + delay)
        return delay

    def _backoff(self, failures: int) -> float:
        settings = self._settings
        delay = settings.initial_backoff
        for _ in range(failures - 1):
            if delay >= settings.max_backoff or settings.backoff_multiplier <= 1 or delay <= 0:
                break
            delay *= settings.backoff_multiplier
        return min(delay, settings.max_backoff)


class ExponentialDelayOnceCheckpointed(ExponentialDelay):
    """The default, as Flink's: no restart of a job without checkpoints, exponential delays for one that has some."""

    def __init__(
        self,
        settings: RestartConfig,
        chance: Callable[[], float],
        checkpointed: Callable[[], bool],
        memory: RestartMemory = NO_MEMORY,
    ) -> None:
        super().__init__(settings, chance, memory)
        self._checkpointed = checkpointed

    def failed(self, now: float) -> float | None:
        """The next delay; None as long as there is no checkpoint."""
        return super().failed(now) if self._checkpointed() else None


class FailureRate(RestartBackoff):
    """Any number of restarts while there are not too many failures in an interval."""

    def __init__(self, most: int, interval: float, delay: float, memory: RestartMemory = NO_MEMORY) -> None:
        super().__init__(memory)
        self._most = most
        self._interval = interval
        self._delay = delay
        self._failures: deque[float] = deque(memory.times, maxlen=most + 1)

    def failed(self, now: float) -> float | None:
        """The delay; None when the interval has seen too many failures."""
        self._failures.append(now)
        self.memory = RestartMemory(times=tuple(self._failures)[-MAX_TIMES_KEPT:])
        too_many = len(self._failures) > self._most and now - self._failures[0] <= self._interval
        return None if too_many else self._delay


def restart_backoff(
    settings: RestartConfig,
    *,
    checkpointed: Callable[[], bool],
    chance: Callable[[], float],
    memory: RestartMemory = NO_MEMORY,
) -> RestartBackoff:
    """The strategy that ``settings`` describe, of one job.

    Args:
        checkpointed: whether the job has a completed checkpoint by now.
        chance: a random number from -1 to 1.
        memory: what it remembered under the previous leader.
    """
    match settings.strategy:
        case RestartStrategy.NONE:
            return NoRestart()
        case RestartStrategy.FIXED_DELAY:
            return FixedDelay(settings.attempts, settings.delay, memory)
        case RestartStrategy.EXPONENTIAL_DELAY:
            return ExponentialDelay(settings, chance, memory)
        case RestartStrategy.FAILURE_RATE:
            return FailureRate(
                settings.max_failures_per_interval, settings.failure_rate_interval, settings.delay, memory
            )
        case RestartStrategy.DEFAULT:
            return ExponentialDelayOnceCheckpointed(settings, chance, checkpointed, memory)
