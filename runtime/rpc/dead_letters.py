"""Messages that nobody will ever handle, and whose senders may not know: counted, and the latest kept to look at.

Refused tells (nobody of that name, a full mailbox, not permitted), and what waited in a mailbox when its endpoint
stopped. Arguments are not kept: they may be secret, and large.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sluice.core.metric_exposition import Sample

MAX_KEPT = 100
"""Latest dead letters kept."""

LOG_EVERY_SECONDS = 10.0
"""Of a kind of dead letter, one is logged in so many seconds, with the number of those that were not."""

MAX_KINDS = 256
"""Kinds that are counted by themselves; more are counted together: their names may be a peer's invention."""

OTHERS = ("(others)", "(others)")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that was not handled: for whom, of whom, and why not (the name of the error)."""

    endpoint: str
    method: str
    sender: str
    reason: str
    at: float


class DeadLetters:
    """All of a process. For use on one event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._latest: deque[DeadLetter] = deque(maxlen=MAX_KEPT)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    @property
    def total(self) -> int:
        """How many there were."""
        return self._counts.total()

    @property
    def latest(self) -> tuple[DeadLetter, ...]:
        """The latest ones, oldest first."""
        return tuple(self._latest)

    def add(self, endpoint: str, method: str, sender: str, reason: str) -> None:
        """One more."""
        now = self._clock()
        self._latest.append(DeadLetter(endpoint, method, sender, reason, now))
        kind = (endpoint, reason)
        if kind not in self._counts and len(self._counts) >= MAX_KINDS:
            kind = OTHERS
        self._counts[kind] += 1
        last, count = self._logged.get(kind, (-LOG_EVERY_SECONDS, 0))
        if now - last >= LOG_EVERY_SECONDS:
            self._logged[kind] = (now, self._counts[kind])
            _log.warning(
                "nobody handles %s of %s, sent by %s: %s (%d more since the last such line)",
                *(method, endpoint, sender, reason, self._counts[kind] - count - 1),
            )

    def samples(self) -> Iterator[Sample]:
        """The counts as metrics."""
        for (endpoint, reason), count in self._counts.items():
            yield Sample(
                "sluice_rpc_dead_letters_total",
                "counter",
                "Messages that nobody handled.",
                count,
                {"endpoint": endpoint, "reason": reason},
            )
