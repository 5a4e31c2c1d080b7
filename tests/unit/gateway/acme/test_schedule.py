"""When certificates are ordered: two thirds of a lifetime, pauses after failures, and clocks that jump."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluice.gateway.acme.schedule import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LONGEST_RETRY_AFTER,
    MAX_ERROR_CHARACTERS,
    Lifetime,
    RenewalState,
    due,
    failed,
    pause_after,
    renewal_time,
    started,
    succeeded,
)

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAY, HOUR = dt.timedelta(days=1), dt.timedelta(hours=1)
SERVER = "https://acme.example.com/directory"
FRESH = Lifetime(NOW, NOW + 90 * DAY, 1)
GOOD = RenewalState(orders_as="a", issued_by=SERVER)


def after(attempts: int, now: dt.datetime = NOW) -> RenewalState:
    """Return the state after this many failed attempts, the last one at ``now``."""
    state = GOOD
    for _ in range(attempts):
        state = failed(started(state, "a", now, 0.0), "no answer", None, now)
    return state


@given(st.integers(1, 2**160), st.integers(1, 400))
def test_renewal_is_between_two_thirds_and_seven_tenths_of_the_lifetime(serial: int, days: int) -> None:
    lifetime = Lifetime(NOW, NOW + days * DAY, serial)
    at = renewal_time(lifetime)
    assert renewal_time(lifetime) == at
    second = dt.timedelta(seconds=1)
    assert NOW + days * DAY * (2 / 3) - second <= at <= NOW + days * DAY * 0.7 + second


def test_certificates_issued_at_the_same_time_are_renewed_at_different_times() -> None:
    assert len({renewal_time(Lifetime(NOW, NOW + 90 * DAY, serial)) for serial in range(20)}) == 20


def test_nothing_is_ordered_before_the_renewal_time() -> None:
    wanted = due(GOOD, "a", SERVER, FRESH, NOW + 59 * DAY)
    assert not wanted.is_due(NOW + 59 * DAY)
    assert wanted.is_due(NOW + 64 * DAY)


@pytest.mark.parametrize(
    ("state", "lifetime", "reason"),
    [
        pytest.param(GOOD, None, "no valid certificate", id="no certificate"),
        pytest.param(RenewalState(), FRESH, "another server", id="another server"),
        pytest.param(
            msgspec.structs.replace(GOOD, issued_by="https://old"), FRESH, "another server", id="server changed"
        ),
    ],
)
def test_a_missing_certificate_or_one_of_another_server_is_ordered_immediately(
    state: RenewalState, lifetime: Lifetime | None, reason: str
) -> None:
    wanted = due(state, "a", SERVER, lifetime, NOW)
    assert wanted.is_due(NOW)
    assert reason in wanted.reason


def test_pauses_after_failures_double_up_to_a_day_with_jitter() -> None:
    assert [pause_after(each, 0.0) for each in (1, 2, 3)] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pause_after(1, 1.0) == FIRST_PAUSE * 1.25
    assert pause_after(8, 0.0) == pause_after(10_000, 0.0) == LONGEST_PAUSE


def test_at_most_four_attempts_are_made_in_an_hour() -> None:
    state, now, attempts = GOOD, NOW, 0
    while now < NOW + HOUR:
        if due(state, "a", SERVER, None, now).is_due(now):
            attempts += 1
            state = started(state, "a", now, 0.0)  # and is killed each time: nothing else is kept
        now += dt.timedelta(seconds=5)
    assert attempts <= 4


def test_changed_settings_end_the_pause_after_a_failure() -> None:
    state = after(3)
    assert not due(state, "a", SERVER, None, NOW + HOUR - dt.timedelta(seconds=1)).is_due(
        NOW + 59 * dt.timedelta(minutes=1)
    )
    assert due(state, "a", SERVER, None, NOW + HOUR).is_due(NOW + HOUR)
    assert due(state, "b", SERVER, None, NOW).is_due(NOW)
    assert started(state, "b", NOW, 0.0).failures == 1


def test_an_attempt_counts_as_failed_until_it_has_succeeded() -> None:
    state = started(GOOD, "a", NOW, 0.0)
    assert (state.failures, state.last_error) == (1, "the attempt was interrupted")
    done = succeeded(state, SERVER, NOW + HOUR)
    assert (done.failures, done.last_error, done.issued_by, done.next_attempt) == (0, "", SERVER, 0.0)


@pytest.mark.parametrize(
    ("asked", "pause"),
    [
        pytest.param(None, FIRST_PAUSE, id="nothing"),
        pytest.param(dt.timedelta(seconds=1), FIRST_PAUSE, id="shorter"),
        pytest.param(5 * HOUR, 5 * HOUR, id="longer"),
        pytest.param(3650 * DAY, LONGEST_RETRY_AFTER, id="absurd"),
    ],
)
def test_a_retry_after_of_the_server_is_honoured_within_bounds(asked: dt.timedelta | None, pause: dt.timedelta) -> None:
    state = failed(started(GOOD, "a", NOW, 0.0), "rateLimited", asked, NOW)
    assert due(state, "a", SERVER, None, NOW).at == NOW + pause


@pytest.mark.parametrize("jump", [-3650 * DAY, -DAY, 3650 * DAY])
def test_a_clock_jump_delays_an_order_by_at_most_the_longest_pause(jump: dt.timedelta) -> None:
    now = NOW + jump
    wanted = due(after(1), "a", SERVER, None, now)
    assert wanted.at <= now + LONGEST_RETRY_AFTER


def test_the_stored_error_of_a_server_is_truncated() -> None:
    assert len(failed(GOOD, "x" * 10**6, None, NOW).last_error) == MAX_ERROR_CHARACTERS
