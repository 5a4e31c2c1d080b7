"""Managed memory: bounded, returned completely, and never all taken by data being received."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from sluice.runtime.shuffle.data_plane.errors import DiskFailed, ShuffleUnavailable
from sluice.runtime.shuffle.worker.config import MIN_MEMORY_BYTES, SLAB_BYTES
from sluice.runtime.shuffle.worker.storage.slab_pool import Lease, SlabPool

DEADLINE_SECONDS = 20.0


def pool(slabs: int = 8) -> SlabPool:
    return SlabPool(slabs * SLAB_BYTES, 0.75, 0.5)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


FRAMES = st.lists(
    st.tuples(
        st.lists(st.integers(0, SLAB_BYTES), min_size=1, max_size=3)
        | st.lists(st.integers(0, 70_000), min_size=1, max_size=60),
        st.integers(0, 5),
    ),
    max_size=30,
)


@given(FRAMES)
@settings(max_examples=50)
def test_leases_never_overlap_and_all_memory_is_returned(frames: list[tuple[list[int], int]]) -> None:
    memory = pool()
    held: list[Lease] = []
    for lengths, keep in frames:
        while len(held) > keep:
            memory.release([held.pop(0)])
        if memory.used_bytes + sum(lengths) + 2 * SLAB_BYTES > memory.capacity_bytes:
            continue
        lease = memory.lease("job", lengths)
        memory.received(lease)
        held.append(lease)
        assert sum(count for _, _, count in lease.extents) == len(lengths)
        assert sum(stop - start for start, stop, _ in lease.extents) == sum(lengths)
        for start, stop, _ in lease.extents:
            assert start // SLAB_BYTES == max(start, stop - 1) // SLAB_BYTES
        taken = sorted((start, stop) for each in held for start, stop, _ in each.extents if start < stop)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(taken))
        assert memory.used_bytes <= memory.capacity_bytes
    memory.release(held)
    assert memory.used_bytes == 0
    assert not memory.pressed.is_set()


def test_small_frames_share_a_slab() -> None:
    memory = pool()
    for _ in range(10):
        memory.received(memory.lease("job", [1000]))
    assert memory.used_bytes == SLAB_BYTES


def test_pressure_is_set_at_the_high_watermark_and_cleared_at_the_low_one() -> None:
    memory = pool()
    leases = []
    for _ in range(6):
        leases.append(memory.lease("job", [SLAB_BYTES]))
        memory.received(leases[-1])
    assert not memory.pressed.is_set()
    leases.append(memory.lease("job", [SLAB_BYTES]))
    memory.received(leases[-1])
    assert memory.pressed.is_set()
    while len(leases) > 4:
        assert memory.pressed.is_set()
        memory.release([leases.pop()])
    assert not memory.pressed.is_set()
    assert memory.peak_bytes == 7 * SLAB_BYTES


def test_a_lease_waits_until_memory_is_free() -> None:
    memory = pool()
    leases = [memory.lease(f"job {index}", [SLAB_BYTES]) for index in range(8)]
    for lease in leases:
        memory.received(lease)
    got: list[Lease] = []
    waiting = threading.Thread(target=lambda: got.append(memory.lease("late", [10])))
    waiting.start()
    until(lambda: memory.waits == 1)
    assert memory.pressed.is_set()
    assert not got
    memory.release([leases.pop()])
    waiting.join(DEADLINE_SECONDS)
    assert len(got) == 1
    assert memory.waited_seconds > 0


def test_one_job_receives_into_half_of_the_memory_at_most() -> None:
    memory = pool()
    leases = [memory.lease("greedy", [SLAB_BYTES]) for _ in range(4)]
    waiting = threading.Thread(target=lambda: leases.append(memory.lease("greedy", [SLAB_BYTES])))
    waiting.start()
    until(lambda: memory.waits == 1)
    memory.received(memory.lease("other", [SLAB_BYTES]))
    assert len(leases) == 4
    memory.abandon(leases[0])
    waiting.join(DEADLINE_SECONDS)
    assert len(leases) == 5


def test_a_lease_fails_when_nothing_can_be_spilled() -> None:
    memory = pool()
    for index in range(8):
        memory.received(memory.lease(f"job {index}", [SLAB_BYTES]))
    memory.fail(DiskFailed("no disk"))
    with pytest.raises(DiskFailed):
        memory.lease("late", [10])
    memory.fail(None)
    memory.stop()
    with pytest.raises(ShuffleUnavailable):
        memory.lease("late", [10])


def test_the_smallest_memory_takes_the_largest_frame() -> None:
    memory = SlabPool(MIN_MEMORY_BYTES, 0.75, 0.5)
    lease = memory.lease("job", [3 << 20, 3 << 20, (2 << 20) + 1])
    assert len(lease.extents) == 3


def test_frame_tables_are_charged_to_the_same_pool() -> None:
    memory = pool()
    leases = []
    for _ in range(8):
        leases.append(memory.lease("job", [0] * 100, SLAB_BYTES // 2))
        memory.received(leases[-1])
    assert memory.used_bytes == 5 * SLAB_BYTES  # a slab for no data at all, and the tables
    memory.release_data(leases[0])
    memory.release_tables(leases.pop(0).table_bytes)
    memory.release(leases)
    assert memory.used_bytes == 0


def test_a_lease_with_a_large_table_waits_until_others_are_released() -> None:
    memory = pool()
    held = []
    for index in range(7):
        held.append(memory.lease(f"job {index}", [], SLAB_BYTES))
        memory.received(held[-1])
    assert memory.pressed.is_set()
    got: list[Lease] = []
    waiting = threading.Thread(target=lambda: got.append(memory.lease("late", [10], SLAB_BYTES)))
    waiting.start()
    until(lambda: memory.waits == 1)
    assert memory.used_bytes == 7 * SLAB_BYTES
    memory.release([held.pop()])
    waiting.join(DEADLINE_SECONDS)
    assert memory.used_bytes == memory.capacity_bytes


def test_each_waiting_lease_gets_its_own_error_instance() -> None:
    memory = pool()
    shared = DiskFailed("no disk")
    for index in range(8):
        memory.received(memory.lease(f"job {index}", [SLAB_BYTES]))
    memory.fail(shared)
    found: list[DiskFailed] = []
    for _ in range(2):
        with pytest.raises(DiskFailed, match="no disk") as raised:
            memory.lease("late", [10])
        raised.value.map_id = 7
        found.append(raised.value)
    assert len({id(each) for each in (*found, shared)}) == 3
    assert all(each.__cause__ is shared for each in found)
    assert shared.map_id == 0
    assert shared.__traceback__ is None
