"""Processes are restarted whatever else fails: a full disk, a bug of ours, or both at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.cli.cluster.supervision import Member, Supervisor, unfailing
from sluice.runtime.gateways import DRAINED_EXIT_CODE
from sluice.runtime.node.child_process import ChildProcess

DEADLINE_SECONDS = 30.0
DEVNULL = asyncio.subprocess.DEVNULL
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass
class World:
    """Real processes whose start and record can fail.

    Starting one raises the errors in ``no_start``, recording those in ``no_record``, one each time.
    """

    directory: Path
    no_start: list[Exception] = field(default_factory=list)
    no_record: list[Exception] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    returning: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    recorded: list[tuple[int, ...]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, member: Member) -> None:
        if self.no_start:
            raise self.no_start.pop(0)
        code = "import time; time.sleep(600)"
        member.child = await ChildProcess.start(
            [sys.executable, "-c", code], env={}, cwd=self.directory, stdout=DEVNULL, stderr=DEVNULL
        )
        self.changed.set()

    def record(self) -> None:
        self.changed.set()
        if self.no_record:
            raise self.no_record.pop(0)
        self.recorded.append(tuple(each.child.pid for each in self.members if each.child is not None))

    def say(self, line: str) -> None:
        self.said.append(line)
        self.changed.set()

    def comes_back(self, name: str) -> bool:
        if name not in self.returning:
            return False
        self.returning.remove(name)
        return True

    async def pause(self, _: float) -> None:
        await asyncio.sleep(0)

    async def until(self, *pids_before: int) -> None:
        """Wait until every member runs as a process other than ``pids_before``, and this is recorded."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                pids = tuple(each.child.pid for each in self.members if each.child is not None and each.child.running)
                if self.recorded[-1:] == [pids] and len(pids) == len(self.members) and not set(pids) & set(pids_before):
                    return
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def supervised(world: World, *names: str) -> AsyncIterator[Supervisor]:
    for name in names:
        member = Member(name, (name,))
        await world.start(member)
        world.members.append(member)
    supervisor = Supervisor(world.members, world.start, world.record, world.say, world.comes_back, world.pause)
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    try:
        yield supervisor
    finally:
        stop.set()
        await running
        for member in world.members:
            if member.child is not None:
                await member.child.stop(0.0)


def pids(world: World) -> list[int]:
    return [member.child.pid for member in world.members if member.child is not None]


def kill(world: World, name: str) -> None:
    (member,) = [each for each in world.members if each.name == name]
    assert member.child is not None
    os.kill(member.child.pid, 9)


async def test_member_is_started_again_after_a_full_disk_and_after_an_internal_error(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with supervised(world, "auth"):
        (before,) = pids(world)
        world.no_start = [FULL, FULL, RuntimeError("a fault of ours"), KeyError("x"), FULL]
        kill(world, "auth")
        await world.until(before)
    assert sum("No space left on device" in line for line in world.said) == 3
    assert any("a fault of ours" in line for line in world.said)


async def test_record_that_cannot_be_written_is_retried_and_no_member_is_started_twice(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with supervised(world, "auth", "envoy"):
        auth, envoy = pids(world)
        world.no_record = [FULL, FULL, FULL]
        kill(world, "auth")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not world.recorded:
                world.changed.clear()
                await world.changed.wait()
        ((again, other),) = world.recorded
        assert (again != auth, other) == (True, envoy)
        assert pids(world) == [again, envoy]
    # Told once, not every few seconds.
    assert sum("cannot write down" in line for line in world.said) == 1


async def test_several_killed_members_are_all_started_again_after_a_full_disk(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with supervised(world, "auth", "envoy"):
        auth, envoy = pids(world)
        world.no_start = [FULL] * 3
        kill(world, "auth")
        kill(world, "envoy")
        await world.until(auth, envoy)


async def test_loop_that_fails_continues(tmp_path: Path) -> None:
    world, rounds, done = World(tmp_path), 0, asyncio.Event()

    async def loop() -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 4:
            raise RuntimeError(f"round {rounds}")
        done.set()
        await asyncio.Event().wait()

    supervisor = Supervisor([], world.start, world.record, world.say, world.comes_back, world.pause)
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop, ("renewing identities", loop)))
    await asyncio.wait_for(done.wait(), DEADLINE_SECONDS)
    stop.set()
    await running
    assert [line for line in world.said if "renewing identities failed: round" in line] == world.said
    assert len(world.said) == 3


async def drained(world: World) -> Member:
    """A member whose process exits like a drained TaskManager."""
    code = f"raise SystemExit({DRAINED_EXIT_CODE})"
    member = Member("taskmanager-1", ("taskmanager",))
    member.child = await ChildProcess.start(
        [sys.executable, "-c", code], env={}, cwd=world.directory, stdout=DEVNULL, stderr=DEVNULL
    )
    return member


@pytest.mark.parametrize("failing", [[], [FULL, FULL]])
async def test_member_that_is_drained_with_a_comeback_request_is_started_again(
    tmp_path: Path, failing: list[Exception]
) -> None:
    world = World(tmp_path, returning={"taskmanager-1"})
    async with supervised(world, "auth") as supervisor:
        (auth,) = pids(world)
        world.no_start = list(failing)
        world.members.append(await drained(world))
        left = pids(world)[1]
        supervisor.watch(world.members[1])
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not world.recorded or left in world.recorded[-1]:
                world.changed.clear()
                await world.changed.wait()
        assert world.recorded[-1] == (auth, pids(world)[1])
    assert "taskmanager-1 is drained; starting it again in 1 s" in world.said


async def test_comeback_request_is_dropped_when_its_member_is_killed(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with supervised(world, "taskmanager-1"):
        (before,) = pids(world)
        world.returning.add("taskmanager-1")
        kill(world, "taskmanager-1")
        await world.until(before)
    assert not world.returning


async def test_drained_member_leaves_even_when_the_record_cannot_be_written(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with supervised(world, "auth"):
        gone = await drained(world)
        world.members.append(gone)
        world.no_record = [FULL]
        supervisor = Supervisor(world.members, world.start, world.record, world.say, world.comes_back, world.pause)
        stop = asyncio.Event()
        running = asyncio.create_task(supervisor.run(stop))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while gone in world.members or not world.recorded:
                world.changed.clear()
                await world.changed.wait()
        stop.set()
        await running
    assert "taskmanager-1 is drained and has left" in world.said


@dataclass
class Mute(World):
    """A world in which nothing can be reported: the disk with the log is full."""

    def say(self, line: str) -> None:
        raise FULL


async def test_a_member_is_started_again_although_nothing_can_be_reported(tmp_path: Path) -> None:
    world = Mute(tmp_path)
    async with supervised(world, "auth"):
        (before,) = pids(world)
        world.no_start, world.no_record = [FULL], [FULL]
        kill(world, "auth")
        await world.until(before)


async def test_a_broken_pipe_of_the_console_does_not_end_supervision(tmp_path: Path) -> None:
    """Rich makes a SystemExit of it, which would end the event loop."""

    def broken(_line: str) -> None:
        raise SystemExit(1)

    unfailing(broken)("a line")
    world = World(tmp_path)
    async with supervised(world, "auth") as supervisor:
        supervisor.report("another")
