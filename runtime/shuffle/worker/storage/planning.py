"""Computes the locations of segments: in memory, in the order in which they are written, and in the runs of a read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sluice.runtime.shuffle.data_plane import SEGMENT_ENTRY
from sluice.runtime.shuffle.worker.storage.attempts import Frame
from sluice.runtime.shuffle.worker.storage.volume import ROW, Rows, Run

PLAN_ROWS = 32 << 10
"""The approximate number of segments of a read that are planned at a time."""


def rows_of(frames: list[Frame]) -> Rows:
    """Return the segments of ``frames`` with their locations."""
    tables = np.frombuffer(b"".join([frame.table for frame in frames]), SEGMENT_ENTRY)
    places = np.array([place for frame in frames for place in frame.places], np.int64)
    starts, counts = places[:, 0], places[:, 1]
    rows = np.empty(len(tables), ROW)
    for column in SEGMENT_ENTRY.names or ():
        rows[column] = tables[column]
    rows["map"] = np.repeat(
        [frame.map_id for frame in frames], [len(frame.table) // SEGMENT_ENTRY.itemsize for frame in frames]
    )
    lengths = tables["length"].astype(np.int64)
    before = np.cumsum(lengths) - lengths
    firsts = np.cumsum(counts) - counts
    rows["offset"] = before + np.repeat(starts - before[firsts], counts)
    return rows


def back_to_back(rows: Rows, start: int, overhead: int) -> npt.NDArray[np.uint64]:
    """Return the offsets of ``rows`` stored back to back from ``start`` on, each ``overhead`` bytes longer."""
    lengths = rows["length"].astype(np.uint64) + np.uint64(overhead)
    offsets: npt.NDArray[np.uint64] = np.cumsum(lengths) - lengths + np.uint64(start)
    return offsets


def pieces_of(rows: Rows, view: memoryview) -> list[memoryview]:
    """Return the data of ``rows`` as slices of ``view``, with contiguous segments joined."""
    offsets = rows["offset"].astype(np.int64)
    ends = offsets + rows["length"]
    breaks = np.flatnonzero(offsets[1:] != ends[:-1]) + 1
    starts = offsets[np.concatenate(([0], breaks))].tolist()
    stops = ends[np.concatenate((breaks - 1, [len(rows) - 1]))].tolist()
    return [view[start:stop] for start, stop in zip(starts, stops, strict=True) if start < stop]


def touches(run: Run, first: int, end: int, wanted: frozenset[int]) -> bool:
    start, stop = run.span(first, end)
    return start < stop and not run.maps.isdisjoint(wanted)


def chunks(runs: list[Run], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Split a range of partitions into parts of about :data:`PLAN_ROWS` rows at most."""
    spans = [run.span(first, end) for run in runs]
    if sum(stop - start for start, stop in spans) <= PLAN_ROWS:
        yield first, end
        return
    partitions = np.concatenate([np.frombuffer(run.partitions, np.uint32) for run in runs])
    counts = np.concatenate([np.diff(np.frombuffer(run.starts, np.int64)) for run in runs])
    inside = (partitions >= first) & (partitions < end)
    each, where = np.unique(partitions[inside], return_inverse=True)
    ends = np.cumsum(np.bincount(where, weights=counts[inside]))
    start, done = first, 0.0
    while True:
        index = int(np.searchsorted(ends, done + PLAN_ROWS, side="right"))
        index = max(index, int(np.searchsorted(each, start)) + 1)
        if index >= len(each):
            yield start, end
            return
        yield start, int(each[index])
        start, done = int(each[index]), float(ends[index - 1])
