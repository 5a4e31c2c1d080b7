"""Whether and when a failed job is run again: Flink's restart strategies. Decisions only; the clock is a value.

Source: Flink documentation, "Task Failure Recovery", and its ``RestartBackoffTimeStrategy`` classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from sluice.runtime.messages import Message
from sluice.runtime.restart_config import RestartConfig, RestartStrategy

MAX_TIMES_KEPT = 1000
"""Latest failures whose instants are handed from leader to leader."""


class RestartMemory(Message, frozen=True):
    """What a strategy remembers of earlier failures, for the next leader; each strategy uses what it needs of it."""

    failures: int = 0
    resumed_at: float = 0.0
    times: tuple[float, ...] = ()


NO_MEMORY = RestartMemory()


class Restarts(Protocol):
    """Told of each failure of one job; remembers what it needs of earlier ones."""

    @property
    def memory(self) -> RestartMemory:
        """What an equal strategy goes on with."""
        ...

    def failed(self, now: float) -> float | None:
        """The job has failed at ``now`` (seconds): wait how many seconds before the next attempt; None: give up."""
        ...


class NoRestart:
    """The first failure is the last."""

    @property
    def memory(self) -> RestartMemory:
        """See :class:`Restarts`."""
        return RestartMemory()

    def failed(self, now: float) -> float | None:  # noqa: ARG002  # that of the protocol
        """See :class:`Restarts`."""
        return None


class FixedDelay:
    """So many restarts, each after the same delay."""

    def __init__(self, attempts: int, delay: float, memory: RestartMemory = NO_MEMORY) -> None:
        self._attempts = attempts
        self._delay = delay
        self._failures = memory.failures

    @property
    def memory(self) -> RestartMemory:
        """See :class:`Restarts`."""
        return RestartMemory(failures=self._failures)

    def failed(self, now: float) -> float | None:  # noqa: ARG002  # that of the protocol
        """See :class:`Restarts`."""
        self._failures += 1
        return self._delay if self._failures <= self._attempts else None


class ExponentialDelay:
    """Longer and longer delays, up to a bound; from the beginning after a long time without a failure.

    Args:
        settings: those of ``exponential-delay``.
        chance: a random number from -1 to 1, for the jitter.
        memory: of the leader before.
    """

    def __init__(self, settings: RestartConfig, chance: Callable[[], float], memory: RestartMemory = NO_MEMORY) -> None:
        self._settings = settings
        self._chance = chance
        self._in_a_row = memory.failures
        self._resumed_at = memory.resumed_at

    @property
    def memory(self) -> RestartMemory:
        """See :class:`Restarts`."""
        return RestartMemory(failures=self._in_a_row, resumed_at=self._resumed_at)

    def failed(self, now: float) -> float | None:
        """See :class:`Restarts`."""
        settings = self._settings
        if self._in_a_row and now - self._resumed_at >= settings.reset_backoff_threshold:
            self._in_a_row = 0
        self._in_a_row += 1
        if 0 < settings.attempts_before_reset_backoff < self._in_a_row:
            return None
        delay = self._backoff()
        delay += delay * settings.jitter_factor * self._chance()
        self._resumed_at = now + delay
        return delay

    def _backoff(self) -> float:
        settings = self._settings
        delay = settings.initial_backoff
        for _ in range(self._in_a_row - 1):
            if delay >= settings.max_backoff or settings.backoff_multiplier <= 1 or delay <= 0:
                break
            delay *= settings.backoff_multiplier
        return min(delay, settings.max_backoff)


class FailureRate:
    """Any number of restarts while there are not too many failures in an interval."""

    def __init__(self, most: int, interval: float, delay: float, memory: RestartMemory = NO_MEMORY) -> None:
        self._interval = interval
        self._delay = delay
        self._most = most
        self._failures: deque[float] = deque(memory.times, maxlen=most + 1)

    @property
    def memory(self) -> RestartMemory:
        """See :class:`Restarts`."""
        return RestartMemory(times=tuple(self._failures)[-MAX_TIMES_KEPT:])

    def failed(self, now: float) -> float | None:
        """See :class:`Restarts`."""
        self._failures.append(now)
        too_many = len(self._failures) > self._most and now - self._failures[0] <= self._interval
        return None if too_many else self._delay


class UntilCheckpointed:
    """The default, as Flink's: no restart of a job without checkpoints, exponential delays for one that has some."""

    def __init__(self, checkpointed: Callable[[], bool], then: Restarts) -> None:
        self._checkpointed = checkpointed
        self._then = then

    @property
    def memory(self) -> RestartMemory:
        """See :class:`Restarts`."""
        return self._then.memory

    def failed(self, now: float) -> float | None:
        """See :class:`Restarts`."""
        return self._then.failed(now) if self._checkpointed() else None


def restarts(
    settings: RestartConfig,
    *,
    checkpointed: Callable[[], bool],
    chance: Callable[[], float],
    memory: RestartMemory = NO_MEMORY,
) -> Restarts:
    """The strategy that ``settings`` describe, of one job.

    Args:
        checkpointed: whether the job has a completed checkpoint by now.
        chance: a random number from -1 to 1.
        memory: what it remembered under the leader before.
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
            return UntilCheckpointed(checkpointed, ExponentialDelay(settings, chance, memory))
