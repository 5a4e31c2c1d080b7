"""Drivers in their slots.

If its warm JVM cannot be used, a driver is started again, and its JobMaster hears of only one end.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sluice.pki import SpiffeId
from sluice.pki.issuing import SignedChain
from sluice.runtime.messages import DriverCsr, DriverLaunch, DriverProcessEnd, SlotKind, SlotProfile, SlotRequest
from sluice.runtime.node import ChildProcess, LeaderDiscovery
from sluice.runtime.rpc import RpcEndpoint
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox
from sluice.runtime.spark.driver import EXIT_UNUSABLE
from sluice.runtime.taskmanager.processes.driver import DriverHome
from sluice.runtime.taskmanager.processes.drivers import Drivers
from sluice.runtime.taskmanager.slot_table import TaskSlot
from sluice.runtime.taskmanager.waiting.driver import WaitingDriverAgent
from sluice.runtime.taskmanager.waiting.place import WaitingPlace
from sluice.runtime.taskmanager.waiting.warm_processes import WarmProcesses
from sluice.runtime.warm import WarmConfig, WarmKind
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.unit.runtime.taskmanager.launches import LAUNCH, ending

T = TypeVar("T")
PROFILE = SlotProfile(cores=1, memory_mb=512)
SLOT = TaskSlot(
    index=0,
    profile=PROFILE,
    request=SlotRequest(
        slot=0,
        allocation_id="allocation",
        job_id=LAUNCH.job_id,
        jobmaster_endpoint="jobmaster",
        jobmaster_token=b"token",
        profile=PROFILE,
        kind=SlotKind.DRIVER,
    ),
)
NOTHING: Any = None
"""Networks and launcher: nothing waits by itself here."""


class Endpoint(RpcEndpoint):
    """Stands for the TaskExecutor endpoint: runs background tasks for its drivers."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []

    def hand_off(
        self,
        coroutine: Coroutine[Any, Any, T],
        then: Callable[[T], object] | None = None,
        failed: Callable[[BaseException], object] | None = None,
    ) -> asyncio.Task[T]:
        task = asyncio.ensure_future(coroutine)
        self.tasks.append(task)
        return task


@dataclass
class JobMaster:
    """A fake JobMaster that signs identities and records the drivers that end."""

    pki: TestPki
    ends: list[DriverProcessEnd] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def sign_driver_identity(self, csr: DriverCsr) -> SignedChain:
        driver = SpiffeId.driver(TRUST_DOMAIN, LAUNCH.job_id)
        return self.pki.issuer.sign_csr(csr.csr_pem, driver, lifetime=timedelta(hours=1))

    async def driver_process_ended(self, end: DriverProcessEnd) -> None:
        self.ends.append(end)
        self.heard.set()


class Agent(WaitingDriverAgent):
    """A warm agent that ends with ``code`` when it is given a driver."""

    def __init__(self, parent: Path, code: int) -> None:
        self.network = None
        self.place = WaitingPlace.make(parent)
        self.child = None
        self.code = code

    async def become(self, spec: Path, logs: Path) -> ChildProcess:
        assert spec.parent == logs
        return await ending(self.code, logs)


class Warm(WarmProcesses):
    """A pool of warm processes in which only ``agent`` waits."""

    def __init__(self, work: Path, agent: Agent) -> None:
        sandbox = Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE))
        super().__init__(WarmConfig(jvms=1), work, sandbox, NOTHING, NOTHING)
        self.agent = agent
        self.outcomes: list[str] = []

    def driver(self, launch: DriverLaunch) -> Agent:
        return self.agent

    def used(self, kind: WarmKind) -> None:
        self.outcomes.append(f"{kind} used")

    def unusable(self, kind: WarmKind, why: str) -> None:
        self.outcomes.append(f"{kind} unusable")


@pytest.mark.parametrize(
    ("code", "outcome", "end"),
    [
        pytest.param(EXIT_UNUSABLE, "driver unusable", "exit code 7", id="unusable"),
        pytest.param(1, "driver used", "exit code 1", id="it ran"),
    ],
)
async def test_a_driver_attempt_continues_with_a_new_agent_only_if_the_warm_one_was_unusable(
    tmp_path: Path, code: int, outcome: str, end: str
) -> None:
    jobs = tmp_path / "jobs"
    agent = "import sys; sys.stdin.readline(); raise SystemExit(7)"
    home = DriverHome(
        jobs, "127.0.0.1", TRUST_DOMAIN, LeaderDiscovery(), IsolationConfig(), argv=(sys.executable, "-c", agent)
    )
    warm = Warm(tmp_path, Agent(tmp_path, code))
    master: Any = JobMaster(TestPki(tmp_path / "pki"))
    endpoint = Endpoint()
    drivers = Drivers(endpoint, home, lambda _: master, warm=warm)
    await drivers.launch(LAUNCH, SLOT)
    async with asyncio.timeout(60):
        await master.heard.wait()
        await asyncio.wait(endpoint.tasks)
    assert warm.outcomes == [outcome]
    assert [each.how.split(";")[0] for each in master.ends] == [end]
    assert drivers.attempt_in("allocation") == 0
    assert warm.agent.place is not None
    assert not warm.agent.place.directory.exists()
