"""Completed checkpoints: the last one counts, a damaged one is skipped, and only a few are kept."""

from __future__ import annotations

import pytest

from sluice.runtime.ha.errors import EntryDamaged, HaError, LeadershipLost
from sluice.runtime.ha.pointers import Pointer
from sluice.runtime.jobmanager.store.checkpoint_store import KEPT, MAX_CHECKPOINT_BYTES, CheckpointStore
from tests.unit.runtime.ha.simulated import Lines, MemoryStorage, Service, SimulatedPointers

JOB = "1" * 32


class World:
    """An in-memory store and its parts."""

    def __init__(self) -> None:
        self.service = Service(10.0)
        self.storage = MemoryStorage()
        self.latch = self.service.open()
        pointers = SimulatedPointers(self.service, Lines(self.service), self.latch, lambda: None)
        self.store = CheckpointStore(pointers, self.storage)


@pytest.fixture
def world() -> World:
    """A store without any completed checkpoint."""
    return World()


async def test_the_last_checkpoint_is_the_latest_and_few_are_kept(world: World) -> None:
    assert await world.store.latest(JOB) is None
    for number in range(1, 8):
        await world.store.add(JOB, number, b"state %d" % number)
        assert await world.store.latest(JOB) == (number, b"state %d" % number)
    assert len(world.storage.entries) == KEPT


@pytest.mark.parametrize("damage", [b"", b"other", None])
async def test_the_previous_checkpoint_is_used_if_the_latest_is_missing_or_damaged(
    world: World, damage: bytes | None
) -> None:
    await world.store.add(JOB, 1, b"one")
    await world.store.add(JOB, 2, b"two")
    name = next(each for each in world.storage.entries if "checkpoint-2-" in each)
    del world.storage.entries[name]
    if damage is not None:
        world.storage.entries[name] = damage
    assert await world.store.latest(JOB) == (1, b"one")


async def test_checkpoint_numbers_must_increase_and_sizes_are_bounded(world: World) -> None:
    await world.store.add(JOB, 5, b"x")
    for number in (5, 4):
        with pytest.raises(HaError, match="upwards"):
            await world.store.add(JOB, number, b"y")
    with pytest.raises(HaError, match="at most"):
        await world.store.add(JOB, 6, b"x" * (MAX_CHECKPOINT_BYTES + 1))
    assert await world.store.latest(JOB) == (5, b"x")


async def test_a_deposed_leader_records_no_checkpoint(world: World) -> None:
    await world.store.add(JOB, 1, b"one")
    del world.service.sessions[world.latch]
    with pytest.raises(LeadershipLost):
        await world.store.add(JOB, 2, b"two")
    assert await world.store.latest(JOB) == (1, b"one")


async def test_a_damaged_pointer_raises_entry_damaged(world: World) -> None:
    world.service.pointers["checkpoints", JOB] = Pointer(b"{", 0)
    with pytest.raises(EntryDamaged):
        await world.store.latest(JOB)
