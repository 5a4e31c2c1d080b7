"""A background task ends with the main task, and the main task ends when the background task fails."""

from __future__ import annotations

import asyncio

import pytest

from sluice.core.background_task import run_with_background
from sluice.core.errors import StoreError


async def forever(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def returns() -> None:
    await asyncio.sleep(0)


async def fails() -> None:
    await asyncio.sleep(0)
    raise StoreError("no")


async def test_the_background_task_ends_with_the_main_task() -> None:
    ended: list[str] = []
    await run_with_background(forever(ended, "background"), returns())
    assert ended == ["background"]


async def test_an_error_of_either_task_is_raised_and_ends_the_other() -> None:
    ended: list[str] = []
    with pytest.raises(StoreError):
        await run_with_background(forever(ended, "background"), fails())
    with pytest.raises(StoreError):
        await run_with_background(fails(), forever(ended, "main"))
    assert ended == ["background", "main"]


async def test_cancellation_ends_both_tasks() -> None:
    ended: list[str] = []
    task = asyncio.create_task(run_with_background(forever(ended, "background"), forever(ended, "main")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["background", "main"]
