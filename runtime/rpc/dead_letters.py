"""Dead letters: messages that are never handled, and whose senders may not learn that. They are counted and logged.

Dead letters are refused tells (unknown endpoint, full mailbox, not permitted), and the messages left in a mailbox when
its endpoint stops. Arguments are not kept: they may be secret or large.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator

from sluice.core import Sample

LOG_EVERY_SECONDS = 10.0
"""Interval at which one dead letter of a kind is logged, with the number of those not logged since."""

MAX_KINDS = 256
"""Maximum number of kinds with a counter of their own. A peer can invent names, so further kinds share a counter."""

OTHERS = ("(others)", "(others)")

_LOG = logging.getLogger(__name__)


class DeadLetters:
    """The dead letters of a process. Use it on one event loop only."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.counts: Counter[tuple[str, str]] = Counter()
        """Counts by endpoint and name of the error."""
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def add(self, endpoint: str, method: str, sender: str, reason: str) -> None:
        """Count a dead letter for ``endpoint``; ``reason`` is the name of the error."""
        now = self._clock()
        kind = (endpoint, reason)
        if kind not in self.counts and len(self.counts) >= MAX_KINDS:
            kind = OTHERS
        self.counts[kind] += 1
        last, count = self._logged.get(kind, (-LOG_EVERY_SECONDS, 0))
        if now - last >= LOG_EVERY_SECONDS:
            self._logged[kind] = (now, self.counts[kind])
            _LOG.warning(
                "dead letter: %s of %s, sent by %s: %s (%d more since the last such line)",
                *(method, endpoint, sender, reason, self.counts[kind] - count - 1),
            )

    def samples(self) -> Iterator[Sample]:
        """Yield the counts as metrics."""
        for (endpoint, reason), count in self.counts.items():
            yield Sample(
                "sluice_rpc_dead_letters_total",
                "counter",
                "Messages that nobody handled.",
                count,
                {"endpoint": endpoint, "reason": reason},
            )
