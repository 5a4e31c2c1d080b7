"""One shuffle of one job on this worker: its frames in memory, its runs on disk, and the state of its maps."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sluice.runtime.shuffle.data_plane import (
    SEGMENT_ENTRY,
    DiskFailed,
    Draining,
    MapUnknown,
    ProducerAborted,
    Share,
    ShuffleError,
)
from sluice.runtime.shuffle.worker.config import Layout, Policy
from sluice.runtime.shuffle.worker.storage.announced_maps import AnnouncedMaps, Clock, Progress
from sluice.runtime.shuffle.worker.storage.at_rest import SegmentCipher
from sluice.runtime.shuffle.worker.storage.attempts import Frame
from sluice.runtime.shuffle.worker.storage.budget import Holding, unlimited
from sluice.runtime.shuffle.worker.storage.disks import Disk, Disks
from sluice.runtime.shuffle.worker.storage.located import Located
from sluice.runtime.shuffle.worker.storage.map_table import MapTable
from sluice.runtime.shuffle.worker.storage.planning import rows_of, touches
from sluice.runtime.shuffle.worker.storage.reading import ReadPlan
from sluice.runtime.shuffle.worker.storage.shuffle_files import ShuffleFiles
from sluice.runtime.shuffle.worker.storage.slab_pool import Lease, SlabPool
from sluice.runtime.shuffle.worker.storage.spare_files import SpareFiles
from sluice.runtime.shuffle.worker.storage.unindexed_frames import UnindexedFrames, size_of_run
from sluice.runtime.shuffle.worker.storage.volume import ROW, Committed, Rows, Run, Volume

MAX_REASON_CHARACTERS = 500
"""Maximum length of the reason why a shuffle was given up."""


class ShuffleData:
    """The segments of one shuffle; thread-safe.

    Args:
        name: ``job/shuffle``; used in messages, and as the folder on each disk.
        disks: the disks to write to.
        pool: the managed memory of its frames.
        layout: what a run holds.
        on_written: called with the size in bytes of each write.
        policy: when a commit is answered.
        cipher: encrypts what is written; None: no encryption.
        clock: measures how long a producer is silent.
        ripe_bytes: with this much data in memory, ``on_ripe`` is called, once until the next :meth:`flush`; 0: never.
        on_ripe: schedules a :meth:`flush`, so that a later commit has less to wait for.
        spares: keeps the files of ended shuffles for reuse, including those of this shuffle.
        holding: charged for the memory and the data until :meth:`remove`.
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
        self._frames = UnindexedFrames(pool, self._holding)
        self._files = ShuffleFiles(name, disks, spares or SpareFiles(0), self._holding, cipher)
        self._runs: list[tuple[int, Run]] = []
        # Policies that answer commits at once keep data in memory on purpose. A run of layout ``map`` is one whole map.
        early = policy is Policy.BLOCKING and layout is Layout.REDUCE
        self._ripe_bytes = ripe_bytes if early else 0
        self._on_ripe = on_ripe
        self._is_ripe = False
        self.announced = AnnouncedMaps(name, clock, self._holding)
        """Its announced maps and their followers."""
        self._followed = False
        """Whether its writers announce maps to followers. Maps are then kept in memory under any policy."""

    @property
    def memory_bytes(self) -> int:
        """The managed memory of the frames that no index names: data that is not on disk, and tables."""
        return self._frames.memory_bytes

    @property
    def _at_once(self) -> bool:
        return self._followed or self._policy is not Policy.BLOCKING

    # Writing

    def check_open(self, map_id: int, *, draining: bool) -> None:
        """Raise :class:`ShuffleError` if the map accepts no segments; while ``draining``, new maps do not."""
        self.announced.check_open()
        with self._lock:
            if draining and map_id not in self._maps:
                raise Draining("this worker is draining and accepts no new maps", "choose another", map_id=map_id)
            self._maps.opened(map_id)

    def add(self, map_id: int, sequences: list[int], table: bytes, lease: Lease, *, write_through: bool) -> None:
        """Take over a frame of a map and its lease.

        Args:
            map_id: the map.
            sequences: the sequence numbers of its segments.
            table: the rows of its segments, in the format of PUSH.
            lease: the memory with their data.
            write_through: write the data immediately; otherwise it waits to be sorted with other data.

        Raises:
            ShuffleError: the frame is refused; the caller keeps the lease.
        """
        write_through = write_through and not (self._files.sealed or self._followed or self._policy is Policy.PIPELINED)
        self.announced.touch()
        if write_through:
            pieces = [self._pool.view[start:stop] for start, stop, _ in lease.extents]
            volume, start = self._files.write(lambda volume: volume.write(pieces, lease.size))
            frame = Frame(map_id, table, [(start, len(sequences))], None, volume, lease.table_bytes)
        else:
            places = [(start, count) for start, _, count in lease.extents]
            frame = Frame(map_id, table, places, lease, table_bytes=lease.table_bytes)
        with self._lock:
            self._maps.take(map_id, sequences, lease.size)
            self._frames.add(frame)
            ripens = 0 < self._ripe_bytes <= self.memory_bytes and not (self._is_ripe or self._followed)
            self._is_ripe |= ripens
        if ripens and self._on_ripe is not None:
            self._on_ripe(self)
        if write_through:
            self._pool.release_data(lease)
            self._on_written(lease.size)

    def commit(self, map_id: int, segments: int, size: int) -> None:
        """Make a map readable; under :attr:`Policy.BLOCKING` when all of it is on disk. Idempotent.

        Raises:
            MapUnknown: segments of the map are missing here.
            DiskFailed: no disk can write it.
        """
        self._commit(map_id, segments, size)

    def announce(self, map_id: int, segments: int, size: int, index: int, writers: int) -> int:
        """Commit the next map of a writer at once, for readers that follow it. Idempotent.

        Returns how many bytes of this writer's maps the readers have not taken.

        Raises:
            MapUnknown: segments of the map, or earlier maps of the writer, are missing here.
            AttemptSuperseded: another attempt of the map counts; this one is dropped.
            ShuffleError: the shuffle was given up, or the job has too many maps.
        """
        share = Share(writers, index % writers)
        self._followed = True
        try:
            self.announced.claim(share, index, map_id)
        except ShuffleError:
            self.abort(map_id)
            raise
        try:
            self._commit(map_id, segments, size)
            return self.announced.commit(share, map_id, size)
        except BaseException:
            self.announced.disclaim(share, map_id)
            raise

    def forget(self, share: Share, maps: int) -> Progress:
        """Forget the first ``maps`` maps of a writer, which all readers have received, and free their memory.

        Their data on disk stays there until the shuffle is removed.
        """
        with self._writing:
            forgotten, progress = self.announced.forget(share, maps)
            with self._lock:
                dropped = [frame for map_id in forgotten for frame in self._frames.take(map_id)]
                self._frames.discharge(dropped)
                self._maps.forget(forgotten)
                self._unwritten = [each for each in self._unwritten if each.map_id in self._maps]
                before, self._runs = self._runs, [each for each in self._runs if self._maps.has_any(each[1].maps)]
                self._holding.charge(sum(size_of_run(run) for _, run in self._runs))
                self._holding.charge(-sum(size_of_run(run) for _, run in before))
            self._frames.release(dropped)
        return progress

    def _commit(self, map_id: int, segments: int, size: int) -> None:
        with self._lock:
            attempt = self._maps.complete(map_id, segments, size)
            if attempt is None:
                return
            committed = Committed(map_id, segments, size)
            if self._at_once:
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
        """Abort the shuffle for its producer: readers get ``reason``, and its memory is freed."""
        why = reason[:MAX_REASON_CHARACTERS] or "no reason given"
        self.announced.abort(ProducerAborted(f"shuffle {self.name} was given up: {why}"))
        with self._lock:
            dropped, self._unwritten = self._frames.take(), []
            self._frames.discharge(dropped)
            self._maps.fail_all()
        self._frames.release(dropped)

    def abort(self, map_id: int) -> None:
        """Drop an attempt unless it was committed. Its data on disk stays there but is not read."""
        with self._lock:
            if not self._maps.abort(map_id):
                return
            dropped = self._frames.take(map_id)
            self._frames.discharge(dropped)
        self._frames.release(dropped)

    def flush(self, only_map: int | None = None) -> int:
        """Write the frames in memory (of one map, or all) as one sorted run with its index; returns the bytes written.

        Raises:
            DiskFailed: no disk can write them; they stay in memory.
        """
        with self._writing:
            with self._lock:
                frames = self._frames.take(only_map)
                commits = [each for each in self._unwritten if only_map in {None, each.map_id}]
                self._unwritten = [each for each in self._unwritten if only_map not in {None, each.map_id}]
                self._is_ripe = False
            leases = [frame.lease for frame in frames if frame.lease is not None]
            size = sum(lease.size for lease in leases)
            try:
                runs, lost = self._files.write_frames(frames, size, self._pool.view)
            except BaseException:  # whatever it is, the frames must not be lost: their maps may still be committed
                with self._lock:
                    self._frames.put_back(frames)
                    self._unwritten = commits + self._unwritten
                raise
            with self._lock:
                self._runs += runs
                self._frames.discharge(frames)
                self._holding.charge(sum(size_of_run(run) for _, run in runs))
            self._lose(lost)
            self._frames.release(frames)
            self._write_commits(commits)
        if leases:
            self._on_written(size)
        return size

    def _write_commits(self, commits: list[Committed]) -> None:
        """Record commits that were answered before their segments were written."""
        for committed in commits:
            if self._maps[committed.map_id].committed:
                with contextlib.suppress(DiskFailed):  # the map is served nevertheless: its state is in memory
                    self._files.write(functools.partial(Volume.append_commit, committed=committed))

    def _lose(self, maps: list[int]) -> None:
        """Mark attempts as failed because their segments are lost; none of them is committed."""
        if not maps:
            return
        with self._lock:
            self._maps.fail(maps)

    def spill(self) -> int:
        """Write all frames in memory, committed or not; returns the bytes written."""
        if self._layout is Layout.REDUCE:
            return self.flush()
        with self._lock:
            maps = self._frames.maps() | {each.map_id for each in self._unwritten}
        return sum(self.flush(map_id) for map_id in sorted(maps))

    # Reading

    def check_committed(self, maps: npt.NDArray[np.int64]) -> None:
        """Raise :class:`MapUnknown` unless all of ``maps`` are committed."""
        with self._lock:
            self._maps.check_committed(maps.tolist())

    def committed(self) -> list[Committed]:
        """Return all committed maps."""
        with self._lock:
            return self._maps.committed()

    def open_maps(self) -> int:
        """Return the number of open attempts."""
        with self._lock:
            return self._maps.open_count()

    def plan(
        self, first: int, end: int, maps: npt.NDArray[np.int64], *, ordered: bool, holding: Holding | None = None
    ) -> ReadPlan:
        """Return a plan that locates the segments of partitions ``first`` … ``end`` - 1 of ``maps`` part by part.

        ``maps`` must be ascending and committed. Each part is charged to ``holding`` while it is in use.
        """

        def begin(wanted: frozenset[int]) -> list[tuple[int, Run]]:
            if self._at_once:
                self._write_committed(wanted)
                self.check_committed(maps)
            with self._lock:
                return [(index, run) for index, run in self._runs if touches(run, first, end, wanted)]

        return ReadPlan(begin, self._files.volumes, first, end, maps, ordered=ordered, holding=holding or unlimited())

    def _write_committed(self, wanted: frozenset[int]) -> None:
        """Write out all data, so that the committed maps ``wanted`` are on disk; raises :class:`DiskFailed`."""
        self.spill()
        with self._writing, self._lock:
            if not wanted.isdisjoint([each.map_id for each in self._unwritten]):
                raise DiskFailed(f"committed maps of shuffle {self.name} cannot be written out")

    def read(self, at: Located, row: int, end: int, view: memoryview) -> None:
        """Read the data of segments ``row`` … ``end`` - 1 into ``view``; see :meth:`ShuffleFiles.read` for errors."""
        self._files.read(at, row, end, view)

    def locate_in_memory(self, first: int, end: int, maps: Collection[int]) -> tuple[Rows, int] | None:
        """Locate the segments of these partitions and maps in memory.

        Returns the rows, sorted by (partition, map, sequence), and the number of moves for :meth:`copy`; None unless
        all of these maps are in memory.
        """
        with self._lock:
            if not all(map_id in self._maps for map_id in maps):
                return None
            frames, moves = self._frames.in_memory(maps), self._frames.moves
            missing = sum(self._maps[map_id].segments for map_id in maps)
        missing -= sum(len(frame.table) for frame in frames) // SEGMENT_ENTRY.itemsize
        if missing:
            return None
        rows = rows_of(frames) if frames else np.empty(0, ROW)
        rows = rows[(rows["partition"] >= first) & (rows["partition"] < end)]
        return rows[np.lexsort((rows["sequence"], rows["map"], rows["partition"]))], moves

    def copy(self, at: Located, moves: int, row: int, end: int, view: memoryview) -> bool:
        """Copy segments ``row`` … ``end`` - 1 from memory into ``view``; False if frames moved since ``moves``."""
        region = self._pool.view
        filled = 0
        with self._lock:
            if self._frames.moves != moves:
                return False
            for offset, length in zip(at.offsets[row:end], at.lengths[row:end], strict=True):
                view[filled : filled + length] = region[offset : offset + length]
                filled += length
        return True

    # Life

    def recover(self, disk: Disk, directory: Path) -> None:
        """Recover what an earlier process left in ``directory``; call this for each disk before :meth:`settle`."""
        for entry in self._files.recover(disk, directory):
            if isinstance(entry, Committed):
                self._maps.recovered(entry)
            else:
                self._runs.append(entry)
                self._holding.charge(size_of_run(entry[1]))

    def finish_recovery(self) -> int:
        """Finish the recovery: drop maps with missing segments; returns the number of committed maps."""
        segments: dict[int, int] = {}
        for index, run in self._runs:
            rows = self._files.volumes[index].rows(run, 0, 1 << 32)
            ids, counts = np.unique(rows["map"], return_counts=True)
            for map_id, count in zip(ids.tolist(), counts.tolist(), strict=True):
                segments[map_id] = segments.get(map_id, 0) + count
        return self._maps.finish_recovery(segments)

    @property
    def disk_bytes(self) -> int:
        """The size of its files in bytes."""
        return self._files.size

    def remove(self) -> None:
        """Remove everything in memory and on disk."""
        with self._writing:
            with self._lock:
                self._maps.release()
                frames = self._frames.clear()
                self._runs, self._unwritten = [], []
            self._frames.release(frames)
            self._files.remove()
        self.announced.abort(MapUnknown(f"shuffle {self.name} was released"))
        self._holding.close()
