"""A TaskManager keeps one driver agent started, for whichever driver comes next."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from sluice.core import end_tasks, make_private_directory
from sluice.pki.issuing import SignedChain
from sluice.runtime.messages import DriverCsr
from sluice.runtime.node import LeaderDiscovery
from sluice.runtime.sandbox import IsolationConfig
from sluice.runtime.taskmanager.processes.agent import DIRECTORY, SpareAgent
from sluice.runtime.taskmanager.processes.driver import DriverHome, HostedDriver
from tests.unit.runtime.taskmanager.launches import LAUNCH
from tests.waiting import until

AGENT = """
import os, sys
with open("pid", "w") as file:
    file.write(str(os.getpid()))
os.rename("pid", "began")
line = sys.stdin.readline()
if line:
    print("told", sys.argv[1], line.strip(), flush=True)
"""
"""Notes in its directory that it runs, and in its log what it was told."""
ARGV = (sys.executable, "-c", AGENT)


@contextlib.asynccontextmanager
async def kept(spare: SpareAgent) -> AsyncIterator[None]:
    """Run ``spare``, which keeps an agent started, during the context."""
    running = asyncio.create_task(spare.run())
    try:
        yield
    finally:
        await end_tasks(running)


def began(tmp_path: Path) -> list[Path]:
    """The files with the process IDs of spare agents that run."""
    return list((tmp_path / DIRECTORY).glob("*/began"))


async def one(tmp_path: Path, spare: SpareAgent, unlike: int = 0) -> int:
    """Wait until ``spare`` has an agent other than ``unlike`` that runs, and return its process ID."""

    def running() -> int:
        kept = spare._agent
        pids = [int(each.read_text()) for each in began(tmp_path)]
        return kept.child.pid if kept is not None and kept.child.pid in pids and kept.child.pid != unlike else 0

    await until(running)
    return running()


class Driver(HostedDriver):
    """A driver that needs no signature."""

    def __init__(self, tmp_path: Path, spare: SpareAgent) -> None:
        home = DriverHome(
            *(tmp_path / "jobs", "127.0.0.1", "sluice.local", LeaderDiscovery(), IsolationConfig()),
            argv=ARGV,
            spare=spare,
        )
        super().__init__(LAUNCH, home, token=b"token", sign=_unsigned)

    async def renew_identity(self) -> None:
        """Do nothing: the driver stays without an identity."""


async def _unsigned(_: DriverCsr) -> SignedChain:
    raise AssertionError


def spare_in(tmp_path: Path, refill_seconds: float = 60.0) -> SpareAgent:
    return SpareAgent(ARGV, tmp_path, networked=False, refill_seconds=refill_seconds)


async def test_a_driver_gets_the_spare_agent_and_its_log(tmp_path: Path) -> None:
    spare = spare_in(tmp_path)
    async with kept(spare):
        waiting = await one(tmp_path, spare)
        driver = Driver(tmp_path, spare)
        child = await driver.start()

        assert child.pid == waiting
        assert (await child.wait()).code == 0
        log = (driver.directory / "driver.agent.log").read_text()
        assert log == f"told --spare {driver.directory / 'driver.json'}\n"
        assert not (driver.directory / "began").exists()
        assert list((tmp_path / DIRECTORY).iterdir()) == []


async def test_another_spare_agent_is_started_after_one_is_taken(tmp_path: Path) -> None:
    spare = spare_in(tmp_path, refill_seconds=0.0)
    async with kept(spare):
        first = await one(tmp_path, spare)
        child = await Driver(tmp_path, spare).start()
        assert child.pid == first
        assert await one(tmp_path, spare, unlike=first) != first
        await child.wait()


@pytest.mark.parametrize("killed", [False, True])
async def test_without_a_spare_agent_a_driver_gets_a_new_one(tmp_path: Path, *, killed: bool) -> None:
    spare = spare_in(tmp_path)
    driver = Driver(tmp_path, spare)
    async with contextlib.AsyncExitStack() as stack:
        if killed:
            await stack.enter_async_context(kept(spare))
            pid = await one(tmp_path, spare)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: not began(tmp_path))
        child = await driver.start()
        await child.wait()
        log = (driver.directory / "driver.agent.log").read_text()
        assert log == f"told {driver.directory / 'driver.json'} begin\n"


async def test_a_spare_agent_that_nobody_takes_ends_with_its_taskmanager(tmp_path: Path) -> None:
    spare = spare_in(tmp_path)
    async with kept(spare):
        pid = await one(tmp_path, spare)
    assert not psutil.pid_exists(pid)
    assert list((tmp_path / DIRECTORY).iterdir()) == []


async def test_spare_agents_of_an_earlier_taskmanager_are_removed(tmp_path: Path) -> None:
    left = make_private_directory(tmp_path / DIRECTORY / "left")
    orphan = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)", cwd=left)
    spare = spare_in(tmp_path)
    async with kept(spare):
        await one(tmp_path, spare)
    await until(lambda: not psutil.pid_exists(orphan.pid))
    await orphan.wait()
    assert not left.exists()


async def test_a_driver_starts_although_the_spare_agent_failed_to_start(tmp_path: Path) -> None:
    spare = SpareAgent((str(tmp_path / "missing"),), tmp_path, networked=False)
    async with kept(spare):
        await until(lambda: list((tmp_path / DIRECTORY).iterdir()) == [])
        child = await Driver(tmp_path, spare).start()
        assert (await child.wait()).code == 0


async def test_a_driver_starts_although_the_spare_agent_directory_is_missing(tmp_path: Path) -> None:
    spare = spare_in(tmp_path)
    (tmp_path / DIRECTORY).rmdir()
    await asyncio.wait_for(spare.run(), 30)
    child = await Driver(tmp_path, spare).start()
    assert (await child.wait()).code == 0


@pytest.mark.parametrize("told", [b"", b"/some/where", b"x" * 10_000 + b"\n"])
def test_a_spare_agent_that_receives_no_spec_path_exits(told: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sluice.runtime.spark.driver.main", "--spare"],
        input=told,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1
    assert b"path of the spec" in ended.stderr
