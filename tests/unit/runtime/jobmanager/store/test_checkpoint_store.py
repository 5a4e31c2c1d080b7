"""Completed checkpoints: the last one counts, a damaged one gives way to the one before, and few are kept."""

from __future__ import annotations

import pytest

from sluice.runtime.ha.errors import EntryDamaged, HaError, LeadershipLost
from sluice.runtime.ha.pointers import Pointer
from sluice.runtime.jobmanager.store.checkpoint_store import KEPT, MAX_CHECKPOINT_BYTES, CheckpointStore
from tests.unit.runtime.ha.simulated import Lines, MemoryStorage, Service, SimulatedPointers

JOB = "1" * 32


class World:
    """A store over memory, and its parts."""

    def __init__(self) -> None:
        self.service = Service(10.0)
        self.storage = MemoryStorage()
        self.latch = self.service.open()
        pointers = SimulatedPointers(self.service, Lines(self.service), self.latch, lambda: None)
        self.store = CheckpointStore(pointers, self.storage)


@pytest.fixture
def world() -> World:
    """No checkpoint was completed yet."""
    return World()


async def test_the_last_one_counts_and_few_are_kept(world: World) -> None:
    assert await world.store.latest(JOB) is None
    for number in range(1, 8):
        await world.store.add(JOB, number, b"state %d" % number)
        assert await world.store.latest(JOB) == (number, b"state %d" % number)
    assert len(world.storage.entries) == KEPT


@pytest.mark.parametrize("damage", [b"", b"other", None])
async def test_a_damaged_one_gives_way_to_the_one_before(world: World, damage: bytes | None) -> None:
    await world.store.add(JOB, 1, b"one")
    await world.store.add(JOB, 2, b"two")
    name = next(each for each in world.storage.entries if "checkpoint-2-" in each)
    del world.storage.entries[name]
    if damage is not None:
        world.storage.entries[name] = damage
    assert await world.store.latest(JOB) == (1, b"one")


async def test_numbers_go_upwards_and_sizes_are_bounded(world: World) -> None:
    await world.store.add(JOB, 5, b"x")
    for number in (5, 4):
        with pytest.raises(HaError, match="upwards"):
            await world.store.add(JOB, number, b"y")
    with pytest.raises(HaError, match="at most"):
        await world.store.add(JOB, 6, b"x" * (MAX_CHECKPOINT_BYTES + 1))
    assert await world.store.latest(JOB) == (5, b"x")


async def test_who_does_not_lead_any_more_records_nothing(world: World) -> None:
    await world.store.add(JOB, 1, b"one")
    del world.service.sessions[world.latch]
    with pytest.raises(LeadershipLost):
        await world.store.add(JOB, 2, b"two")
    assert await world.store.latest(JOB) == (1, b"one")


async def test_a_damaged_pointer_is_said_so(world: World) -> None:
    world.service.pointers["checkpoints", JOB] = Pointer(b"{", 0)
    with pytest.raises(EntryDamaged):
        await world.store.latest(JOB)
