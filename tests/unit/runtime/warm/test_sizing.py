"""Tests of how many warm processes there should be."""

from __future__ import annotations

from collections import Counter

from sluice.runtime.warm import Sizing, WarmKind, WarmSize
from sluice.runtime.warm.sizing import BURST_SECONDS, REMEMBERED_SECONDS

DRIVER = WarmSize(WarmKind.DRIVER, 768)
EXECUTOR = WarmSize(WarmKind.EXECUTOR, 768)
LARGE = WarmSize(WarmKind.EXECUTOR, 4096, cores=4)


def asked(limit: int, *asks: tuple[float, WarmSize]) -> Sizing:
    sizing = Sizing(limit)
    for at, size in asks:
        sizing.ask(size, at)
    return sizing


def test_no_process_is_wanted_before_the_first_request() -> None:
    assert asked(8).wanted(0.0) == Counter()


def test_as_many_processes_are_wanted_as_were_requested_at_a_time() -> None:
    sizing = asked(8, (0, DRIVER), (1, EXECUTOR), (2, EXECUTOR))
    assert sizing.wanted(3.0) == Counter({DRIVER: 1, EXECUTOR: 2})


def test_consecutive_jobs_want_no_more_processes_than_one_of_them() -> None:
    apart = BURST_SECONDS + 1
    sizing = asked(8, *((apart * number, size) for number in range(5) for size in (DRIVER, EXECUTOR, EXECUTOR)))
    assert sizing.wanted(5 * apart) == Counter({DRIVER: 1, EXECUTOR: 2})


def test_the_limit_is_divided_so_that_each_size_comes_before_a_second_of_any() -> None:
    sizing = asked(3, (0, LARGE), (0, LARGE), (0, EXECUTOR), (0, EXECUTOR), (0, DRIVER), (0, DRIVER))
    assert sizing.wanted(1.0) == Counter({DRIVER: 1, EXECUTOR: 1, LARGE: 1})


def test_a_size_that_is_no_longer_requested_is_forgotten() -> None:
    sizing = asked(8, (0, LARGE), (REMEMBERED_SECONDS, EXECUTOR))
    assert sizing.wanted(REMEMBERED_SECONDS + 1) == Counter({EXECUTOR: 1})
