"""How many processes should wait, and of which size. Decisions only; the time is passed in."""

from __future__ import annotations

import enum
from collections import Counter, deque
from dataclasses import dataclass, field

BURST_SECONDS = 10.0
"""What is asked for within this time is wanted at the same time."""
REMEMBERED_SECONDS = 1800.0
"""How long it is remembered that something was asked for."""
MAX_REMEMBERED = 10_000
MAX_AUTOMATIC = 8
"""How many wait at most where nobody has said how many."""


class WarmKind(enum.StrEnum):
    """What a process becomes."""

    DRIVER = "driver"
    EXECUTOR = "executor"


@dataclass(frozen=True, slots=True)
class WarmSize:
    """What cannot be changed any more when a process waits."""

    kind: WarmKind
    memory_mb: int
    """Heap."""
    cores: int = 1
    checkpoints: str = ""
    """The directory of all jobs' checkpoints; empty: jobs keep none in a directory."""


@dataclass(slots=True)
class Sizing:
    """Counts what is asked for.

    Attributes:
        limit: how many may wait of those that were asked for at a time.
    """

    limit: int = MAX_AUTOMATIC
    _asked: deque[tuple[float, WarmSize]] = field(default_factory=deque)

    def ask(self, size: WarmSize, now: float) -> None:
        """Somebody has wanted one, and had it or not."""
        self._asked.append((now, size))
        while len(self._asked) > MAX_REMEMBERED:
            self._asked.popleft()

    def wanted(self, now: float) -> Counter[WarmSize]:
        """How many of each size should wait; drivers first, then what was asked for last."""
        while self._asked and now - self._asked[0][0] > REMEMBERED_SECONDS:
            self._asked.popleft()
        order = [size for kind in WarmKind for size in self._latest() if size.kind is kind]
        most = self._bursts()
        left = self.limit
        found: Counter[WarmSize] = Counter()
        while left and (lacking := [size for size in order if found[size] < most[size]]):
            for size in lacking[:left]:  # one of each before a second of any
                found[size] += 1
                left -= 1
        return found

    def _latest(self) -> list[WarmSize]:
        return list(dict.fromkeys(size for _, size in reversed(self._asked)))

    def _bursts(self) -> Counter[WarmSize]:
        most: Counter[WarmSize] = Counter()
        window: deque[tuple[float, WarmSize]] = deque()
        now: Counter[WarmSize] = Counter()
        for at, size in self._asked:
            window.append((at, size))
            now[size] += 1
            while at - window[0][0] > BURST_SECONDS:
                now[window.popleft()[1]] -= 1
            most[size] = max(most[size], now[size])
        return most
