"""What each receiver has been told, so that it is not told again. Pure; small enough for one entry that is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from sluice.runtime.notify.events import Event

MAX_DELIVERED = 380
"""Events remembered for a receiver: those of all receivers fit into one pointer (``ha.pointers.MAX_POINTER_BYTES``)."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """An event that a receiver has: when it happened, when that was told (epoch seconds), whether once is enough."""

    at: int
    sent: int
    once: bool


class Delivered(msgspec.Struct, forbid_unknown_fields=True):
    """What one receiver has been told; times are seconds since the epoch.

    Attributes:
        since: of what happened once and not after this, nothing more is told.
        last: when a message was delivered.
        told: by key.
    """

    since: float
    last: float = 0.0
    told: dict[str, Told] = {}

    def wants(self, event: Event, now: float, repeat: float) -> bool:
        """Whether the receiver is to be told, again if ``repeat`` seconds have passed."""
        told = self.told.get(event.key)
        if event.once:
            return told is None and event.at > self.since
        # A clock that was set back must not silence what is still so.
        return told is None or not 0 <= now - told.sent < repeat

    def has(self, events: Iterable[Event], now: float, repeat: float) -> None:
        """The receiver has confirmed ``events``."""
        self.last = now
        for event in events:
            self.told[event.key] = Told(math.ceil(event.at), math.floor(now), event.once)
        self._forget(now, repeat)

    def _forget(self, now: float, repeat: float) -> None:
        """Drop what changes no answer; beyond the limit the oldest, and with it what happened once before that."""
        self.told = {key: each for key, each in self.told.items() if each.once or 0 <= now - each.sent < repeat}
        oldest = sorted(self.told, key=lambda key: (not self.told[key].once, self.told[key].at))
        for key in oldest[: max(0, len(oldest) - MAX_DELIVERED)]:
            dropped = self.told.pop(key)
            if dropped.once:
                self.since = max(self.since, dropped.at)
