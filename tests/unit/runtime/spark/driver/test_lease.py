"""The lease of a driver: asking for it again and again."""

from __future__ import annotations

import asyncio

import pytest

from sluice.runtime.spark.driver.link.lease import DriverLease

DEADLINE_SECONDS = 20.0


@pytest.mark.parametrize("turns", range(6))
async def test_who_keeps_it_ends_when_it_is_cancelled_together_with_the_answer(turns: int) -> None:
    """Otherwise a driver that has finished would go on renewing its lease, and never end."""
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
