"""The plan of a read from disk: locates the segments part by part, and charges the memory of each part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sluice.runtime.shuffle.worker.storage.budget import LOCATED_ROW_BYTES, PLANNED_ROW_BYTES, Holding
from sluice.runtime.shuffle.worker.storage.located import Located
from sluice.runtime.shuffle.worker.storage.planning import chunks
from sluice.runtime.shuffle.worker.storage.volume import ROW, Rows, Run, Volume

WINDOW_ROWS = 4 << 10
"""The number of segments that are prepared for sending at a time."""

Runs = Sequence[tuple[int, Run]]
"""Runs, each with the number of its volume."""


def windows(rows: Rows, volumes: npt.NDArray[np.int32]) -> Iterator[Located]:
    """Yield the segments in windows of at most :data:`WINDOW_ROWS`."""
    for start in range(0, len(rows), WINDOW_ROWS):
        yield Located(rows[start : start + WINDOW_ROWS], volumes[start : start + WINDOW_ROWS])


def cost_of(rows: int) -> int:
    """Return the memory of a part with this number of segments, in bytes."""
    return rows * PLANNED_ROW_BYTES + min(rows, WINDOW_ROWS) * LOCATED_ROW_BYTES


class ReadPlan(Iterator[Located]):
    """Iterates over the locations of the segments of partitions ``first`` … ``end`` - 1 of ``maps``, in sending order.

    Partitions are in ascending order. The segments of a partition are in the order of the files, or sorted by
    (map, sequence) if ``ordered``. If there was no room for the next part, ``next`` can be called again.

    Args:
        begin: called once, when the first part is requested; returns the runs that have segments of the given maps.
        volumes: the volumes that the runs refer to; more may be added.
        first, end: the range of partitions.
        maps: the map ids, ascending, all committed.
        ordered: whether to sort by (map, sequence) within a partition.
        holding: charged for a part while it is in use.
    """

    def __init__(
        self,
        begin: Callable[[frozenset[int]], Runs],
        volumes: Sequence[Volume],
        first: int,
        end: int,
        maps: npt.NDArray[np.int64],
        *,
        ordered: bool,
        holding: Holding,
    ) -> None:
        self._begin = begin
        self._volumes = volumes
        self._range = first, end
        self._maps = maps
        self._ordered = ordered
        self._holding = holding
        self._runs: Runs | None = None
        self._parts: list[tuple[int, int]] = []
        self._charged = 0
        self._windows: Iterator[Located] = iter(())

    def __next__(self) -> Located:
        """Return the next segments, at least one.

        Raises:
            QuotaExceeded: there is no room for them; :class:`RetryableQuotaExceeded` if there may be room later.
            ShuffleError: they cannot be located.
        """
        while (found := next(self._windows, None)) is None:
            self.close()
            wanted: frozenset[int] | None = None
            if self._runs is None:
                wanted = frozenset(self._maps.tolist())
                self._runs = self._begin(wanted)
                self._parts = list(chunks([run for _, run in self._runs], *self._range))[::-1]
            if not self._parts:
                raise StopIteration
            first, end = self._parts[-1]
            cost = cost_of(sum(stop - start for start, stop in (run.span(first, end) for _, run in self._runs)))
            self._holding.take(cost)
            self._charged = cost
            self._parts.pop()
            rows, volumes = self._locate(first, end, wanted or frozenset(self._maps.tolist()))
            self._windows = windows(rows, volumes)
        return found

    def close(self) -> None:
        """Give back the memory of the current part."""
        self._windows = iter(())
        self._holding.charge(-self._charged)
        self._charged = 0

    def _locate(self, first: int, end: int, wanted: Collection[int]) -> tuple[Rows, npt.NDArray[np.int32]]:
        found, homes = [], []
        for index, run in self._runs or ():
            rows = self._volumes[index].rows(run, first, end)
            if not run.maps.issubset(wanted):
                rows = rows[np.isin(rows["map"], list(run.maps.intersection(wanted)))]
            if len(rows):
                found.append(rows)
                homes.append(index)
        if not found:
            return np.empty(0, ROW), np.empty(0, np.int32)
        rows = found[0] if len(found) == 1 else np.concatenate(found)
        volumes = np.repeat(np.array(homes, np.int32), [len(each) for each in found])
        if self._ordered:
            order = np.lexsort((rows["sequence"], rows["map"], rows["partition"]))
        elif len(found) > 1:
            order = np.lexsort((rows["offset"], volumes, rows["partition"]))
        else:
            return rows, volumes
        return rows[order], volumes[order]
