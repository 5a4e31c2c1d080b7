"""Batches for a reader come from memory, and from disk after a batch was spilled there."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sluice.runtime.shuffle.data_plane.check_values import SegmentChecks
from sluice.runtime.shuffle.data_plane.errors import (
    AttemptSuperseded,
    MapUnknown,
    ProducerAborted,
)
from sluice.runtime.shuffle.data_plane.frames import FrameType, Header, Share
from sluice.runtime.shuffle.worker.config import Layout, Policy
from sluice.runtime.shuffle.worker.connections.following import FollowingFetch
from tests.unit.runtime.shuffle.worker.storage.test_storage import NAME, Entry, Store

PARTITIONS = 3


def fetch(store: Store, first: int = 0, end: int = PARTITIONS) -> FollowingFetch:
    header = Header(FrameType.FOLLOW, shuffle=3, partition=first, aux=end, request=1)
    follower = store.data.announced.follow(Share(1, 0), (first, end), 60.0)
    return FollowingFetch(header, store.data, SegmentChecks(bytes(8), 3), iter(()), 1 << 30, 0.0, follower=follower)


def write(store: Store, map_id: int, segments: int = 7) -> None:
    source = random.Random(map_id)  # noqa: S311  data for a test
    store.push(map_id, [(each % PARTITIONS, each, source.randbytes(each * 100)) for each in range(segments)])
    mine = [data for (_, each, _), data in store.written.items() if each == map_id]
    store.data.announce(map_id, len(mine), sum(map(len, mine)), map_id - 1, 1)


def take(reading: FollowingFetch, before_each: Callable[[int], None] = lambda _: None) -> list[tuple[Entry, bytes]]:
    """Read the next batch, segment by segment; ``before_each`` gets the number of segments so far."""
    reading.begin(reading.follower.next())
    found: list[tuple[Entry, bytes]] = []
    left = reading.advance()
    while left:
        window, row = reading.window, reading.row
        assert window is not None
        before_each(len(found))
        view = memoryview(bytearray(window.lengths[row]))
        if reading.read(window, row, row + 1, view):
            found.append(((window.partitions[row], window.maps[row], window.sequences[row]), bytes(view)))
            reading.row += 1
            reading.segments += 1
        left = reading.advance()
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store([tmp_path / "disk"], policy=Policy.PIPELINED)


@pytest.mark.parametrize("layout", [pytest.param(layout, id=layout) for layout in Layout])
@pytest.mark.parametrize("moment", range(15))
def test_a_batch_spilled_while_it_is_sent_continues_from_disk(tmp_path: Path, layout: Layout, moment: int) -> None:
    store = Store([tmp_path / "disk"], layout, policy=Policy.PIPELINED)
    for map_id in (1, 2):
        write(store, map_id)

    def spill(sent: int) -> None:
        if sent == moment:
            store.data.spill()

    found = take(fetch(store), spill)
    assert [entry for entry, _ in found] == sorted(store.written, key=lambda each: (each[0], each[1], each[2]))
    assert dict(found) == store.written
    assert (tmp_path / "disk" / NAME / "data").exists() is (moment < 14)


def test_large_frames_stay_in_memory_too(store: Store, tmp_path: Path) -> None:
    store.push(1, [(0, 0, bytes(100_000))], write_through=True)
    store.data.announce(1, 1, 100_000, 0, 1)
    assert dict(take(fetch(store))) == store.written
    assert not (tmp_path / "disk" / NAME / "data").exists()


def test_a_map_that_is_partly_on_disk_is_read_from_there(store: Store) -> None:
    store.push(1, [(0, 0, b"before")])
    store.data.spill()
    store.push(1, [(0, 1, b"after"), (1, 2, b"other")])
    store.data.announce(1, 3, 16, 0, 1)
    assert dict(take(fetch(store, 0, 1))) == {(0, 1, 0): b"before", (0, 1, 1): b"after"}


def test_maps_without_output_for_the_reader_make_an_empty_batch(store: Store) -> None:
    store.data.announce(1, 0, 0, 0, 1)
    write(store, 2, segments=1)
    assert take(fetch(store, 2, 3)) == []


def test_aborting_a_map_does_not_disturb_a_batch_that_is_being_read(store: Store) -> None:
    write(store, 1)
    store.push(9, [(0, 0, b"zombie")])
    reading = fetch(store)
    found = take(reading, lambda sent: store.data.abort(9) if sent == 3 else None)
    assert dict(found) == {entry: data for entry, data in store.written.items() if entry[1] == 1}


def test_an_abandoned_shuffle_cannot_be_read_and_holds_no_memory(store: Store) -> None:
    write(store, 1)
    reading = fetch(store)
    with pytest.raises(MapUnknown):
        take(reading, lambda sent: store.data.give_up("broken") if sent == 3 else None)
    with pytest.raises(ProducerAborted, match="broken"):
        reading.follower.next()
    with pytest.raises(ProducerAborted):
        store.data.check_open(2, draining=False)
    assert store.data.memory_bytes == 0
    assert store.pool.used_bytes == 0
    with pytest.raises(MapUnknown):
        store.data.check_committed(np.array([1]))


def test_a_superseded_attempt_leaves_nothing_in_memory(store: Store) -> None:
    store.push(1, [(0, 0, b"first")])
    store.push(2, [(0, 0, b"other")])
    store.data.announce(1, 1, 5, 0, 1)
    with pytest.raises(AttemptSuperseded):
        store.data.announce(2, 1, 5, 0, 1)
    assert store.data.memory_bytes == 5
    with pytest.raises(MapUnknown):
        store.data.commit(2, 1, 5)


def test_an_incomplete_attempt_is_not_announced_and_another_can_replace_it(store: Store) -> None:
    store.push(1, [(0, 0, b"first")])
    with pytest.raises(MapUnknown):
        store.data.announce(1, 2, 10, 0, 1)
    store.push(2, [(0, 0, b"other")])
    store.data.announce(2, 1, 5, 0, 1)
    assert dict(take(fetch(store))) == {(0, 2, 0): b"other"}


def test_maps_for_followers_stay_in_memory_with_every_policy(tmp_path: Path) -> None:
    store = Store([tmp_path / "disk"], policy=Policy.BLOCKING)
    for map_id in range(3):
        data = b"x" * 50
        store.push(map_id, [(0, 0, data)])
        assert store.data.announce(map_id, 1, len(data), map_id, 1) == 50 * (map_id + 1)
    assert store.data.memory_bytes == 150
    assert not (tmp_path / "disk" / NAME / "data").exists()
    assert [entry for entry, _ in take(fetch(store))] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    store.data.spill()
    assert store.data.memory_bytes == 0
    assert [entry for entry, _ in take(fetch(store))] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]


def test_data_taken_by_a_reader_that_closes_counts_as_unread_again(tmp_path: Path) -> None:
    store = Store([tmp_path / "disk"])
    store.push(1, [(0, 0, b"first")])
    store.data.announce(1, 1, 5, 0, 1)
    reading = fetch(store)
    reading.grant(5, 0)
    assert store.data.announce(1, 1, 5, 0, 1) == 0
    reading.close()
    assert store.data.announce(1, 1, 5, 0, 1) == 5


def test_maps_that_all_readers_have_read_are_freed_and_cannot_be_read_again(store: Store) -> None:
    for map_id in (1, 2, 3):
        write(store, map_id)
    reading, late = fetch(store), fetch(store)
    late.begin(late.follower.next())
    assert dict(take(reading)) == store.written
    before = store.data.memory_bytes
    store.data.forget(Share(1, 0), 2)
    assert 0 < store.data.memory_bytes < before
    assert [each.map_id for each in store.data.committed()] == [3]
    late.advance()
    assert late.window is not None
    with pytest.raises(MapUnknown):
        late.read(late.window, 0, 1, memoryview(bytearray(late.window.lengths[0])))
    write(store, 4)
    assert {entry[1] for entry, _ in take(reading)} == {4}
    store.data.spill()
    store.data.forget(Share(1, 0), 3)
    assert [each.map_id for each in store.data.committed()] == [4]
    assert dict(take(fetch_after(store, 3))) == {entry: data for entry, data in store.written.items() if entry[1] == 4}


def test_the_index_of_a_run_is_dropped_with_its_last_map(store: Store) -> None:
    write(store, 1)
    write(store, 2)
    store.data.spill()
    write(store, 3)
    assert len(store.data._runs) == 1
    store.data.forget(Share(1, 0), 1)
    assert len(store.data._runs) == 1
    store.data.forget(Share(1, 0), 2)
    assert not store.data._runs
    assert {entry[1] for entry, _ in take(fetch_after(store, 2))} == {3}


def fetch_after(store: Store, had: int) -> FollowingFetch:
    """Return a reader that has already received ``had`` maps."""
    header = Header(FrameType.FOLLOW, shuffle=3, partition=0, aux=PARTITIONS, request=2, count=had)
    follower = store.data.announced.follow(Share(1, 0), (0, PARTITIONS), 60.0, maps_received=had)
    return FollowingFetch(header, store.data, SegmentChecks(bytes(8), 3), iter(()), 1 << 30, 0.0, follower=follower)
