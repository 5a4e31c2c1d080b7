"""The locations of the segments of a read, and reading their data."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sluice.runtime.shuffle.data_plane import DATA_ENTRY, SegmentCorrupt
from sluice.runtime.shuffle.worker.storage.at_rest import OVERHEAD_BYTES, SegmentCipher
from sluice.runtime.shuffle.worker.storage.volume import ROW, Rows, Volume


class Located:
    """Segments of a read in the order in which they are sent, with their locations.

    The columns are plain lists, made once for many segments, so that each frame of an answer costs little.

    Attributes:
        entries: the concatenated rows of the table of DATA.
        volumes: the number of each segment's volume.
    """

    __slots__ = ("checks", "entries", "lengths", "maps", "offsets", "partitions", "sequences", "volumes")

    def __init__(self, rows: Rows, volumes: npt.NDArray[np.int32]) -> None:
        self.partitions: list[int] = rows["partition"].tolist()
        self.sequences: list[int] = rows["sequence"].tolist()
        self.maps: list[int] = rows["map"].tolist()
        self.lengths: list[int] = rows["length"].tolist()
        self.checks: list[int] = rows["check"].tolist()
        self.offsets: list[int] = rows["offset"].tolist()
        self.volumes: list[int] = volumes.tolist()
        self.entries = rows.view(np.uint8).reshape(-1, ROW.itemsize)[:, : DATA_ENTRY.itemsize].tobytes()

    def __len__(self) -> int:
        return len(self.offsets)

    def after(self, skip: int) -> Located:
        """Return a copy without the first ``skip`` segments."""
        rest = copy.copy(self)
        for name in ("checks", "lengths", "maps", "offsets", "partitions", "sequences", "volumes"):
            setattr(rest, name, getattr(self, name)[skip:])
        rest.entries = self.entries[skip * DATA_ENTRY.itemsize :]
        return rest

    def damaged(self, index: int, what: str) -> SegmentCorrupt:
        """Return the error for a damaged segment; ``what`` says what is wrong with it."""
        partition, map_id = self.partitions[index], self.maps[index]
        return SegmentCorrupt(
            f"partition {partition} is damaged here: segment {self.sequences[index]} of map {map_id} {what}",
            partition=partition,
            map_id=map_id,
        )


def read_plain(volumes: Sequence[Volume], at: Located, row: int, end: int, view: memoryview) -> None:
    """Read segments ``row`` … ``end`` - 1 into ``view``, with one read for segments that are contiguous on disk."""
    offsets, lengths, homes = at.offsets, at.lengths, at.volumes
    filled = 0
    while row < end:
        first, offset, size = row, offsets[row], lengths[row]
        row += 1
        while row < end and offsets[row] == offset + size and homes[row] == homes[first]:
            size += lengths[row]
            row += 1
        got = volumes[homes[first]].read_into(view[filled : filled + size], offset)
        if got < size:
            while got >= lengths[first]:
                got -= lengths[first]
                first += 1
            raise at.damaged(first, "was cut off")
        filled += size


def read_sealed(
    volumes: Sequence[Volume], at: Located, row: int, end: int, view: memoryview, *, cipher: SegmentCipher
) -> None:
    """Like :func:`read_plain`, for segments that are encrypted at rest."""
    filled = 0
    for index in range(row, end):
        length = at.lengths[index]
        sealed = memoryview(bytearray(length + OVERHEAD_BYTES))
        if volumes[at.volumes[index]].read_into(sealed, at.offsets[index]) < len(sealed):
            raise at.damaged(index, "was cut off")
        view[filled : filled + length] = cipher.open(at.partitions[index], at.maps[index], at.sequences[index], sealed)
        filled += length
