"""Rows of refusals: the first of a kind at once, later ones counted in rows that come ever less often.

A job that tries one thing for hours makes a row a minute, and one that always tries something new a few a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sluice.runtime.sandbox.network.events import Refusal, Rows

LOOK_SECONDS = 0.25
FIRST_PAUSE_SECONDS = 1.0
"""Pause after the first row of a kind; refusals of this kind in it become one row with a count."""
LONGEST_PAUSE_SECONDS = 60.0
"""The pause doubles up to this while more refusals come; after a pause without any, the next one is a first again."""
MAX_KINDS = 256
"""Kinds that get rows of their own at once; all others share one row for each protocol."""
NEW_KINDS_A_SECOND = 4.0
"""So many more different rows, when those are used up."""
MAX_PROTOCOLS = 32
"""Rows for what is beyond; further protocols are ``other``."""
OTHERS = "more_than_are_told"


@dataclass(slots=True)
class _Kind:
    pause: float
    until: float
    count: int = 0


class Refusals:
    """The refusals of one network; used in the broker's thread."""

    def __init__(self, rows: Rows, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds that never go back."""
        self._rows = rows
        self._clock = clock
        self._kinds: dict[Refusal, _Kind] = {}
        self._others: set[str] = set()
        self._left = float(MAX_KINDS)
        self._filled = clock()
        self._looking: asyncio.TimerHandle | None = None

    def add(self, refusal: Refusal) -> None:
        """Write a row of the refusal, or count it."""
        key = replace(refusal, count=1)
        known = self._kinds.get(key)
        if known is None and not self._may_be_told():
            key = self._other(refusal.protocol)
            known = self._kinds.get(key)
        if known is not None:
            known.count += refusal.count
            self._look_later()
            return
        self._kinds[key] = _Kind(FIRST_PAUSE_SECONDS, self._clock() + FIRST_PAUSE_SECONDS)
        self._rows.refused(replace(key, count=refusal.count))
        self._look_later()

    def look(self) -> None:
        """Write rows of the counts whose pause is over."""
        now = self._clock()
        for key, kind in list(self._kinds.items()):
            if now < kind.until:
                continue
            if not kind.count:
                if key.reason != OTHERS:
                    del self._kinds[key]
                continue
            self._rows.refused(replace(key, count=kind.count))
            kind.pause = min(2 * kind.pause, LONGEST_PAUSE_SECONDS)
            kind.until, kind.count = now + kind.pause, 0

    def flush(self) -> None:
        """Write rows of all counts; later refusals are ignored."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        kinds, self._kinds = self._kinds, {}
        for key, kind in kinds.items():
            if kind.count:
                self._rows.refused(replace(key, count=kind.count))

    def _look(self) -> None:
        self._looking = None
        self.look()
        if any(kind.count or key.reason != OTHERS for key, kind in self._kinds.items()):
            self._look_later()

    def _look_later(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _may_be_told(self) -> bool:
        """Whether there is room for a kind that was not there, now and in the log."""
        now = self._clock()
        self._left = min(MAX_KINDS, self._left + NEW_KINDS_A_SECOND * (now - self._filled))
        self._filled = now
        if self._left < 1 or len(self._kinds) >= MAX_KINDS:
            return False
        self._left -= 1
        return True

    def _other(self, protocol: str) -> Refusal:
        if protocol not in self._others and len(self._others) >= MAX_PROTOCOLS:
            protocol = "other"
        self._others.add(protocol)
        return Refusal("", protocol, "", 0, "", OTHERS)
