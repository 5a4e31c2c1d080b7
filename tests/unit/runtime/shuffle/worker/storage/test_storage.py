"""A shuffle's data on disk: sorted, recovered after a crash at any byte, and safe from disk faults."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.runtime.shuffle.data_plane.errors import (
    DiskFailed,
    FrameRefused,
    MapUnknown,
    SegmentCorrupt,
)
from sluice.runtime.shuffle.data_plane.frames import SEGMENT_ENTRY
from sluice.runtime.shuffle.worker.config import SLAB_BYTES, Layout, Policy
from sluice.runtime.shuffle.worker.storage import volume
from sluice.runtime.shuffle.worker.storage.at_rest import SegmentCipher
from sluice.runtime.shuffle.worker.storage.disks import Disk, Disks
from sluice.runtime.shuffle.worker.storage.shuffle_data import ShuffleData
from sluice.runtime.shuffle.worker.storage.slab_pool import SlabPool
from sluice.runtime.shuffle.worker.storage.spare_files import SpareFiles
from sluice.runtime.shuffle.worker.storage.volume import Volume

NAME = "a" * 32 + "/3"
SECRET = bytes(range(32))
Entry = tuple[int, int, int]
"""Partition, map, sequence."""


@dataclass
class Store:
    """One shuffle over directories that outlive it."""

    directories: Sequence[Path]
    layout: Layout = Layout.REDUCE
    free: dict[Path, int] = field(default_factory=dict)
    now: float = 0.0
    secret: bytes = b""
    policy: Policy = Policy.BLOCKING
    written: dict[Entry, bytes] = field(default_factory=dict)
    spares: SpareFiles = field(default_factory=lambda: SpareFiles(1 << 20))
    ripe_bytes: int = 0
    ripened: list[ShuffleData] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disks = Disks(self.directories, 100, 60.0, clock=lambda: self.now, free_bytes=self._free)
        self.restart()

    def _free(self, disk: Disk) -> int:
        return self.free.get(disk.path, 1 << 30)

    def _cipher(self) -> SegmentCipher | None:
        return SegmentCipher(self.secret, NAME) if self.secret else None

    def restart(self) -> None:
        """Restart as after a crash: only what is on disk remains."""
        self.pool = SlabPool(8 * SLAB_BYTES, 0.75, 0.5)
        self.data = self.shuffle(NAME)
        for disk in self.disks.all:
            if (disk.path / NAME).exists():
                self.data.recover(disk, disk.path / NAME)
        self.data.finish_recovery()

    def shuffle(self, name: str) -> ShuffleData:
        """Return a shuffle that uses the same memory and disks."""
        return ShuffleData(
            name,
            self.disks,
            self.pool,
            self.layout,
            lambda _: None,
            policy=self.policy,
            cipher=self._cipher(),
            ripe_bytes=self.ripe_bytes,
            on_ripe=self.ripened.append,
            spares=self.spares,
        )

    def push(self, map_id: int, segments: Sequence[tuple[int, int, bytes]], *, write_through: bool = False) -> None:
        """Push segments, given as (partition, sequence, data), in one frame."""
        lease = self.pool.lease("job", [len(data) for _, _, data in segments])
        left = list(segments)
        for start, _, count in lease.extents:
            at = start
            for _, _, data in left[:count]:
                self.pool.view[at : at + len(data)] = data
                at += len(data)
            left = left[count:]
        self.pool.received(lease)
        table = np.array([(partition, sequence, len(data), 7) for partition, sequence, data in segments], SEGMENT_ENTRY)
        try:
            self.data.add(map_id, table["sequence"].tolist(), table.tobytes(), lease, write_through=write_through)
        except BaseException:
            self.pool.release([lease])
            raise
        self.written |= {(partition, map_id, sequence): data for partition, sequence, data in segments}

    def commit(self, map_id: int) -> None:
        mine = [data for (_, each, _), data in self.written.items() if each == map_id]
        self.data.commit(map_id, len(mine), sum(map(len, mine)))

    def read(self, first: int, end: int, maps: Sequence[int], *, ordered: bool = False) -> list[tuple[Entry, bytes]]:
        wanted = np.array(sorted(maps), np.int64)
        self.data.check_committed(wanted)
        found = []
        for located in self.data.plan(first, end, wanted, ordered=ordered):
            for index in range(len(located)):
                view = memoryview(bytearray(located.lengths[index]))
                self.data.read(located, index, index + 1, view)
                entry = located.partitions[index], located.maps[index], located.sequences[index]
                found.append((entry, bytes(view)))
        return found

    def expected(self, first: int, end: int, maps: Sequence[int]) -> dict[Entry, bytes]:
        return {k: v for k, v in self.written.items() if first <= k[0] < end and k[1] in maps}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store([tmp_path / "disk"])


MAPS = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=50)), max_size=12), st.booleans()),
    min_size=1,
    max_size=5,
)


@given(
    maps=MAPS,
    layout=st.sampled_from(sorted(Layout)),
    first=st.integers(0, 5),
    ordered=st.booleans(),
    secret=st.sampled_from([b"", SECRET]),
    policy=st.sampled_from(sorted(Policy)),
    data=st.data(),
)
@settings(max_examples=30)
def test_committed_maps_can_be_read_before_and_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory,
    maps: list[tuple[list[tuple[int, bytes]], bool]],
    *,
    layout: Layout,
    first: int,
    ordered: bool,
    secret: bytes,
    policy: Policy,
    data: st.DataObject,
) -> None:
    store = Store([tmp_path_factory.mktemp("disk")], layout, secret=secret, policy=policy)
    for map_id, (segments, write_through) in enumerate(maps):
        numbered = [(partition, sequence, piece) for sequence, (partition, piece) in enumerate(segments)]
        while numbered:
            count = data.draw(st.integers(1, len(numbered)))
            store.push(map_id, numbered[:count], write_through=write_through)
            numbered = numbered[count:]
            if data.draw(st.booleans()):
                store.data.spill()
    wanted = sorted(data.draw(st.sets(st.integers(0, len(maps) - 1), min_size=1)))
    for map_id in wanted:
        store.commit(map_id)
    for _ in range(2):
        found = store.read(first, 6, wanted, ordered=ordered)
        assert len(found) == len(dict(found))
        assert dict(found) == store.expected(first, 6, wanted)
        partitions = [entry[0] for entry, _ in found]
        assert partitions == sorted(partitions)
        if ordered:
            assert [entry for entry, _ in found] == sorted(entry for entry, _ in found)
        store.restart()


def test_small_segments_of_many_maps_lie_together_by_partition(store: Store) -> None:
    for map_id in range(20):
        store.push(map_id, [(partition, partition, bytes([map_id]) * 10) for partition in range(8)])
    for map_id in range(20):
        store.commit(map_id)
    for partition in range(8):
        located = next(store.data.plan(partition, partition + 1, np.arange(20), ordered=False))
        ends = [offset + length for offset, length in zip(located.offsets, located.lengths, strict=True)]
        assert located.offsets[1:] == ends[:-1]


def test_a_read_of_very_many_segments_comes_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.runtime.shuffle.worker.storage.planning.PLAN_ROWS", 10)
    store.push(1, [(sequence % 13, sequence, bytes([sequence])) for sequence in range(100)])
    store.commit(1)
    assert dict(store.read(0, 13, [1])) == store.expected(0, 13, [1])
    assert dict(store.read(3, 4, [1])) == store.expected(3, 4, [1])
    assert len(list(store.data.plan(0, 13, np.array([1]), ordered=False))) > 5


@pytest.mark.parametrize("file", ["data", "index"])
def test_a_crash_at_any_byte_leaves_only_whole_committed_maps(tmp_path: Path, file: str) -> None:
    """Either file is cut at each length: every map still committed is whole, in the order of commits."""
    store = Store([tmp_path / "disk"])
    for map_id in range(3):
        store.push(map_id, [(partition, partition, bytes([map_id]) * 5) for partition in range(3)])
        store.commit(map_id)
    path = tmp_path / "disk" / NAME / file
    whole = path.read_bytes()
    survived = set()
    for length in range(len(whole), -1, -7):
        path.write_bytes(whole[:length])
        store.restart()
        alive = []
        for map_id in range(3):
            try:
                found = store.read(0, 3, [map_id])
            except MapUnknown:
                continue
            alive.append(map_id)
            assert dict(found) == store.expected(0, 3, [map_id])
        assert alive == list(range(len(alive)))
        survived.add(len(alive))
        store.push(7 + length, [(0, 0, b"new")])
        store.commit(7 + length)
        assert dict(store.read(0, 1, [7 + length])) == store.expected(0, 1, [7 + length])
        path.write_bytes(whole)
        other = tmp_path / "disk" / NAME / ("index" if file == "data" else "data")
        assert other.exists()
    assert survived >= {0, 3}


def test_a_changed_index_is_valid_up_to_the_change(store: Store, tmp_path: Path) -> None:
    for map_id in range(4):
        store.push(map_id, [(0, 0, b"x" * 10)])
        store.commit(map_id)
    path = tmp_path / "disk" / NAME / "index"
    whole = bytearray(path.read_bytes())
    for position in random.Random(1).sample(range(len(whole)), 40):  # noqa: S311  data for a test
        changed = bytearray(whole)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        store.restart()
        for map_id in range(4):
            try:
                found = store.read(0, 1, [map_id])
            except MapUnknown:
                continue
            assert dict(found) == store.expected(0, 1, [map_id])


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), wanted=st.sets(st.integers(1, 3), min_size=1))
@settings(max_examples=60)
def test_reading_with_a_changed_index_gives_all_data_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, at: float, bit: int, wanted: set[int]
) -> None:
    """Also when only some maps are read: a row that names another map is not silently left out."""
    disk = tmp_path_factory.mktemp("disk")
    store = Store([disk])
    for map_id in (1, 2, 3):
        store.push(map_id, [(0, 0, b"abc"), (1, 1, b"defg")])
    for map_id in (1, 2, 3):
        store.commit(map_id)
    with (disk / NAME / "index").open("r+b") as index:
        place = int(at * index.seek(0, 2))
        index.seek(place)
        [byte] = index.read(1)
        index.seek(place)
        index.write(bytes([byte ^ 1 << bit]))
    try:
        found = store.read(0, 2, sorted(wanted))
    except SegmentCorrupt:
        return
    assert dict(found) == store.expected(0, 2, sorted(wanted))


def test_reading_with_a_hole_in_the_index_is_an_error(tmp_path: Path) -> None:
    """The index was truncated, and the next run was written after the truncated part."""
    store = Store([tmp_path], policy=Policy.HYBRID)
    store.push(1, [(0, 0, b"abc")])
    store.push(2, [(0, 0, b"def")])
    for map_id in (1, 2):
        store.commit(map_id)
    store.read(0, 1, [1])
    os.truncate(tmp_path / NAME / "index", 10)
    store.push(3, [(0, 0, b"ghi")])
    store.commit(3)
    assert dict(store.read(0, 1, [3])) == store.expected(0, 1, [3])
    with pytest.raises(SegmentCorrupt, match="has changed"):
        store.read(0, 1, [1])


@pytest.mark.parametrize("write_through", [pytest.param(True, id="through"), pytest.param(False, id="sorted")])
def test_another_disk_is_used_when_one_is_full(tmp_path: Path, *, write_through: bool) -> None:
    """``/dev/full`` stands in for the data on the disk that is chosen first."""
    first, second = tmp_path / "1", tmp_path / "2"
    store = Store([first, second], free={second: 1 << 29})
    (first / NAME).mkdir(parents=True)
    (first / NAME / "data").symlink_to("/dev/full")
    store.push(1, [(0, 0, b"abc"), (1, 1, b"def")], write_through=write_through)
    store.commit(1)
    assert dict(store.read(0, 2, [1])) == store.expected(0, 2, [1])
    assert [disk.usable for disk in store.disks.reports()] == [False, True]
    store.now = 61.0
    assert [disk.usable for disk in store.disks.reports()] == [True, True]


def test_a_shuffle_on_two_disks_is_recovered_from_both(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    store = Store([first, second], free={second: 1 << 29})
    store.push(1, [(0, 0, b"first half")])
    store.data.spill()
    store.free[first] = 10
    store.push(1, [(0, 1, b"second half")])
    store.push(2, [(0, 0, b"another")])
    store.commit(1)
    store.commit(2)
    store.restart()
    assert dict(store.read(0, 1, [1, 2])) == store.expected(0, 1, [1, 2])
    for file in ("data", "index"):
        (first / NAME / file).write_bytes(b"")
    store.restart()
    assert dict(store.read(0, 1, [2])) == store.expected(0, 1, [2])
    with pytest.raises(MapUnknown):
        store.read(0, 1, [1])


def test_a_commit_fails_without_a_usable_disk_and_can_be_repeated(store: Store, tmp_path: Path) -> None:
    store.free[tmp_path / "disk"] = 10
    store.push(1, [(0, 0, b"abc")])
    with pytest.raises(DiskFailed, match="no disk takes data"):
        store.commit(1)
    with pytest.raises(MapUnknown):
        store.read(0, 1, [1])
    store.free.clear()
    store.commit(1)
    assert dict(store.read(0, 1, [1])) == store.expected(0, 1, [1])


def test_a_failed_index_write_fails_only_the_maps_in_it(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    store = Store([first, second], free={second: 1 << 29})
    (first / NAME).mkdir(parents=True)
    (first / NAME / "index").symlink_to("/dev/full")
    store.push(1, [(0, 0, b"abc")])
    with pytest.raises(DiskFailed, match="lost with a disk"):
        store.commit(1)
    with pytest.raises(MapUnknown):
        store.commit(1)
    store.push(2, [(0, 0, b"abc")])
    store.commit(2)
    assert dict(store.read(0, 1, [2])) == store.expected(0, 1, [2])


def test_an_aborted_map_is_never_read_and_its_memory_is_freed(store: Store) -> None:
    store.push(1, [(0, 0, b"abc")])
    store.push(2, [(0, 0, b"def")])
    store.data.abort(1)
    assert store.data.memory_bytes == 3
    store.commit(2)
    assert store.pool.used_bytes == 0
    assert list(dict(store.read(0, 1, [2]))) == [(0, 2, 0)]
    with pytest.raises(MapUnknown):
        store.push(1, [(0, 1, b"late")])
    with pytest.raises(MapUnknown):
        store.data.commit(1, 1, 3)
    store.data.abort(2)
    assert list(dict(store.read(0, 1, [2]))) == [(0, 2, 0)]


@pytest.mark.parametrize(
    ("again", "message"),
    [
        pytest.param([(0, 0, b"x")], "second time", id="repeated"),
        pytest.param([(0, 5, b"x"), (0, 5, b"x")], "second time", id="twice in one frame"),
        pytest.param([(0, 1 << 20, b"x")], "after 1 others", id="far ahead"),
    ],
)
def test_replays_are_refused(store: Store, again: list[tuple[int, int, bytes]], message: str) -> None:
    store.push(1, [(0, 0, b"x")])
    with pytest.raises(FrameRefused, match=message):
        store.push(1, again)


def test_a_released_shuffle_refuses_data_and_leaves_no_files_or_memory(store: Store, tmp_path: Path) -> None:
    store.push(1, [(0, 0, b"abc")])
    store.commit(1)
    store.push(2, [(0, 0, b"abc")])
    store.data.remove()
    assert store.pool.used_bytes == 0
    assert not (tmp_path / "disk" / NAME).exists()
    with pytest.raises(MapUnknown):
        store.push(3, [(0, 0, b"abc")])
    with pytest.raises(MapUnknown):
        store.read(0, 1, [1])


@pytest.mark.parametrize("secret", [pytest.param(b"", id="plain"), pytest.param(SECRET, id="sealed")])
def test_the_next_shuffle_writes_over_the_file_of_the_last_one(tmp_path: Path, secret: bytes) -> None:
    store = Store([tmp_path / "disk"], secret=secret)
    store.push(1, [(0, 0, b"a" * 5000), (1, 1, b"b" * 5000)])
    store.commit(1)
    first = (tmp_path / "disk" / NAME / "data").stat()
    store.data.remove()

    store.data, store.written = store.shuffle(NAME), {}
    store.push(1, [(0, 0, b"short")])
    store.commit(1)
    assert (tmp_path / "disk" / NAME / "data").stat().st_ino == first.st_ino
    assert dict(store.read(0, 2, [1])) == store.expected(0, 2, [1])
    assert store.data.disk_bytes < first.st_size
    store.restart()
    assert dict(store.read(0, 2, [1])) == store.expected(0, 2, [1])


def test_the_file_of_a_released_shuffle_is_not_reused_while_it_is_written_to(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame is written through to disk while its shuffle is released."""
    in_the_middle, go_on = threading.Event(), threading.Event()
    write = volume._write

    def slow(descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        in_the_middle.set()
        assert go_on.wait(30)
        return write(descriptor, pieces, offset)

    monkeypatch.setattr(volume, "_write", slow)
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(store.push, 1, [(0, 0, b"abc")], write_through=True)
        assert in_the_middle.wait(30)
        store.data.remove()
        go_on.set()
        with pytest.raises(MapUnknown):
            late.result()
    assert not store.spares.drop()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_reading_a_released_shuffle_is_an_error_that_says_so(store: Store) -> None:
    store.push(1, [(0, 0, b"abc")])
    store.commit(1)
    [located] = store.data.plan(0, 1, np.array([1]), ordered=False)
    store.data.remove()
    with pytest.raises(MapUnknown, match="was released"):
        store.data.read(located, 0, 1, memoryview(bytearray(3)))


def test_spare_files_are_dropped_when_a_disk_has_no_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    store = Store([disk])
    store.push(1, [(0, 0, b"abc")])
    store.commit(1)
    store.data.remove()
    # The disk is short as long as the file is there.
    store.disks = Disks([disk], 100, 60.0, free_bytes=lambda _: 1000 if not any(disk.rglob("spare/*")) else 0)

    store.data = store.shuffle(NAME)
    store.push(1, [(0, 0, b"abc")])
    store.commit(1)
    assert dict(store.read(0, 1, [1])) == store.expected(0, 1, [1])
    assert not store.spares.drop()


def test_a_shuffle_with_enough_data_for_a_run_is_announced_once_per_run(tmp_path: Path) -> None:
    store = Store([tmp_path / "disk"], ripe_bytes=100)
    store.push(1, [(0, 0, b"a" * 99)])
    assert not store.ripened
    store.push(2, [(0, 0, b"b")])
    store.push(2, [(0, 1, b"c" * 200)])
    assert store.ripened == [store.data]
    assert store.data.flush() == 300
    store.push(2, [(0, 2, b"d" * 100)])
    assert store.ripened == [store.data] * 2
    for each in (1, 2):
        store.commit(each)
    assert dict(store.read(0, 1, [1, 2])) == store.expected(0, 1, [1, 2])


@pytest.mark.parametrize(("layout", "policy"), [(Layout.MAP, Policy.BLOCKING), (Layout.REDUCE, Policy.HYBRID)])
def test_other_layouts_and_in_memory_policies_are_not_announced_for_a_run(
    tmp_path: Path, layout: Layout, policy: Policy
) -> None:
    store = Store([tmp_path / "disk"], layout=layout, policy=policy, ripe_bytes=1)
    store.push(1, [(0, 0, b"abc")])
    assert not store.ripened


def test_the_disk_with_most_room_is_chosen(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    disks = Disks([first, second], 100, 60.0, free_bytes=lambda disk: {first: 500, second: 700}[disk.path])
    assert disks.choose().path == second
    disks.exclude(disks.all[1], OSError(5, "Input/output error"))
    assert disks.choose().path == first
    disks.exclude(disks.all[0], OSError(5, "Input/output error"))
    with pytest.raises(DiskFailed, match="of 2, 2 failed"):
        disks.choose()


def test_data_encrypted_at_rest_is_unreadable_and_refused_when_changed_or_moved(tmp_path: Path) -> None:
    store = Store([tmp_path / "disk"], secret=SECRET)
    store.push(1, [(0, 0, b"confidential" * 10), (1, 1, b"confidential" * 10)], write_through=True)
    store.commit(1)
    path = tmp_path / "disk" / NAME / "data"
    content = path.read_bytes()
    assert b"confidential" not in content
    assert dict(store.read(0, 2, [1])) == store.expected(0, 2, [1])
    half = len(content) // 2
    for changed in (content[:-1] + bytes([content[-1] ^ 1]), content[half:] + content[:half], content[:-1]):
        path.write_bytes(changed)
        with pytest.raises(SegmentCorrupt, match="partition"):
            store.read(0, 2, [1])
    path.write_bytes(content)
    store.secret = bytes(32)
    store.restart()
    with pytest.raises(SegmentCorrupt):
        store.read(0, 2, [1])


def test_hybrid_keeps_committed_maps_in_memory_until_somebody_reads(store: Store, tmp_path: Path) -> None:
    store.policy = Policy.HYBRID
    store.restart()
    for map_id in range(3):
        store.push(map_id, [(partition, partition, bytes([map_id])) for partition in range(2)])
        store.commit(map_id)
    assert store.data.memory_bytes == 6
    assert not (tmp_path / "disk" / NAME / "data").exists()
    assert dict(store.read(0, 2, [0, 2])) == store.expected(0, 2, [0, 2])
    assert store.data.memory_bytes == 0
    store.push(7, [(0, 0, b"lost")])
    store.commit(7)
    store.restart()
    assert dict(store.read(0, 2, [0, 1, 2])) == store.expected(0, 2, [0, 1, 2])
    with pytest.raises(MapUnknown):
        store.read(0, 2, [7])


def test_hybrid_forgets_a_commit_whose_data_no_disk_takes(tmp_path: Path) -> None:
    store = Store([tmp_path / "disk"], policy=Policy.HYBRID, free={tmp_path / "disk": 10})
    store.push(1, [(0, 0, b"abc")])
    store.commit(1)
    with pytest.raises(DiskFailed):
        store.read(0, 1, [1])
    store.free.clear()
    assert dict(store.read(0, 1, [1])) == store.expected(0, 1, [1])


@pytest.mark.parametrize("layout", [pytest.param(layout, id=layout) for layout in Layout])
def test_hybrid_readers_wait_for_what_another_thread_is_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout
) -> None:
    store = Store([tmp_path / "disk"], layout, policy=Policy.HYBRID)
    store.push(1, [(0, 0, b"abc")])
    store.commit(1)
    writing, go_on = threading.Event(), threading.Event()
    write = Volume.write

    def slow(volume: Volume, pieces: Sequence[memoryview], size: int) -> int:
        writing.set()
        assert go_on.wait(20)
        return write(volume, pieces, size)

    monkeypatch.setattr(Volume, "write", slow)
    with ThreadPoolExecutor(2) as pool:
        spilling = pool.submit(store.data.spill)
        assert writing.wait(20)
        reading = pool.submit(store.read, 0, 1, [1])
        with pytest.raises(TimeoutError):
            reading.result(0.05)
        go_on.set()
        assert dict(reading.result(20)) == store.expected(0, 1, [1])
        assert spilling.result(20) == 3


def test_hybrid_forgets_a_commit_whose_index_was_lost(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    store = Store([first, second], policy=Policy.HYBRID, free={second: 1 << 29})
    (first / NAME).mkdir(parents=True)
    (first / NAME / "index").symlink_to("/dev/full")
    store.push(1, [(0, 0, b"abc")])
    store.commit(1)
    with pytest.raises(MapUnknown):
        store.read(0, 1, [1])


@pytest.mark.parametrize("write_through", [True, False])
def test_another_disk_is_used_when_one_takes_no_new_folder(tmp_path: Path, *, write_through: bool) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    store = Store([first, second], free={second: 1 << 29})
    (first / NAME).parent.write_bytes(b"")  # mkdir below it fails, as on a disk that has become read-only
    store.push(1, [(0, 0, b"abc"), (1, 1, b"def")], write_through=write_through)
    store.commit(1)
    assert dict(store.read(0, 2, [1])) == store.expected(0, 2, [1])
    assert [disk.usable for disk in store.disks.reports()] == [False, True]


def test_frames_stay_in_memory_when_no_disk_takes_a_folder(tmp_path: Path) -> None:
    disk = tmp_path / "1"
    store = Store([disk])
    blocked = (disk / NAME).parent
    blocked.write_bytes(b"")
    store.push(1, [(0, 0, b"abc")])
    with pytest.raises(DiskFailed):
        store.data.flush()
    blocked.unlink()
    store.now += 120  # after its exclusion
    store.commit(1)
    assert dict(store.read(0, 1, [1])) == store.expected(0, 1, [1])
