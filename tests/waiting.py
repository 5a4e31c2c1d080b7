"""Waiting for a condition that tells of no event, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DEADLINE_SECONDS = 40.0
_EAGER_ROUNDS = 100


async def until(condition: Callable[[], object], what: str = "", seconds: float = DEADLINE_SECONDS) -> None:
    """Let others run until ``condition`` holds; fail with ``what`` when it does not within ``seconds``."""
    loop = asyncio.get_running_loop()
    deadline, rounds = loop.time() + seconds, 0
    while not condition():
        assert loop.time() < deadline, what or f"waited in vain for {seconds:.0f} s"
        await asyncio.sleep(0 if rounds < _EAGER_ROUNDS else 0.01)
        rounds += 1
