"""Messages that nobody will ever handle, and whose senders may not know: counted and logged.

Refused tells (nobody of that name, a full mailbox, not permitted), and what waited in a mailbox when its endpoint
stopped. Arguments are not kept: they may be secret, and large.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator

from sluice.core import Sample

LOG_EVERY_SECONDS = 10.0
"""Of a kind of dead letter, one is logged in so many seconds, with the number of those that were not."""

MAX_KINDS = 256
"""Kinds that are counted by themselves; more are counted together: their names may be a peer's invention."""

OTHERS = ("(others)", "(others)")

_LOG = logging.getLogger(__name__)


class DeadLetters:
    """All of a process. For use on one event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.counts: Counter[tuple[str, str]] = Counter()
        """By endpoint and name of the error."""
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def add(self, endpoint: str, method: str, sender: str, reason: str) -> None:
        """One more, for ``endpoint``; ``reason`` is the name of the error."""
        now = self._clock()
        kind = (endpoint, reason)
        if kind not in self.counts and len(self.counts) >= MAX_KINDS:
            kind = OTHERS
        self.counts[kind] += 1
        last, count = self._logged.get(kind, (-LOG_EVERY_SECONDS, 0))
        if now - last >= LOG_EVERY_SECONDS:
            self._logged[kind] = (now, self.counts[kind])
            _LOG.warning(
                "nobody handles %s of %s, sent by %s: %s (%d more since the last such line)",
                *(method, endpoint, sender, reason, self.counts[kind] - count - 1),
            )

    def samples(self) -> Iterator[Sample]:
        """The counts as metrics."""
        for (endpoint, reason), count in self.counts.items():
            yield Sample(
                "sluice_rpc_dead_letters_total",
                "counter",
                "Messages that nobody handled.",
                count,
                {"endpoint": endpoint, "reason": reason},
            )
