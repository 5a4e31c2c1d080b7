"""The limit on how much work is in progress at once."""

from __future__ import annotations

from functools import partial

from sluice.runtime.jobmanager.slots.concurrency_limit import ConcurrencyLimit


def test_work_starts_in_order_and_within_the_limit() -> None:
    started: list[int] = []
    at_once = ConcurrencyLimit(2)

    def work(number: int) -> bool:
        started.append(number)
        return number % 5 != 3  # 3 and 8 have nothing to do any more

    for number in range(10):
        at_once.submit(partial(work, number))
    assert started == [0, 1]
    assert len(at_once) == 8
    at_once.done()
    assert started == [0, 1, 2]
    at_once.done()
    assert started == [0, 1, 2, 3, 4]
    for _ in range(6):
        at_once.done()
    assert started == list(range(10))
    assert len(at_once) == 0
