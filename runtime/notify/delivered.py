"""The delivery state of each receiver, which prevents duplicate notifications. No I/O; bounded in size."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from sluice.runtime.notify.events import Event

MAX_DELIVERED = 380
"""Events remembered per receiver; all receivers' state fits into one pointer (``ha.pointers.MAX_POINTER_BYTES``)."""


class ConfirmedEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event that a receiver has confirmed.

    Attributes:
        at: when it happened, in epoch seconds.
        sent: when it was sent, in epoch seconds.
        once: whether it is notified only once.
    """

    at: int
    sent: int
    once: bool


class Delivered(msgspec.Struct, forbid_unknown_fields=True):
    """The delivery state of one receiver; times are seconds since the epoch.

    Attributes:
        since: one-time events that happened at or before this time are not sent.
        last: when the last message was delivered.
        told: confirmed events by key.
    """

    since: float
    last: float = 0.0
    told: dict[str, ConfirmedEvent] = {}

    def should_send(self, event: Event, now: float, repeat: float) -> bool:
        """Whether to send ``event`` to the receiver, again once ``repeat`` seconds have passed."""
        told = self.told.get(event.key)
        if event.once:
            return told is None and event.at > self.since
        # A clock that was set back must not suppress a condition that still holds.
        return told is None or not 0 <= now - told.sent < repeat

    def record_confirmed(self, events: Iterable[Event], now: float, repeat: float) -> None:
        """Record that the receiver has confirmed ``events``."""
        self.last = now
        for event in events:
            self.told[event.key] = ConfirmedEvent(math.ceil(event.at), math.floor(now), event.once)
        self._forget(now, repeat)

    def _forget(self, now: float, repeat: float) -> None:
        """Drop entries that no longer matter, and the oldest beyond the limit; ``since`` covers one-time ones."""
        self.told = {key: each for key, each in self.told.items() if each.once or 0 <= now - each.sent < repeat}
        oldest = sorted(self.told, key=lambda key: (not self.told[key].once, self.told[key].at))
        for key in oldest[: max(0, len(oldest) - MAX_DELIVERED)]:
            dropped = self.told.pop(key)
            if dropped.once:
                self.since = max(self.since, dropped.at)
