"""Runs a main task together with a background task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from sluice.core.tasks import end_tasks


async def run_with_background(background: Coroutine[Any, Any, None], main: Coroutine[Any, Any, None]) -> None:
    """Run both until one ends or this is cancelled, cancel the other, and raise the error of the one that ended.

    An error of ``main`` comes before one of ``background``, and neither is wrapped in a group.
    """
    tasks = [asyncio.create_task(main), asyncio.create_task(background)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(*tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
