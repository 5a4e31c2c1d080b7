"""When processes that wait are started, taken and ended."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import pytest

from sluice.core import SluiceError
from sluice.runtime.warm import Machine, Resources, Sizing, WarmKind, WarmPool, WarmSize
from sluice.runtime.warm.backoff import FIRST_PAUSE_SECONDS, FIRST_REST_SECONDS, MAX_UNUSABLE
from sluice.runtime.warm.pool import QUIET_SECONDS, START_SECONDS, STARVED_SECONDS

SIZE = WarmSize(WarmKind.EXECUTOR, 768)
OTHER = WarmSize(WarmKind.EXECUTOR, 1024)


@dataclass
class Fake:
    size: WarmSize
    fails: bool = False
    usable: bool = False
    closed: bool = False
    hangs: bool = False

    async def start(self) -> None:
        if self.fails:
            raise SluiceError("it ended")
        if self.hangs:
            await asyncio.Event().wait()
        self.usable = True

    async def close(self) -> None:
        self.usable, self.closed = False, True

    def used_seconds(self) -> float:
        return 2.0


@dataclass
class Set(Machine):
    left: Resources = field(default_factory=lambda: Resources(idle=1.0, free_mb=16_000, total_mb=20_000))

    def look(self) -> Resources:
        return self.left


@dataclass
class World:
    now: float = 100.0
    machine: Set = field(default_factory=Set)
    made: list[Fake] = field(default_factory=list)
    fails: bool = False
    hangs: bool = False
    always: bool = False
    began: asyncio.Event = field(default_factory=asyncio.Event)

    def pool(self) -> WarmPool[Fake]:
        def make(size: WarmSize) -> Fake:
            self.made.append(Fake(size, self.fails, hangs=self.hangs))
            self.began.set()
            return self.made[-1]

        return WarmPool(make, Sizing(8), self.machine, clock=lambda: self.now, round_seconds=0.001, always=self.always)

    async def filled(self, asks: int = 1) -> WarmPool[Fake]:
        pool = self.pool()
        for _ in range(asks):
            assert pool.take(SIZE) is None
        self.now += QUIET_SECONDS
        for _ in range(asks):
            await pool.look()
        return pool


async def test_a_miss_starts_a_process_that_waits_for_the_next_job() -> None:
    world = World()
    pool = await world.filled()
    taken = pool.take(SIZE)
    assert taken is world.made[0]
    assert pool.take(SIZE) is None  # each is for one job
    assert (pool.figures.misses["executor"], pool.figures.hits["executor"]) == (2, 1)
    assert pool.figures.seconds == {"executor": 2.0}


async def test_another_size_is_a_miss() -> None:
    pool = await World().filled()
    assert pool.take(OTHER) is None
    assert pool.waiting()[SIZE] == 1


async def test_an_unusable_process_is_closed_and_not_taken() -> None:
    world = World()
    pool = await world.filled()
    world.made[0].usable = False
    assert pool.take(SIZE) is None
    await pool.look()
    await pool.close()
    assert world.made[0].closed


async def test_no_process_is_started_soon_after_a_job() -> None:
    world = World()
    pool = world.pool()
    pool.take(SIZE)
    await pool.look()
    assert not world.made


async def test_nothing_is_started_on_a_busy_machine() -> None:
    world = World(machine=Set(Resources(idle=0.2, free_mb=16_000, total_mb=20_000)))
    await world.filled()
    assert not world.made


async def test_nothing_is_started_without_memory_to_spare() -> None:
    world = World(machine=Set(Resources(idle=1.0, free_mb=6_000, total_mb=20_000)))
    await world.filled()
    assert not world.made


async def test_under_memory_pressure_waiting_processes_are_dropped_one_at_a_time() -> None:
    world = World()
    pool = await world.filled(2)
    assert pool.waiting()[SIZE] == 2
    world.machine.left = Resources(idle=1.0, free_mb=1_500, total_mb=20_000)
    await pool.look()
    assert pool.waiting()[SIZE] == 1
    await pool.look()
    await pool.close()
    assert [each.closed for each in world.made] == [True, True]
    assert pool.figures.dropped["executor"] == 2


async def test_under_memory_pressure_a_starting_process_is_dropped() -> None:
    world = World(hangs=True)
    pool = world.pool()
    pool.take(SIZE)
    world.now += QUIET_SECONDS
    looking = asyncio.create_task(pool.look())
    await world.began.wait()
    world.machine.left = Resources(idle=1.0, free_mb=1_500, total_mb=20_000)
    await looking
    assert world.made[0].closed
    assert pool.figures.failed["executor"] == 1


async def test_a_process_that_takes_too_long_to_start_is_closed() -> None:
    world = World(hangs=True)
    pool = world.pool()
    pool.take(SIZE)
    world.now += QUIET_SECONDS
    looking = asyncio.create_task(pool.look())
    await world.began.wait()
    world.now += START_SECONDS
    await looking
    assert world.made[0].closed


async def test_after_a_failed_start_the_next_one_is_delayed() -> None:
    world = World(fails=True)
    pool = await world.filled()
    assert [each.closed for each in world.made] == [True]
    await pool.look()
    assert len(world.made) == 1
    world.now += FIRST_PAUSE_SECONDS
    await pool.look()
    assert len(world.made) == 2
    assert pool.figures.failed["executor"] == 2


async def test_a_process_that_is_no_longer_wanted_is_closed() -> None:
    world = World()
    pool = await world.filled()
    world.now += 3600
    await pool.look()
    await pool.close()
    assert world.made[0].closed


async def test_a_job_does_not_shorten_the_pause_after_a_failed_start() -> None:
    world = World(fails=True)
    pool = await world.filled()
    pool.take(SIZE)
    world.now += QUIET_SECONDS
    await pool.look()
    assert len(world.made) == 1


async def test_after_too_many_unusable_processes_none_is_started_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    pool = await world.filled()
    for _ in range(MAX_UNUSABLE):
        assert not caplog.messages
        pool.unusable(SIZE.kind, "it ended")
    assert "it ended" in caplog.messages[0]
    assert "[warm] jvms = 0" in caplog.messages[0]
    assert not pool.waiting()
    await pool.look()
    assert len(world.made) == 1
    world.now += FIRST_REST_SECONDS
    await pool.look()
    assert len(world.made) == 2
    pool.unusable(SIZE.kind, "again")  # once more is enough
    assert len(caplog.messages) == 2
    await pool.close()


async def test_a_used_process_resets_the_count_of_unusable_ones() -> None:
    pool = await World().filled()
    for _ in range(MAX_UNUSABLE - 1):
        pool.unusable(SIZE.kind, "it ended")
    pool.used(SIZE.kind)
    pool.unusable(SIZE.kind, "it ended")
    assert pool.waiting()[SIZE] == 1
    await pool.close()


async def test_a_machine_that_is_never_idle_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world = World(machine=Set(Resources(idle=0.1, free_mb=16_000, total_mb=20_000)))
    pool = await world.filled()
    for _ in range(3):
        world.now += STARVED_SECONDS
        await pool.look()
    assert len(caplog.messages) == 1
    assert "less than 25% of the CPU time" in caplog.messages[0]


async def test_a_process_is_started_on_a_busy_machine_with_the_always_setting() -> None:
    world = World(machine=Set(Resources(idle=0.0, free_mb=16_000, total_mb=20_000)), always=True)
    pool = world.pool()
    pool.take(SIZE)
    await pool.look()
    assert pool.waiting()[SIZE] == 1
    await pool.close()
