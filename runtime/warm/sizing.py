"""Decides how many processes of which size should wait. Decisions only; the caller passes the time."""

from __future__ import annotations

import enum
from collections import Counter, deque
from dataclasses import dataclass, field

BURST_SECONDS = 10.0
"""Requests within this time count as simultaneous."""
REMEMBERED_SECONDS = 1800.0
"""How long a request is remembered."""
MAX_REMEMBERED = 10_000
MAX_AUTOMATIC = 8
"""Maximum number of waiting processes if the number is not configured."""


class WarmKind(enum.StrEnum):
    """The kind of process that a warm process becomes."""

    DRIVER = "driver"
    EXECUTOR = "executor"


@dataclass(frozen=True, slots=True)
class WarmSize:
    """The properties of a warm process that cannot change after its start."""

    kind: WarmKind
    memory_mb: int
    """Heap size in MiB."""
    cores: int = 1
    checkpoints: str = ""
    """The local directory of all jobs' checkpoints; empty if there is none."""


@dataclass(slots=True)
class Sizing:
    """Counts the requests of jobs for processes.


    Attributes:
        limit: maximum number of processes that may wait at a time.
    """

    limit: int = MAX_AUTOMATIC
    _asked: deque[tuple[float, WarmSize]] = field(default_factory=deque)

    def ask(self, size: WarmSize, now: float) -> None:
        """Note a request, whether or not it was satisfied."""
        self._asked.append((now, size))
        while len(self._asked) > MAX_REMEMBERED:
            self._asked.popleft()

    def wanted(self, now: float) -> Counter[WarmSize]:
        """How many processes of each size should wait: drivers first, then the most recently requested sizes."""
        while self._asked and now - self._asked[0][0] > REMEMBERED_SECONDS:
            self._asked.popleft()
        order = [size for kind in WarmKind for size in self._latest() if size.kind is kind]
        most = self._bursts()
        left = self.limit
        found: Counter[WarmSize] = Counter()
        while left and (lacking := [size for size in order if found[size] < most[size]]):
            for size in lacking[:left]:  # one of each size before a second of any size
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
