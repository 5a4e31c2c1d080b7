"""Restart strategies, with a clock that the tests control."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluice.runtime.jobmanager.restart_strategies import (
    ExponentialDelay,
    FailureRate,
    RestartBackoff,
    restart_backoff,
)
from sluice.runtime.restart_config import (
    RestartConfig,
    RestartStrategy,
    RestartWish,
    effective_restart_config,
)


def of(*, checkpointed: bool = False, **settings: object) -> RestartBackoff:
    """Return the restart strategy for these settings, by default without jitter."""
    config = msgspec.convert({"jitter_factor": 0.0, **settings}, RestartConfig)
    return restart_backoff(config, checkpointed=lambda: checkpointed, chance=lambda: 1.0)


def test_the_strategy_none_gives_up_at_once() -> None:
    assert of(strategy="none", checkpointed=True).failed(0) is None


def test_the_default_strategy_restarts_only_jobs_that_have_a_checkpoint() -> None:
    assert of(checkpointed=False).failed(0) is None
    assert of(checkpointed=True).failed(0) == 1.0


def test_the_default_strategy_sees_the_first_checkpoint_when_it_is_made() -> None:
    done: list[int] = []
    strategy = restart_backoff(RestartConfig(jitter_factor=0), checkpointed=lambda: bool(done), chance=lambda: 0.0)
    assert strategy.failed(0) is None
    done.append(1)
    assert strategy.failed(1) == 1.0


@given(st.integers(0, 20), st.floats(0, 100))
def test_fixed_delay_restarts_exactly_as_often_as_configured(attempts: int, delay: float) -> None:
    strategy = of(strategy="fixed-delay", attempts=attempts, delay=delay)
    assert [strategy.failed(at) for at in range(attempts + 2)] == [delay] * attempts + [None, None]


def test_exponential_delays_grow_to_their_bound() -> None:
    strategy = of(strategy="exponential-delay", initial_backoff=1, backoff_multiplier=2, max_backoff=5)
    assert [strategy.failed(at) for at in range(5)] == [1, 2, 4, 5, 5]


def test_exponential_delays_are_reset_after_the_job_ran_for_a_long_time() -> None:
    strategy = of(strategy="exponential-delay", initial_backoff=10, backoff_multiplier=2, reset_backoff_threshold=100)
    assert strategy.failed(0) == 10
    assert strategy.failed(109.9) == 20  # it ran for 99.9 s only
    assert strategy.failed(129.9 + 100) == 10


def test_exponential_delay_gives_up_after_too_many_failures_in_a_row() -> None:
    strategy = of(strategy="exponential-delay", attempts_before_reset_backoff=2, reset_backoff_threshold=100)
    assert [strategy.failed(at) is None for at in (0, 10, 20)] == [False, False, True]
    again = of(strategy="exponential-delay", attempts_before_reset_backoff=2, reset_backoff_threshold=100)
    assert [again.failed(at) is None for at in (0, 10, 200, 210)] == [False, False, False, False]


@given(
    st.floats(0, 1000), st.floats(1, 10), st.floats(0, 1000), st.floats(0, 1), st.lists(st.floats(0, 50), max_size=30)
)
def test_exponential_delays_stay_within_bound_and_jitter(
    first: float, factor: float, longest: float, jitter: float, pauses: list[float]
) -> None:
    settings = RestartConfig(
        initial_backoff=first, backoff_multiplier=factor, max_backoff=longest, jitter_factor=jitter
    )
    for chance in (-1.0, 0.0, 1.0):
        strategy, now = ExponentialDelay(settings, lambda chance=chance: chance), 0.0  # type: ignore[misc]
        for pause in pauses:
            delay = strategy.failed(now)
            assert delay is not None
            assert 0 <= delay <= longest * (1 + jitter) * (1 + 1e-9)
            now += delay + pause


@given(st.integers(1, 5), st.floats(0.1, 100), st.lists(st.floats(0, 50), min_size=1, max_size=40))
def test_failure_rate_gives_up_exactly_when_too_many_failures_are_within_the_interval(
    most: int, interval: float, pauses: list[float]
) -> None:
    strategy, now = FailureRate(most, interval, 2.0), 0.0
    failures: list[float] = []
    for pause in pauses:
        now += pause
        failures.append(now)
        recent = [at for at in failures if now - at <= interval]
        delay = strategy.failed(now)
        assert (delay is None) == (len(recent) > most)
        if delay is None:
            return


def test_a_job_overrides_only_the_restart_settings_that_it_names() -> None:
    cluster = RestartConfig(strategy=RestartStrategy.FAILURE_RATE, delay=7, attempts=2)
    assert effective_restart_config(cluster, RestartWish()) == cluster
    settled = effective_restart_config(cluster, RestartWish(strategy=RestartStrategy.FIXED_DELAY, attempts=0))
    assert (settled.strategy, settled.attempts, settled.delay) == (RestartStrategy.FIXED_DELAY, 0, 7)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"strategy": "sometimes"}, id="unknown-strategy"),
        pytest.param({"delay": -1.0}, id="negative-delay"),
        pytest.param({"delay": float("inf")}, id="infinite-delay"),
        pytest.param({"delay": float("nan")}, id="no-number"),
        pytest.param({"backoff_multiplier": 0.5}, id="shrinking"),
        pytest.param({"jitter_factor": 2.0}, id="more-jitter-than-delay"),
        pytest.param({"max_failures_per_interval": 0}, id="no-failure-at-all"),
        pytest.param({"retries": 3}, id="unknown-key"),
    ],
)
@pytest.mark.parametrize("kind", [RestartConfig, RestartWish])
def test_impossible_settings_are_refused(settings: dict[str, object], kind: type[msgspec.Struct]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(settings, kind)
