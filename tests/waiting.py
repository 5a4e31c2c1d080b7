"""Polls a condition that signals no event, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_SECONDS = 40.0
_EAGER_ROUNDS = 100
_T = TypeVar("_T")


async def until(condition: Callable[[], object], what: str = "", seconds: float = DEADLINE_SECONDS) -> None:
    """Let other tasks run until ``condition`` holds; fail with ``what`` after ``seconds``."""
    loop = asyncio.get_running_loop()
    deadline, rounds = loop.time() + seconds, 0
    while not condition():
        assert loop.time() < deadline, what or f"waited in vain for {seconds:.0f} s"
        await asyncio.sleep(0 if rounds < _EAGER_ROUNDS else 0.01)
        rounds += 1


def wait_until(
    condition: Callable[[], _T], what: str | Callable[[], str], seconds: float = DEADLINE_SECONDS, pause: float = 0.02
) -> _T:
    """Block until ``condition`` returns a true value, and return it; fail with ``what`` after ``seconds``.

    For tests without an event loop. ``pause`` is the polling interval in seconds; make it longer for expensive checks.
    """
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(pause)
    return answer
