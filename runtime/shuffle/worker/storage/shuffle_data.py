"""One shuffle of one job on this worker: what is in memory, what is on disk, and which maps count."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sluice.runtime.shuffle.data_plane.errors import (
    DiskFailed,
    Draining,
    MapUnknown,
    Moved,
    ProducerAborted,
    ShuffleError,
)
from sluice.runtime.shuffle.data_plane.frames import SEGMENT_ENTRY
from sluice.runtime.shuffle.worker.config import Layout, Policy
from sluice.runtime.shuffle.worker.storage.announced_maps import AnnouncedMaps, Clock
from sluice.runtime.shuffle.worker.storage.at_rest import SegmentCipher
from sluice.runtime.shuffle.worker.storage.attempts import Frame
from sluice.runtime.shuffle.worker.storage.budget import (
    FRAME_BYTES,
    ROW_BYTES,
    RUN_MAP_BYTES,
    Holding,
    unlimited,
)
from sluice.runtime.shuffle.worker.storage.disks import Disk, Disks
from sluice.runtime.shuffle.worker.storage.located import Located
from sluice.runtime.shuffle.worker.storage.map_table import MapTable
from sluice.runtime.shuffle.worker.storage.planning import (
    rows_of,
    touches,
)
from sluice.runtime.shuffle.worker.storage.reading import ReadPlan
from sluice.runtime.shuffle.worker.storage.shuffle_files import ShuffleFiles
from sluice.runtime.shuffle.worker.storage.slab_pool import Lease, SlabPool
from sluice.runtime.shuffle.worker.storage.spare_files import SpareFiles
from sluice.runtime.shuffle.worker.storage.volume import (
    ROW,
    Committed,
    Rows,
    Run,
    Volume,
)

_LOG = logging.getLogger(__name__)

MAX_REASON_CHARACTERS = 500
"""So much is kept of why a shuffle was given up."""


class ShuffleData:
    """The segments of one shuffle; safe for use by many threads.

    Args:
        name: ``job/shuffle``; for messages, and the folder on each disk.
        disks: where to write.
        pool: where frames are.
        layout: what a run holds.
        on_written: told the bytes of each run.
        policy: when a commit is answered.
        cipher: seals what is written; None: nothing does.
        clock: for how long a producer is silent.
        ripe_bytes: when so much is in memory, `on_ripe` is told, once until the next :meth:`flush`; 0: never.
        on_ripe: sees to it that what is in memory is written out before somebody waits for that.
        spares: files to be written over, and where those of this shuffle go in the end.
        holding: what it is charged to; given back by :meth:`remove`.
    """

    def __init__(
        self,
        name: str,
        disks: Disks,
        pool: SlabPool,
        layout: Layout,
        on_written: Callable[[int], None],
        *,
        policy: Policy = Policy.BLOCKING,
        cipher: SegmentCipher | None = None,
        clock: Clock = time.monotonic,
        ripe_bytes: int = 0,
        on_ripe: Callable[[ShuffleData], None] | None = None,
        spares: SpareFiles | None = None,
        holding: Holding | None = None,
    ) -> None:
        self.name = name
        self._holding = holding or unlimited()
        self._pool = pool
        self._layout = layout
        self._on_written = on_written
        self._policy = policy
        self._unwritten: list[Committed] = []
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._maps = MapTable(name, self._holding)
        self._frames: list[Frame] = []
        self._files = ShuffleFiles(name, disks, spares or SpareFiles(0), self._holding, cipher)
        self._runs: list[tuple[int, Run]] = []
        self._moves = 0
        # Who answers commits at once keeps data in memory on purpose, and a run of one map is written when it is whole.
        early = policy is Policy.BLOCKING and layout is Layout.REDUCE
        self._ripe_bytes = ripe_bytes if early else 0
        self._on_ripe = on_ripe
        self._is_ripe = False
        self.announced = AnnouncedMaps(name, clock, self._holding)
        """Who follows it, and how far it is."""
        self.forward: Callable[[int], None] | None = None
        """Announces an attempt that was committed here, where :attr:`announced` has moved to."""
        self.memory_bytes = 0
        """Of frames that are not written out, and of the tables of those that no index names."""

    # Writing

    def check_open(self, map_id: int, *, draining: bool) -> None:
        """Refuse a push for a map that can take no more, and while ``draining`` for one that is new."""
        self.announced.check_open()
        with self._lock:
            if draining and map_id not in self._maps:
                raise Draining("this worker takes no new maps", "choose another", map_id=map_id)
            self._maps.opened(map_id)

    def begin(self, map_id: int) -> None:
        """An attempt that is to be announced begins, and may end here, whoever has taken over by then.

        Raises:
            Moved: it is to be written where the shuffle is now.
        """
        self.announced.check_here()
        with self._lock:
            self._maps.opened(map_id)

    def add(self, map_id: int, sequences: list[int], table: bytes, lease: Lease, *, write_through: bool) -> None:
        """Take over a frame; from here on its room is this object's business.

        Args:
            map_id: whose it is.
            sequences: the numbers of its segments.
            table: its segments' rows as in PUSH.
            lease: where their data are.
            write_through: write the data at once, as they are; otherwise they wait to be sorted with others.

        Raises:
            ShuffleError: it is not taken, and its room still the caller's.
        """
        write_through = write_through and not self._files.sealed and self._policy is not Policy.PIPELINED
        self.announced.touch()
        if write_through:
            pieces = [self._pool.view[start:stop] for start, stop, _ in lease.extents]
            volume, start = self._files.write(lambda volume: volume.write(pieces, lease.size))
            frame = Frame(map_id, table, [(start, len(sequences))], None, volume, lease.table_bytes)
        else:
            places = [(start, count) for start, _, count in lease.extents]
            frame = Frame(map_id, table, places, lease, table_bytes=lease.table_bytes)
        with self._lock:
            self._take(frame, sequences, lease.size)
            self._frames.append(frame)
            self.memory_bytes += frame.memory_bytes
            ripens = bool(self._ripe_bytes) and self.memory_bytes >= self._ripe_bytes and not self._is_ripe
            self._is_ripe |= ripens
        if ripens and self._on_ripe is not None:
            self._on_ripe(self)
        if write_through:
            self._pool.release_data(lease)
            self._on_written(lease.size)

    def commit(
        self, map_id: int, segments: int, size: int, index: int | None = None, *, handed_over: bool = False
    ) -> None:
        """Make a map readable, once all it promised is on disk; again is harmless.

        ``index`` announces it to readers that follow; then it is the only attempt of that map which counts here. Where
        the shuffle has moved on it is announced there, unless it was ``handed_over`` itself: that is refused.

        Raises:
            MapUnknown: it is not complete here.
            DiskFailed: no disk takes it.
            AttemptSuperseded: another attempt of that map counts; this one is forgotten.
        """
        if index is None:
            self._commit(map_id, segments, size)
            return
        try:
            self.announced.claim(index, map_id)
        except Moved:
            if handed_over or self.forward is None:
                raise
            self._commit(map_id, segments, size)
            self.forward(map_id)
            return
        except ShuffleError:
            self.abort(map_id)
            raise
        try:
            self._commit(map_id, segments, size)
            self.announced.commit(index, map_id)
        except BaseException:
            self.announced.disclaim(index, map_id)
            raise

    def _commit(self, map_id: int, segments: int, size: int) -> None:
        with self._lock:
            attempt = self._maps.complete(map_id, segments, size)
            if attempt is None:
                return
            committed = Committed(map_id, segments, size)
            if self._policy is not Policy.BLOCKING:
                self._unwritten.append(committed)
                self._maps.end(attempt, committed=True)
                return
        self.flush(map_id if self._layout is Layout.MAP else None)
        if attempt.aborted:
            raise DiskFailed(f"map {map_id} was lost with a disk", "push it again", map_id=map_id)
        with self._writing:
            self._files.write(lambda volume: volume.append_commit(committed))
            with self._lock:
                self._maps.end(attempt, committed=True)

    def give_up(self, reason: str) -> None:
        """The producer says that nothing of this shuffle counts: readers hear it, and the memory is free."""
        why = reason[:MAX_REASON_CHARACTERS] or "no reason given"
        self.announced.abort(ProducerAborted(f"shuffle {self.name} was given up: {why}"))
        with self._lock:
            dropped, self._frames, self._unwritten = self._frames, [], []
            self._drop(dropped)
            self._moves += 1
            self._maps.fail_all()
        self._release(dropped)

    def abort(self, map_id: int) -> None:
        """Forget an attempt that was not committed; what is on disk of it stays there unread."""
        with self._lock:
            if not self._maps.abort(map_id):
                return
            dropped = [frame for frame in self._frames if frame.map_id == map_id]
            self._frames = [frame for frame in self._frames if frame.map_id != map_id]
            self._moves += bool(dropped)
            self._drop(dropped)
        self._release(dropped)

    def flush(self, only_map: int | None = None) -> int:
        """Write what is in memory (of one map, or all of it) as one sorted run, and the index of all that is written.

        Returns the bytes of data written.

        Raises:
            DiskFailed: no disk takes it; it stays where it is.
        """
        with self._writing:
            with self._lock:
                frames = [frame for frame in self._frames if only_map in {None, frame.map_id}]
                commits = [each for each in self._unwritten if only_map in {None, each.map_id}]
                self._moves += bool(frames)
                self._is_ripe = False
                if only_map is None:
                    self._frames, self._unwritten = [], []
                else:
                    self._frames = [frame for frame in self._frames if frame.map_id != only_map]
                    self._unwritten = [each for each in self._unwritten if each.map_id != only_map]
            leases = [frame.lease for frame in frames if frame.lease is not None]
            size = sum(lease.size for lease in leases)
            try:
                runs, lost = self._files.write_frames(frames, size, self._pool.view)
            except ShuffleError:
                with self._lock:
                    self._frames = frames + self._frames
                    self._unwritten = commits + self._unwritten
                raise
            with self._lock:
                self._runs += runs
                self._drop(frames)
                self._holding.charge(sum(_size_of(run) for _, run in runs))
            self._lose(lost)
            self._release(frames)
            self._write_commits(commits)
        if leases:
            self._on_written(size)
        return size

    def _write_commits(self, commits: list[Committed]) -> None:
        """Write down commits that were answered already, whose segments are written now."""
        for committed in commits:
            if self._maps[committed.map_id].committed:
                with contextlib.suppress(DiskFailed):  # it goes on being served from what is known in memory
                    self._files.write(functools.partial(Volume.append_commit, committed=committed))

    def _lose(self, maps: list[int]) -> None:
        """Segments of ``maps``, none of them committed, cannot be found again: these attempts have failed."""
        if not maps:
            return
        with self._lock:
            self._maps.fail(maps)
        self.announced.lose(maps)

    def spill(self) -> int:
        """Write out what is in memory, whoever committed it or not; returns the bytes written."""
        if self._layout is Layout.REDUCE:
            return self.flush()
        with self._lock:
            maps = {frame.map_id for frame in self._frames} | {each.map_id for each in self._unwritten}
        return sum(self.flush(map_id) for map_id in sorted(maps))

    # Reading

    def check_committed(self, maps: npt.NDArray[np.int64]) -> None:
        """Refuse to read a map that is not committed."""
        with self._lock:
            self._maps.check_committed(maps.tolist())

    def committed(self) -> list[Committed]:
        """All maps that can be read."""
        with self._lock:
            return self._maps.committed()

    def open_maps(self) -> int:
        """How many have begun and are neither committed nor over."""
        with self._lock:
            return self._maps.open_count()

    def plan(
        self, first: int, end: int, maps: npt.NDArray[np.int64], *, ordered: bool, holding: Holding | None = None
    ) -> ReadPlan:
        """Where the segments of partitions ``first`` … ``end`` - 1 of ``maps`` (ascending, committed) are; what is
        found at a time is charged to ``holding``.
        """

        def begin(wanted: frozenset[int]) -> list[tuple[int, Run]]:
            if self._policy is not Policy.BLOCKING:
                self._write_committed(wanted)
                self.check_committed(maps)
            with self._lock:
                return [(index, run) for index, run in self._runs if touches(run, first, end, wanted)]

        return ReadPlan(begin, self._files.volumes, first, end, maps, ordered=ordered, holding=holding or unlimited())

    def _write_committed(self, wanted: frozenset[int]) -> None:
        """See to it that ``wanted``, all of them committed, are written out, by this thread or another one."""
        self.spill()
        with self._writing, self._lock:
            if not wanted.isdisjoint([each.map_id for each in self._unwritten]):
                raise DiskFailed(f"what was committed to shuffle {self.name} cannot be written out")

    def read(self, at: Located, row: int, end: int, view: memoryview) -> None:
        """Read the data of segments ``row`` … ``end`` - 1 into ``view``; see :meth:`ShuffleFiles.read` for errors."""
        self._files.read(at, row, end, view)

    def locate_in_memory(self, first: int, end: int, maps: Collection[int]) -> tuple[Rows, int] | None:
        """Where in memory the segments of partitions ``first`` … ``end`` - 1 of ``maps`` are, by (partition, map,
        sequence), and for :meth:`copy` until when; None when not all of these maps is in memory.
        """
        with self._lock:
            frames = [frame for frame in self._frames if frame.map_id in maps and frame.lease is not None]
            moves = self._moves
            missing = sum(self._maps[map_id].segments for map_id in maps)
        missing -= sum(len(frame.table) for frame in frames) // SEGMENT_ENTRY.itemsize
        if missing:
            return None
        rows = rows_of(frames) if frames else np.empty(0, ROW)
        rows = rows[(rows["partition"] >= first) & (rows["partition"] < end)]
        return rows[np.lexsort((rows["sequence"], rows["map"], rows["partition"]))], moves

    def copy(self, at: Located, moves: int, row: int, end: int, view: memoryview) -> bool:
        """Copy segments ``row`` … ``end`` - 1 out of memory into ``view``; False when something was moved meanwhile."""
        region = self._pool.view
        filled = 0
        with self._lock:
            if self._moves != moves:
                return False
            for offset, length in zip(at.offsets[row:end], at.lengths[row:end], strict=True):
                view[filled : filled + length] = region[offset : offset + length]
                filled += length
        return True

    # Life

    def recover(self, disk: Disk, directory: Path) -> None:
        """Take over what an earlier process left in ``directory``; call for each disk before :meth:`settle`."""
        for entry in self._files.recover(disk, directory):
            if isinstance(entry, Committed):
                self._maps.recovered(entry)
            else:
                self._runs.append(entry)
                self._holding.charge(_size_of(entry[1]))

    def settle(self) -> int:
        """After recovery: forget commits whose segments are not all there; returns how many maps count."""
        segments: dict[int, int] = {}
        for index, run in self._runs:
            rows = self._files.volumes[index].rows(run, 0, 1 << 32)
            ids, counts = np.unique(rows["map"], return_counts=True)
            for map_id, count in zip(ids.tolist(), counts.tolist(), strict=True):
                segments[map_id] = segments.get(map_id, 0) + count
        return self._maps.settle(segments)

    @property
    def disk_bytes(self) -> int:
        """In files."""
        return self._files.size

    def remove(self) -> None:
        """Forget everything, in memory and on disk."""
        with self._writing:
            with self._lock:
                self._maps.release()
                self._moves += 1
                frames, self._frames = self._frames, []
                self._runs, self._unwritten = [], []
                self.memory_bytes = 0
            self._release(frames)
            self._files.remove()
        self.announced.abort(MapUnknown(f"shuffle {self.name} was released"))
        self._holding.close()

    def _take(self, frame: Frame, sequences: list[int], size: int) -> None:
        """Charge for a frame's segments, until a run has them, as if each were of another partition."""
        self._maps.take(frame.map_id, sequences, size)
        self._holding.take(_index_size_of(len(sequences)), frame.stored_bytes)

    def _drop(self, frames: list[Frame]) -> None:
        """These are no frames any more, under the lock."""
        self.memory_bytes -= sum(frame.memory_bytes for frame in frames)
        self._holding.store(-sum(frame.stored_bytes for frame in frames))
        self._holding.charge(-sum(_index_size_of(len(frame.table) // SEGMENT_ENTRY.itemsize) for frame in frames))

    def _release(self, frames: list[Frame]) -> None:
        """Give back the managed memory that they use."""
        self._pool.release([frame.lease for frame in frames if frame.lease is not None])
        self._pool.release_tables(sum(frame.table_bytes for frame in frames if frame.lease is None))


def _index_size_of(segments: int) -> int:
    """What a frame takes of memory beside its data and its table, and its segments in an index at most."""
    return FRAME_BYTES + RUN_MAP_BYTES + segments * ROW_BYTES


def _size_of(run: Run) -> int:
    return FRAME_BYTES + len(run.maps) * RUN_MAP_BYTES + len(run.partitions) * ROW_BYTES
