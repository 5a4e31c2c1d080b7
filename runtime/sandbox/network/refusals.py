"""Writes rows for refusals: the first of a kind at once, later ones as counts in increasingly rare rows.

A job that repeats one attempt for hours causes one row per minute, and a job that varies its attempts a few per second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sluice.runtime.sandbox.network.events import ConnectionObserver, Refusal

LOOK_SECONDS = 0.25
FIRST_PAUSE_SECONDS = 1.0
"""The pause after the first row of a kind. Refusals of this kind during the pause become one row with a count."""
LONGEST_PAUSE_SECONDS = 60.0
"""The pause doubles up to this limit while refusals continue. After a pause without any, the next one is a first again.
"""
MAX_KINDS = 256
"""Maximum number of kinds with separate rows at a time; all others share one row per protocol."""
NEW_KINDS_A_SECOND = 4.0
"""The rate at which further kinds get separate rows once :data:`MAX_KINDS` is used up."""
MAX_PROTOCOLS = 32
"""Maximum number of protocols with a shared row; further protocols count as ``other``."""
OTHERS = "more_than_are_told"


@dataclass(slots=True)
class _Kind:
    pause: float
    until: float
    count: int = 0


class Refusals:
    """The refusals of one network; used in the broker's thread."""

    def __init__(self, observer: ConnectionObserver, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: a monotonic clock in seconds."""
        self._observer = observer
        self._clock = clock
        self._kinds: dict[Refusal, _Kind] = {}
        self._others: set[str] = set()
        self._left = float(MAX_KINDS)
        self._filled = clock()
        self._looking: asyncio.TimerHandle | None = None

    def add(self, refusal: Refusal) -> None:
        """Write a row for the refusal, or count it for a later row."""
        key = replace(refusal, count=1)
        known = self._kinds.get(key)
        if known is None and not self._may_have_row():
            key = self._other(refusal.protocol)
            known = self._kinds.get(key)
        if known is not None:
            known.count += refusal.count
            self._look_later()
            return
        self._kinds[key] = _Kind(FIRST_PAUSE_SECONDS, self._clock() + FIRST_PAUSE_SECONDS)
        self._observer.refused(replace(key, count=refusal.count))
        self._look_later()

    def look(self) -> None:
        """Write rows for the counts whose pause is over."""
        now = self._clock()
        for key, kind in list(self._kinds.items()):
            if now < kind.until:
                continue
            if not kind.count:
                if key.reason != OTHERS:
                    del self._kinds[key]
                continue
            self._observer.refused(replace(key, count=kind.count))
            kind.pause = min(2 * kind.pause, LONGEST_PAUSE_SECONDS)
            kind.until, kind.count = now + kind.pause, 0

    def flush(self) -> None:
        """Write rows for all counts, when the network closes."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        kinds, self._kinds = self._kinds, {}
        for key, kind in kinds.items():
            if kind.count:
                self._observer.refused(replace(key, count=kind.count))

    def _look(self) -> None:
        self._looking = None
        self.look()
        if any(kind.count or key.reason != OTHERS for key, kind in self._kinds.items()):
            self._look_later()

    def _look_later(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _may_have_row(self) -> bool:
        """Whether a new kind may get its own row, by the number of current kinds and the rate of new ones."""
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
