"""When the agent renews, tries again and warns."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, strategies as st

from sluice.pki.identities.renewal import (
    FIRST_RETRY,
    LONGEST_RETRY,
    Urgency,
    is_due,
    renew_at,
    retry_at,
    urgency,
)
from sluice.pki.x509.profiles import Validity

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
DAY = Validity(START, START + dt.timedelta(hours=24))
_SPREAD = st.floats(0, 1, exclude_max=True)


@given(_SPREAD)
def test_renewal_is_around_half_of_the_life(spread: float) -> None:
    assert START + dt.timedelta(hours=10.8) <= renew_at(DAY, spread) <= START + dt.timedelta(hours=13.2)


def test_two_nodes_do_not_renew_at_the_same_instant() -> None:
    assert renew_at(DAY, 0.1) != renew_at(DAY, 0.9)


@pytest.mark.parametrize(
    ("hours", "due"),
    [
        pytest.param(-1, True, id="the clock jumped back before its start"),
        pytest.param(0, False, id="new"),
        pytest.param(11.9, False, id="just before"),
        pytest.param(12, True, id="half"),
        pytest.param(30, True, id="expired"),
    ],
)
def test_renewal_is_due_from_half_of_the_lifetime(hours: float, due: bool) -> None:
    assert is_due(DAY, START + dt.timedelta(hours=hours), 0.5) is due


@given(st.integers(1, 10_000), _SPREAD)
def test_a_retry_is_bounded_and_never_at_once(failures: int, spread: float) -> None:
    wait = retry_at(START, failures, spread) - START
    assert FIRST_RETRY / 2 <= wait <= LONGEST_RETRY


def test_pauses_between_retries_grow_up_to_a_maximum() -> None:
    waits = [retry_at(START, failures, 0.5) - START for failures in range(1, 12)]
    assert waits == sorted(waits)
    assert waits[0] < dt.timedelta(seconds=1)
    assert waits[-1] == LONGEST_RETRY * 0.75


@pytest.mark.parametrize(
    ("hours", "expected"),
    [
        pytest.param(0, Urgency.FRESH, id="new"),
        pytest.param(18, Urgency.FRESH, id="a quarter left"),
        pytest.param(18.1, Urgency.WARNING, id="less than a quarter left"),
        pytest.param(21.7, Urgency.CRITICAL, id="less than a tenth left"),
        pytest.param(24, Urgency.EXPIRED, id="the end itself"),
        pytest.param(99, Urgency.EXPIRED, id="long past"),
    ],
)
def test_urgency_grows_with_the_elapsed_lifetime(hours: float, expected: Urgency) -> None:
    assert urgency(DAY, START + dt.timedelta(hours=hours)) is expected


def test_a_given_longest_pause_bounds_the_retries() -> None:
    longest = dt.timedelta(seconds=5)
    waits = [retry_at(START, failures, 0.99, longest=longest) - START for failures in range(1, 12)]
    assert waits[0] < longest
    assert all(wait <= longest for wait in waits)
