"""A driver's agent is started before it has an identity, and does nothing until then."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sluice.pki.issuing import SignedChain
from sluice.runtime.messages import DriverCsr, DriverLaunch
from sluice.runtime.node import LeaderPlace
from sluice.runtime.sandbox import IsolationConfig
from sluice.runtime.taskmanager.driver import DriverHome, HostedDriver
from sluice.runtime.taskmanager.errors import DriverNotStarted

AGENT = """
import os, sys
with open("pid", "w") as file:
    file.write(str(os.getpid()))
os.rename("pid", "began")
if sys.stdin.readline():
    open("told", "w").close()
"""
"""Notes in its directory that it runs, and that it was told to begin."""
LAUNCH = DriverLaunch(
    job_id="0" * 32,
    attempt=1,
    allocation_id="slot",
    name="job",
    executors=1,
    executor_cores=1,
    executor_memory_mb=512,
    driver_memory_mb=512,
    stop_grace=1.0,
    start_timeout=60.0,
    lease=0.0,
)


class SignatureRefused(Exception):
    """The JobMaster does not sign."""


def home_of(tmp_path: Path) -> DriverHome:
    argv = (sys.executable, "-c", AGENT)
    return DriverHome(tmp_path, "127.0.0.1", "sluice.local", LeaderPlace(), IsolationConfig(), argv=argv)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # another process brings it about
            await asyncio.sleep(0.01)


async def test_without_a_signature_nothing_is_left_of_the_agent(tmp_path: Path) -> None:
    async def sign(_: DriverCsr) -> SignedChain:
        await until((driver.directory / "began").exists)
        raise SignatureRefused

    driver = HostedDriver(LAUNCH, home_of(tmp_path), token=b"token", sign=sign)
    with pytest.raises(SignatureRefused):
        await driver.start()

    pid = int((driver.directory / "began").read_text())
    assert not psutil.pid_exists(pid)
    assert not driver.started
    assert not (driver.directory / "told").exists()


class SlowToIdentify(HostedDriver):
    """One whose identity comes when the test says so."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(LAUNCH, home_of(tmp_path), token=b"token", sign=_never)
        self.identified = asyncio.Event()

    async def renew_identity(self) -> None:
        await self.identified.wait()


@pytest.mark.parametrize("given_up", [False, True])
async def test_it_begins_when_its_identity_is_there_unless_it_was_given_up(tmp_path: Path, *, given_up: bool) -> None:
    driver = SlowToIdentify(tmp_path)
    starting = asyncio.create_task(driver.start())
    await until((driver.directory / "began").exists)
    assert not driver.started
    if given_up:
        await driver.stop(0)
    driver.identified.set()

    if given_up:
        with pytest.raises(DriverNotStarted, match="given up"):
            await starting
    else:
        await (await starting).wait()
    assert (driver.directory / "told").exists() is not given_up


async def _never(_: DriverCsr) -> SignedChain:
    raise SignatureRefused
