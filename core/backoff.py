"""Pauses between attempts at something that fails again and again."""

from __future__ import annotations

import random
from collections.abc import Callable


def backoff_seconds(failures: int, first: float, most: float, chance: Callable[[], float] = random.random) -> float:
    """How long to wait before the next try: doubled with each failure, reduced by up to half by ``chance``.

    The jitter keeps clients from retrying all at once.

    Args:
        failures: 1 or more.
        first: after the first failure, in seconds.
        most: the longest pause, in seconds.
        chance: from 0 to 1.
    """
    return min(most, first * 2.0 ** min(failures - 1, 20)) * (1 - chance() / 2)
