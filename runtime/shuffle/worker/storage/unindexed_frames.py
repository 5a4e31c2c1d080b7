"""The frames of one shuffle whose segments no index names yet, and their charges."""

from __future__ import annotations

from collections.abc import Collection

from sluice.runtime.shuffle.data_plane import SEGMENT_ENTRY
from sluice.runtime.shuffle.worker.storage.attempts import Frame
from sluice.runtime.shuffle.worker.storage.budget import FRAME_BYTES, ROW_BYTES, RUN_MAP_BYTES, Holding
from sluice.runtime.shuffle.worker.storage.slab_pool import SlabPool
from sluice.runtime.shuffle.worker.storage.volume import Run


class UnindexedFrames:
    """Frames by map, in the order of arrival. The shuffle's lock guards all methods except :meth:`release`.

    Args:
        pool: the pool of their leases.
        holding: charged for each segment until a run has it, as if each segment had its own partition.
    """

    def __init__(self, pool: SlabPool, holding: Holding) -> None:
        self._pool = pool
        self._holding = holding
        self._frames: dict[int, list[Frame]] = {}
        self.moves = 0
        """Changes whenever frames leave memory. Places that were located before may then be wrong."""
        self.memory_bytes = 0
        """The managed memory of the frames, including those that were taken but not discharged."""

    def add(self, frame: Frame) -> None:
        """Add a frame and charge for it; raises :class:`QuotaExceeded`."""
        self._holding.take(_index_size_of(frame), frame.stored_bytes)
        self._frames.setdefault(frame.map_id, []).append(frame)
        self.memory_bytes += frame.memory_bytes

    def take(self, only_map: int | None = None) -> list[Frame]:
        """Take out all frames, or those of one map; they stay charged."""
        if only_map is None:
            taken, self._frames = [frame for frames in self._frames.values() for frame in frames], {}
        else:
            taken = self._frames.pop(only_map, [])
        self.moves += bool(taken)
        return taken

    def put_back(self, frames: list[Frame]) -> None:
        """Put back frames that were taken but could not be written."""
        later, self._frames = self._frames, {}
        for frame in [*frames, *(each for own in later.values() for each in own)]:
            self._frames.setdefault(frame.map_id, []).append(frame)

    def discharge(self, frames: list[Frame]) -> None:
        """Give back the charge of frames that were taken, and are now written or dropped."""
        self.memory_bytes -= sum(frame.memory_bytes for frame in frames)
        self._holding.store(-sum(frame.stored_bytes for frame in frames))
        self._holding.charge(-sum(_index_size_of(frame) for frame in frames))

    def release(self, frames: list[Frame]) -> None:
        """Give back the managed memory of frames that were discharged."""
        self._pool.release([frame.lease for frame in frames if frame.lease is not None])
        self._pool.release_tables(sum(frame.table_bytes for frame in frames if frame.lease is None))

    def clear(self) -> list[Frame]:
        """Take out all frames of a shuffle whose holding is about to be closed."""
        self.moves += 1
        self.memory_bytes = 0
        frames, self._frames = self._frames, {}
        return [frame for own in frames.values() for frame in own]

    def maps(self) -> set[int]:
        """Return the ids of the maps that have frames."""
        return set(self._frames)

    def in_memory(self, maps: Collection[int]) -> list[Frame]:
        """Return the frames of these maps whose data is in memory."""
        return [frame for each in maps for frame in self._frames.get(each, ()) if frame.lease is not None]


def size_of_run(run: Run) -> int:
    """Return the memory of a run's index, in bytes."""
    return FRAME_BYTES + len(run.maps) * RUN_MAP_BYTES + len(run.partitions) * ROW_BYTES


def _index_size_of(frame: Frame) -> int:
    """Return the memory of a frame without its data and table, including the maximum for its rows in an index."""
    return FRAME_BYTES + RUN_MAP_BYTES + len(frame.table) // SEGMENT_ENTRY.itemsize * ROW_BYTES
