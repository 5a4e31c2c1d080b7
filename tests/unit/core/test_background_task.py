"""What runs beside a process ends with it, and the process with what it cannot do without."""

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


async def test_when_the_process_ends_so_does_what_runs_beside_it() -> None:
    ended: list[str] = []
    await run_with_background(forever(ended, "background"), returns())
    assert ended == ["background"]


async def test_an_error_comes_through_as_it_is_from_either() -> None:
    ended: list[str] = []
    with pytest.raises(StoreError):
        await run_with_background(forever(ended, "background"), fails())
    with pytest.raises(StoreError):
        await run_with_background(fails(), forever(ended, "main"))
    assert ended == ["background", "main"]


async def test_when_it_is_cancelled_both_end() -> None:
    ended: list[str] = []
    task = asyncio.create_task(run_with_background(forever(ended, "background"), forever(ended, "main")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["background", "main"]
