"""How long a kind of process is left alone after failures."""

from __future__ import annotations

from sluice.runtime.warm.setbacks import (
    FIRST_PAUSE_SECONDS,
    FIRST_REST_SECONDS,
    LAST_PAUSE_SECONDS,
    LAST_REST_SECONDS,
    MAX_IN_VAIN,
    Setbacks,
)


def test_each_failure_to_start_doubles_the_pause_up_to_a_limit() -> None:
    setbacks = Setbacks()
    assert setbacks.allow(0.0)
    pauses = [setbacks.not_started(0.0) for _ in range(10)]
    assert pauses[:2] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LAST_PAUSE_SECONDS
    assert not setbacks.allow(LAST_PAUSE_SECONDS - 1)
    assert setbacks.allow(LAST_PAUSE_SECONDS)
    setbacks.started()
    assert setbacks.not_started(0.0) == FIRST_PAUSE_SECONDS


def test_each_rest_is_twice_as_long_up_to_a_limit() -> None:
    setbacks = Setbacks()
    rests = [setbacks.in_vain(0.0) for _ in range(MAX_IN_VAIN + 10)]
    assert rests[: MAX_IN_VAIN + 1] == [0.0] * (MAX_IN_VAIN - 1) + [FIRST_REST_SECONDS, 2 * FIRST_REST_SECONDS]
    assert rests[-1] == LAST_REST_SECONDS
    setbacks.used()
    assert setbacks.in_vain(0.0) == 0.0


def test_a_process_that_starts_does_not_make_up_for_those_that_could_not_be_used() -> None:
    setbacks = Setbacks()
    for _ in range(MAX_IN_VAIN):
        setbacks.in_vain(0.0)
    setbacks.started()
    assert not setbacks.allow(FIRST_REST_SECONDS - 1)
