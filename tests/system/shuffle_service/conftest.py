"""A shuffle service of real processes, which can be killed, and JobManagers and executors that use it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from sluice.core.home import Home
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.messages import ShuffleAllocation
from sluice.runtime.node.child_process import ChildProcess
from sluice.runtime.rpc import RpcService
from sluice.runtime.shuffle.client.client import ShuffleClient
from sluice.runtime.shuffle.config import ShuffleConfig
from sluice.runtime.shuffle.control_plane.errors import NoShuffleService
from sluice.runtime.shuffle.control_plane.manager_link import ShuffleManagerLink
from sluice.runtime.shuffle.control_plane.messages import WorkerView
from sluice.runtime.shuffle.data_plane.sealing import SealKeys
from sluice.runtime.shuffle.manager_finder import shuffle_manager_finder
from tests.hostile import TRUST_DOMAIN, TestPki

DEADLINE_SECONDS = 60.0
SETTINGS = """
[shuffle]
enabled = true
memory_mb = 32
disk_reserve_mb = 1
job_lease = 20.0
heartbeat_interval = 0.3
heartbeat_timeout = 5.0
"""
_T = TypeVar("_T")


async def eventually(check: Callable[[], Awaitable[_T]], what: str) -> _T:
    """Poll ``check`` until it returns something true, and return that."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        answer = await check()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.05)


@dataclass
class ShuffleWorld:
    """What a test works with; :meth:`close` ends everything that was started."""

    pki: TestPki
    home: Home
    processes: dict[str, ChildProcess] = field(default_factory=dict)
    clusters: AsyncExitStack = field(default_factory=AsyncExitStack)

    def identity(self, role: Role, name: str) -> TlsIdentity:
        """An identity in the home, issued if it does not exist."""
        directory = self.home.identity(role, name)
        if not directory.exists():
            self.pki.issuer.issue_to(directory, SpiffeId.process(TRUST_DOMAIN, role, name), ips=["127.0.0.1"])
        return TlsIdentity(directory)

    async def start(self, role: Role, name: str) -> None:
        """Run ``sluice run ROLE --name NAME``, as a user would start it."""
        self.identity(role, name)
        argv = [
            sys.executable,
            "-P",
            "-m",
            "sluice.cli.main",
            "run",
            role.value,
            "--name",
            name,
            "--home",
            str(self.home.root),
        ]
        with (self.home.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = await ChildProcess.start(
                argv, env={"PATH": os.environ["PATH"]}, cwd=self.home.root, stdout=log, stderr=asyncio.subprocess.STDOUT
            )

    async def kill(self, name: str) -> None:
        """Send SIGKILL to the process, and wait until it has ended."""
        process = self.processes.pop(name)
        process.signal_group(signal.SIGKILL)
        await process.wait()

    async def cluster(self, name: str = "jm-1", secret: bytes = b"of the first cluster") -> ShuffleManagerLink:
        """A JobManager's link to the shuffle manager, for the cluster with this secret."""
        config = ShuffleConfig(enabled=True)
        rpc = RpcService(self.identity(Role.JOBMANAGER, name))
        self.clusters.push_async_callback(rpc.close)
        link = ShuffleManagerLink(
            shuffle_manager_finder(rpc, self.home, config), secret, replicas=1, allocation_timeout=30.0
        )
        self.clusters.push_async_callback(link.close)
        renewing = asyncio.create_task(link.run())
        self.clusters.callback(renewing.cancel)
        return link

    def client(self, job_id: str, allocation: ShuffleAllocation, seal: SealKeys | None = None) -> ShuffleClient:
        """A shuffle client with the identity of an executor of the job."""
        identity = self.pki.identity(SpiffeId.executor(TRUST_DOMAIN, job_id, 1))
        key = allocation.integrity_key.hex()
        return ShuffleClient(identity, allocation.workers, key, replicas=allocation.replicas, seal=seal)

    async def until(self, link: ShuffleManagerLink, name: str, state: str) -> WorkerView:
        """Wait until the manager sees worker ``name`` in ``state``."""

        async def seen() -> WorkerView | None:
            try:
                workers = (await link.overview()).workers
            except NoShuffleService:
                return None  # nobody manages yet, or not any more
            return next((each for each in workers if (each.name, each.state.value) == (name, state)), None)

        view = await eventually(seen, f"{name} is {state}")
        assert view is not None
        return view

    def files(self) -> list[Path]:
        """The files that workers keep on disk for the test job, whose id is 32 times ``a``."""
        return [path for path in self.home.shuffle.rglob("*") if path.is_file() and "a" * 32 in str(path)]

    async def close(self) -> None:
        """End everything."""
        await self.clusters.aclose()
        for name in list(self.processes):
            await self.kill(name)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ShuffleWorld]:
    """A world in which no process runs yet."""
    pki = TestPki(tmp_path)
    pki.home.create()
    (pki.home.root / "sluice.toml").write_text(SETTINGS)
    started = ShuffleWorld(pki, pki.home)
    try:
        yield started
    finally:
        await started.close()
