"""A driver's agent is started before it has an identity, and does nothing until then."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from sluice.pki.issuing import SignedChain
from sluice.runtime.messages import DriverCsr
from sluice.runtime.node import ChildProcess, Exit, LeaderDiscovery
from sluice.runtime.sandbox import IsolationConfig
from sluice.runtime.spark.driver import EXIT_UNUSABLE
from sluice.runtime.taskmanager.errors import DriverNotStarted
from sluice.runtime.taskmanager.processes.driver import DriverHome, HostedDriver
from sluice.runtime.taskmanager.waiting.driver import WaitingDriverAgent
from sluice.runtime.taskmanager.waiting.place import WaitingPlace
from tests.unit.runtime.taskmanager.launches import LAUNCH, ending
from tests.waiting import until

AGENT = """
import os, sys
with open("pid", "w") as file:
    file.write(str(os.getpid()))
os.rename("pid", "began")
if sys.stdin.readline():
    open("told", "w").close()
"""
"""Notes in its directory that it runs, and that it was told to begin."""


class SignatureRefused(Exception):
    """The JobMaster refuses to sign."""


def home_of(tmp_path: Path) -> DriverHome:
    argv = (sys.executable, "-c", AGENT)
    return DriverHome(tmp_path, "127.0.0.1", "sluice.local", LeaderDiscovery(), IsolationConfig(), argv=argv)


async def test_a_driver_agent_is_ended_when_its_certificate_is_refused(tmp_path: Path) -> None:
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
    """A driver whose identity is ready only when the test says so."""

    def __init__(self, tmp_path: Path, waiting: WaitingDriverAgent | None = None) -> None:
        super().__init__(LAUNCH, home_of(tmp_path), token=b"token", sign=_never, waiting=waiting)
        self.identified = asyncio.Event()

    async def renew_identity(self) -> None:
        await self.identified.wait()


@pytest.mark.parametrize("given_up", [False, True])
async def test_a_driver_agent_begins_when_its_identity_is_ready_unless_it_was_stopped(
    tmp_path: Path, *, given_up: bool
) -> None:
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


class Unusable(WaitingDriverAgent):
    """A warm agent that accepts the driver and ends before any of the job's code has run."""

    def __init__(self, tmp_path: Path) -> None:
        self.network = None
        self.place = WaitingPlace.make(tmp_path)
        self.child: ChildProcess | None = None

    async def become(self, spec: Path, logs: Path) -> ChildProcess:
        assert spec.parent == logs
        self.child = await ending(EXIT_UNUSABLE, logs)
        return self.child


@pytest.mark.parametrize("given_up", [False, True])
async def test_an_unusable_warm_agent_is_replaced_by_a_new_one_unless_the_driver_was_stopped(
    tmp_path: Path, *, given_up: bool
) -> None:
    waiting = Unusable(tmp_path)
    driver = SlowToIdentify(tmp_path, waiting)
    driver.identified.set()
    ended = await (await driver.start()).wait()
    assert driver.warm_agent_unusable(ended)
    if given_up:
        await driver.stop(0)
        with pytest.raises(DriverNotStarted, match="given up"):
            await driver.start_again()
    else:
        again = await driver.start_again()
        assert not driver.warm_agent_unusable(await again.wait())
        assert driver.directories == (driver.directory,)
        assert waiting.place is not None
        assert not waiting.place.directory.exists()
    assert (driver.directory / "told").exists() is not given_up


def test_only_a_warm_agent_with_the_unusable_exit_code_counts_as_unusable(tmp_path: Path) -> None:
    assert not SlowToIdentify(tmp_path, Unusable(tmp_path)).warm_agent_unusable(Exit(1))
    assert not SlowToIdentify(tmp_path).warm_agent_unusable(Exit(EXIT_UNUSABLE))


async def _never(_: DriverCsr) -> SignedChain:
    raise SignatureRefused
