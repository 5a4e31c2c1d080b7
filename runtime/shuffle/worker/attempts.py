"""What came of one attempt of a map, and of its frames, until it is written out."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.shuffle.errors import FrameRefused
from runtime.shuffle.worker.memory import Lease

SEQUENCE_SLACK = 64 << 10
"""How far a map's sequence numbers may run ahead of the number of its segments that arrived."""


@dataclass(slots=True)
class MapAttempt:
    """What is known of one attempt of one map."""

    segments: int = 0
    size: int = 0
    committed: bool = False
    aborted: bool = False
    seen: bytearray = field(default_factory=bytearray)
    """Which sequence numbers arrived; empty after the commit."""

    def take(self, sequences: list[int], size: int, map_id: int) -> None:
        """Note segments; raises :class:`FrameRefused` for a number that came before or runs far ahead."""
        highest = max(sequences)
        if highest > 2 * (self.segments + len(sequences)) + SEQUENCE_SLACK:
            raise FrameRefused(f"segment {highest} of map {map_id} after {self.segments} others")
        seen = self.seen
        if highest >= len(seen):
            seen.extend(bytes(highest + 1 - len(seen) + len(seen) // 2))
        for sequence in sequences:
            if seen[sequence]:
                raise FrameRefused(f"segment {sequence} of map {map_id} was pushed a second time")
            seen[sequence] = 1
        self.segments += len(sequences)
        self.size += size

    def complete(self, segments: int, size: int) -> bool:
        """Whether exactly the segments 0 … ``segments`` - 1 arrived, ``size`` bytes together."""
        return (self.segments, self.size) == (segments, size) and 0 not in self.seen[:segments]

    def over(self, *, committed: bool) -> None:
        """Nothing more can come: committed, or lost or given up."""
        self.committed, self.aborted, self.seen = committed, not committed, bytearray()


@dataclass(slots=True)
class Frame:
    """Segments that no index names yet.

    Attributes:
        map_id: whose they are.
        table: their rows as in PUSH.
        places: (start, segments): where so many of them begin, one after the other.
        lease: their room when they are in memory; None: they are in the data of ``volume``.
        volume: its number.
    """

    map_id: int
    table: bytes
    places: list[tuple[int, int]]
    lease: Lease | None
    volume: int = 0
