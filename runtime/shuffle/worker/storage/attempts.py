"""The state of a map attempt, and of its frames until a run's index names them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.runtime.shuffle.data_plane import FrameRefused
from sluice.runtime.shuffle.worker.storage.slab_pool import Lease

SEQUENCE_SLACK = 64 << 10
"""How far a map's sequence numbers may be ahead of the number of its segments that arrived."""
PAGE_SEQUENCES = 1024
"""Early sequence numbers are recorded in pages of this many bits."""
PAGE_BYTES = 320
"""Maximum memory of a page."""


@dataclass(slots=True)
class MapAttempt:
    """The state of one attempt of one map.

    Attributes:
        segments: how many segments arrived.
        size: their size in bytes.
        highest: the highest sequence number that arrived.
        expected: the lowest sequence number that has not arrived.
        early: the higher numbers that arrived, as pages of bits; empty if segments arrive in order.
    """

    segments: int = 0
    size: int = 0
    committed: bool = False
    aborted: bool = False
    highest: int = -1
    expected: int = 0
    early: dict[int, int] = field(default_factory=dict)

    @property
    def early_bytes(self) -> int:
        """The maximum memory of :attr:`early`."""
        return len(self.early) * PAGE_BYTES

    def take(self, sequences: list[int], size: int, map_id: int) -> None:
        """Record segments; raises :class:`FrameRefused` for a number that arrived before or is too far ahead."""
        first, count = self.expected, len(sequences)
        if not self.early and sequences[0] == first and sequences == list(range(first, first + count)):
            self.expected = first + count
            highest = first + count - 1
        else:
            highest = max(sequences)
            if highest > 2 * (self.segments + count) + SEQUENCE_SLACK:
                raise FrameRefused(f"segment {highest} of map {map_id} arrived after {self.segments} others")
            for sequence in sequences:
                self._take_early(sequence, map_id)
            self._close_gap()
        self.highest = max(self.highest, highest)
        self.segments += count
        self.size += size

    def _take_early(self, sequence: int, map_id: int) -> None:
        number, bit = divmod(sequence, PAGE_SEQUENCES)
        page, mask = self.early.get(number, 0), 1 << bit
        if sequence < self.expected or page & mask:
            raise FrameRefused(f"segment {sequence} of map {map_id} was pushed a second time")
        self.early[number] = page | mask

    def _close_gap(self) -> None:
        """Advance :attr:`expected` past the numbers that arrived early."""
        while (page := self.early.get(self.expected // PAGE_SEQUENCES)) is not None:
            number, bit = divmod(self.expected, PAGE_SEQUENCES)
            rest = page >> bit
            run = (~rest & (rest + 1)).bit_length() - 1  # the number of trailing ones
            if not run:
                return
            self.expected += run
            if page >> (bit + run) == 0:
                del self.early[number]

    def complete(self, segments: int, size: int) -> bool:
        """Whether exactly the segments 0 … ``segments`` - 1 arrived, with ``size`` bytes in total."""
        # No number arrives twice, so the count and the highest number suffice.
        return (self.segments, self.size) == (segments, size) and self.highest == segments - 1

    def over(self, *, committed: bool) -> None:
        """Close the attempt: it is committed, or it has failed."""
        self.committed, self.aborted, self.early = committed, not committed, {}


@dataclass(slots=True)
class Frame:
    """Segments of a map that no index names yet.

    Attributes:
        map_id: the map.
        table: their rows, in the format of PUSH.
        places: (start, segments) pairs: where a series of contiguous segments starts, and their number.
        lease: their memory; None if they are in the data file of ``volume``.
        volume: the number of that volume.
        table_bytes: the managed memory of the table.
    """

    map_id: int
    table: bytes
    places: list[tuple[int, int]]
    lease: Lease | None
    volume: int = 0
    table_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """The managed memory of the frame: its table, and its data if that is in memory."""
        return self.table_bytes + (0 if self.lease is None else self.lease.size)

    @property
    def stored_bytes(self) -> int:
        """What counts towards the quota: :attr:`memory_bytes`, and what index rows need more than the table."""
        return self.memory_bytes + len(self.table)
