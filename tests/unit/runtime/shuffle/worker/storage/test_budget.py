"""Memory besides the data: bounded, shared among jobs, and returned completely."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.shuffle.data_plane.errors import ErrorCode, QuotaExceeded
from sluice.runtime.shuffle.worker.storage.budget import (
    Account,
    Budget,
    Holding,
    RetryableQuotaExceeded,
)

CAPACITY = 128_000
LITTLE = 1_000


def greedy(account: Account, step: int = 100) -> Holding:
    """Take memory until no more is granted; return the holding."""
    holding = account.holding()
    while True:
        try:
            holding.take(step)
        except QuotaExceeded:
            return holding


def test_a_single_job_gets_about_two_thirds_of_the_budget() -> None:
    budget = Budget("memory", CAPACITY)
    assert 0.6 < greedy(Account(budget)).held / CAPACITY < 0.67


def test_later_jobs_get_less_but_never_nothing() -> None:
    budget = Budget("memory", CAPACITY)
    held = [greedy(Account(budget, f"job {number}")).held for number in range(12)]
    assert held == sorted(held, reverse=True)
    assert min(held) >= LITTLE
    assert budget.used <= CAPACITY


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, CAPACITY), st.booleans()), max_size=60))
def test_the_budget_is_never_exceeded_and_is_all_returned(steps: list[tuple[int, int, bool]]) -> None:
    budget = Budget("memory", CAPACITY)
    holdings = [Account(budget, f"job {number}").holding() for number in range(6)]
    for number, size, closes in steps:
        if closes:
            holdings[number].close()
            holdings[number] = Account(budget, f"job {number}").holding()
            continue
        before = budget.used
        try:
            holdings[number].take(size)
        except QuotaExceeded:
            assert budget.used == before
        assert budget.used == sum(each.held for each in holdings) <= CAPACITY
    for each in holdings:
        each.close()
    assert budget.used == 0


def test_a_refused_request_is_retryable_only_if_it_could_ever_fit() -> None:
    budget = Budget("memory", CAPACITY, "raise the limit")
    other = greedy(Account(budget))
    with pytest.raises(RetryableQuotaExceeded, match="raise the limit") as refused:
        Account(budget, "late").holding().take(CAPACITY // 2)
    assert refused.value.code is ErrorCode.QUOTA
    other.close()
    late = Account(budget, "late")
    late.holding().take(CAPACITY // 2)
    with pytest.raises(QuotaExceeded) as never:
        late.holding().take(CAPACITY)
    assert not isinstance(never.value, RetryableQuotaExceeded)


def test_used_and_stored_bytes_count_towards_the_quota() -> None:
    account = Account(Budget("memory", CAPACITY), "job", quota=1000)
    first, second = account.holding(), account.holding()
    first.take(300, store=300)
    second.store(300)
    second.take(100)
    with pytest.raises(QuotaExceeded, match="more than 1000 bytes"):
        second.take(1)
    with pytest.raises(QuotaExceeded):
        account.check_quota(1)
    first.close()
    second.take(600)


def test_charges_to_a_closed_holding_are_not_counted() -> None:
    budget = Budget("memory", CAPACITY)
    account = Account(budget)
    holding = account.holding()
    with holding:
        holding.take(10, store=10)
    holding.charge(10)
    holding.store(10)
    assert (budget.used, account.used, account.stored, holding.held) == (0, 0, 0, 0)
