"""Rows of what was refused: equal ones of a moment are one row with a count."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sluice.runtime.sandbox.network.events import Refusal, Rows

GATHER_SECONDS = 0.25
MAX_KINDS = 128
"""Different rows of one moment; what is beyond is one row of each protocol."""
OTHERS = "more_than_are_told"


class Refusals:
    """Of one network; used in the broker's thread."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._kept: dict[Refusal, int] = {}
        self._flushing: asyncio.TimerHandle | None = None

    def add(self, refusal: Refusal) -> None:
        """Tell of it soon."""
        key = replace(refusal, count=1)
        if key not in self._kept and len(self._kept) >= MAX_KINDS:
            key = Refusal("", refusal.protocol, "", 0, "", OTHERS)
        self._kept[key] = self._kept.get(key, 0) + refusal.count
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(GATHER_SECONDS, self.flush)

    def flush(self) -> None:
        """Tell of all."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        kept, self._kept = self._kept, {}
        for refusal, count in kept.items():
            self._rows.refused(replace(refusal, count=count))
