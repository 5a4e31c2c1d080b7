"""What came of one attempt of a map, and of its frames, until it is written out."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.runtime.shuffle.data_plane import FrameRefused
from sluice.runtime.shuffle.worker.storage.slab_pool import Lease

SEQUENCE_SLACK = 64 << 10
"""How far a map's sequence numbers may run ahead of the number of its segments that arrived."""
PAGE_SEQUENCES = 1024
"""Sequence numbers that came early are remembered in pages of so many."""
PAGE_BYTES = 320
"""What a page takes of memory at most."""


@dataclass(slots=True)
class MapAttempt:
    """What is known of one attempt of one map.

    Attributes:
        segments: how many arrived.
        size: their bytes.
        highest: the highest sequence number that arrived.
        expected: all numbers below this one arrived.
        early: the numbers above, as pages of bits; none when segments come in order.
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
        """What :attr:`early` takes of memory at most."""
        return len(self.early) * PAGE_BYTES

    def take(self, sequences: list[int], size: int, map_id: int) -> None:
        """Note segments; raises :class:`FrameRefused` for a number that came before or runs far ahead."""
        first, count = self.expected, len(sequences)
        if not self.early and sequences[0] == first and sequences == list(range(first, first + count)):
            self.expected = first + count
            highest = first + count - 1
        else:
            highest = max(sequences)
            if highest > 2 * (self.segments + count) + SEQUENCE_SLACK:
                raise FrameRefused(f"segment {highest} of map {map_id} after {self.segments} others")
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
        """Advance :attr:`expected` over what came early."""
        while (page := self.early.get(self.expected // PAGE_SEQUENCES)) is not None:
            number, bit = divmod(self.expected, PAGE_SEQUENCES)
            rest = page >> bit
            run = (~rest & (rest + 1)).bit_length() - 1  # how many bits from the lowest on are set
            if not run:
                return
            self.expected += run
            if page >> (bit + run) == 0:
                del self.early[number]

    def complete(self, segments: int, size: int) -> bool:
        """Whether exactly the segments 0 … ``segments`` - 1 arrived, ``size`` bytes together."""
        # None comes twice: as many as there are numbers up to the highest are all of these.
        return (self.segments, self.size) == (segments, size) and self.highest == segments - 1

    def over(self, *, committed: bool) -> None:
        """Nothing more can come: committed, or lost or given up."""
        self.committed, self.aborted, self.early = committed, not committed, {}


@dataclass(slots=True)
class Frame:
    """Segments that no index names yet.

    Attributes:
        map_id: whose they are.
        table: their rows as in PUSH.
        places: (start, segments): where so many of them begin, one after the other.
        lease: their room when they are in memory; None: they are in the data of ``volume``.
        volume: its number.
        table_bytes: what its table takes of managed memory.
    """

    map_id: int
    table: bytes
    places: list[tuple[int, int]]
    lease: Lease | None
    volume: int = 0
    table_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """Of managed memory: its data, as far as they are in memory, and its table."""
        return self.table_bytes + (0 if self.lease is None else self.lease.size)

    @property
    def stored_bytes(self) -> int:
        """What counts towards the quota: that, and by how much its rows in an index are longer than its table."""
        return self.memory_bytes + len(self.table)
