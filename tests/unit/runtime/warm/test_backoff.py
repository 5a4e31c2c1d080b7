"""The pause after failures during which no process of a kind is started."""

from __future__ import annotations

from sluice.runtime.warm.backoff import (
    FIRST_PAUSE_SECONDS,
    FIRST_REST_SECONDS,
    LAST_PAUSE_SECONDS,
    LAST_REST_SECONDS,
    MAX_UNUSABLE,
    Backoff,
)


def test_each_failure_to_start_doubles_the_pause_up_to_a_limit() -> None:
    backoff = Backoff()
    assert backoff.allow(0.0)
    pauses = [backoff.not_started(0.0) for _ in range(10)]
    assert pauses[:2] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LAST_PAUSE_SECONDS
    assert not backoff.allow(LAST_PAUSE_SECONDS - 1)
    assert backoff.allow(LAST_PAUSE_SECONDS)
    backoff.started()
    assert backoff.not_started(0.0) == FIRST_PAUSE_SECONDS


def test_each_rest_is_twice_as_long_up_to_a_limit() -> None:
    backoff = Backoff()
    rests = [backoff.unusable(0.0) for _ in range(MAX_UNUSABLE + 10)]
    assert rests[: MAX_UNUSABLE + 1] == [0.0] * (MAX_UNUSABLE - 1) + [FIRST_REST_SECONDS, 2 * FIRST_REST_SECONDS]
    assert rests[-1] == LAST_REST_SECONDS
    backoff.used()
    assert backoff.unusable(0.0) == 0.0


def test_a_started_process_does_not_reset_the_count_of_unusable_ones() -> None:
    backoff = Backoff()
    for _ in range(MAX_UNUSABLE):
        backoff.unusable(0.0)
    backoff.started()
    assert not backoff.allow(FIRST_REST_SECONDS - 1)
