"""Whether and when a failed job is restarted: Flink's restart strategies. Decisions only; the time is a parameter.

Source: Flink documentation, "Task Failure Recovery", and its ``RestartBackoffTimeStrategy`` classes.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable

from sluice.runtime.messages import Message
from sluice.runtime.restart_config import RestartConfig, RestartStrategy

MAX_TIMES_KEPT = 1000
"""Most failure times that are passed to the next leader."""


class RestartMemory(Message, frozen=True):
    """The state of a strategy, for the next leader; each strategy uses the fields that it needs."""

    failures: int = 0
    resumed_at: float = 0.0
    times: tuple[float, ...] = ()


NO_MEMORY = RestartMemory()


class RestartBackoff(abc.ABC):
    """Decides after each failure of one job whether and when the next attempt starts.

    Attributes:
        memory: the state after the last failure; the next leader's strategy continues from it.
    """

    def __init__(self, memory: RestartMemory = NO_MEMORY) -> None:
        self.memory = memory

    @abc.abstractmethod
    def failed(self, now: float) -> float | None:
        """Count a failure at ``now``; returns the delay before the next attempt, None to give up.

        Times are in seconds.
        """


class NoRestart(RestartBackoff):
    """No restart: the job fails with its first failure."""

    def failed(self, now: float) -> float | None:  # noqa: ARG002  # of the base class
        """Give up."""
        return None


class FixedDelay(RestartBackoff):
    """A fixed number of restarts, each after the same delay."""

    def __init__(self, attempts: int, delay: float, memory: RestartMemory = NO_MEMORY) -> None:
        super().__init__(memory)
        self._attempts = attempts
        self._delay = delay

    def failed(self, now: float) -> float | None:  # noqa: ARG002  # of the base class
        """The delay; None when no attempts are left."""
        self.memory = RestartMemory(failures=self.memory.failures + 1)
        return self._delay if self.memory.failures <= self._attempts else None


class ExponentialDelay(RestartBackoff):
    """Delays that grow exponentially up to a maximum, and are reset after a long time without a failure.

    Args:
        settings: the settings of ``exponential-delay``.
        chance: returns a random number from -1 to 1, for the jitter.
        memory: the state from an earlier leader.
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
    """The default, as in Flink: no restart without checkpoints, exponential delays with at least one."""

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
    """Any number of restarts, as long as an interval has not too many failures."""

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
    """Make the restart strategy that ``settings`` describe, for one job.

    Args:
        checkpointed: returns whether the job has a completed checkpoint.
        chance: returns a random number from -1 to 1.
        memory: the state from the previous leader.
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
