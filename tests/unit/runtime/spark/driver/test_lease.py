"""The lease of a driver, which is renewed again and again."""

from __future__ import annotations

import asyncio

import pytest

from sluice.runtime.spark.driver.link.lease import DriverLease

DEADLINE_SECONDS = 20.0


@pytest.mark.parametrize("turns", range(6))
async def test_keeping_a_lease_ends_when_cancelled_at_the_moment_of_an_answer(turns: int) -> None:
    """Otherwise a driver that has finished would keep renewing its lease, and never end."""
    asked, answer = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def question() -> None:
        asked.set()
        await answer

    keeping = asyncio.create_task(DriverLease(3600.0).keep(question))
    await asked.wait()
    answer.set_result(None)
    for _ in range(turns):
        await asyncio.sleep(0)
    keeping.cancel()
    await asyncio.wait({keeping}, timeout=DEADLINE_SECONDS)

    assert keeping.cancelled()
