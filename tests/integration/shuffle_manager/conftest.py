"""ShuffleManagers, workers and JobManagers in this process, over real mutual TLS.

Workers store no data: they only record what they would keep.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.messages import WorkerAddress
from sluice.runtime.processes.shuffle_manager import shuffle_manager
from sluice.runtime.processes.shuffle_worker import registered_worker
from sluice.runtime.rpc import RpcService
from sluice.runtime.shuffle.config import ShuffleConfig
from sluice.runtime.shuffle.control_plane.manager_link import ShuffleManagerLink
from sluice.runtime.shuffle.control_plane.messages import (
    JobReport,
    ShuffleOverview,
    WorkerReport,
    WorkerState,
)
from sluice.runtime.shuffle.manager_finder import shuffle_manager_finder
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.waiting import until

DEADLINE_SECONDS = 40.0
CONFIG = ShuffleConfig(
    enabled=True, heartbeat_interval=0.1, heartbeat_timeout=20.0, job_lease=30.0, allocation_timeout=20.0
)


async def until_seen(link: ShuffleManagerLink, check: Callable[[ShuffleOverview], object], what: str) -> None:
    """Poll until the manager shows what ``check`` wants to see."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not check(await link.overview()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.02)


@dataclass
class NotedWorker:
    """A fake worker that records the control plane's calls.

    ``kept`` stands for its files: it outlives a restart.
    """

    kept: dict[str, set[int]] = field(default_factory=dict)
    allowed: dict[str, bytes] = field(default_factory=dict)
    draining: bool = False
    expected: set[tuple[str, str]] = field(default_factory=set)
    handed_over: list[tuple[str, int, str]] = field(default_factory=list)

    def jobs(self) -> tuple[str, ...]:
        """The jobs that may write, and the jobs with data."""
        return tuple(sorted({*self.allowed, *self.kept}))

    def kept_shuffles(self, job_id: str) -> tuple[int, ...]:
        """The recorded shuffles of the job."""
        return tuple(sorted(self.kept.get(job_id, ())))

    def allow_job(self, job_id: str, integrity_key: bytes) -> None:
        """Record that the job may write."""
        self.allowed[job_id] = integrity_key

    async def release_job(self, job_id: str) -> None:
        """Forget the job and its shuffles."""
        self.allowed.pop(job_id, None)
        self.kept.pop(job_id, None)

    async def release_shuffle(self, job_id: str, shuffle_number: int) -> None:
        """Forget the shuffle."""
        self.kept.get(job_id, set()).discard(shuffle_number)

    def expect(self, job_id: str, worker: str) -> None:
        """Record the call."""
        self.expected.add((job_id, worker))

    def hand_over(self, job_id: str, shuffle: int, to: WorkerAddress) -> int:
        """Record the call; nothing is left to hand over."""
        self.handed_over.append((job_id, shuffle, to.name))
        return 0

    def drain(self, wanted: bool) -> None:
        """Record whether the worker is draining."""
        self.draining = wanted

    def report(self) -> WorkerReport:
        """A report with a thousand bytes for each shuffle."""
        jobs = tuple(JobReport(job_id=job, bytes=1000 * len(ids)) for job, ids in self.kept.items())
        return WorkerReport(jobs=jobs, draining=self.draining)


@dataclass
class Service:
    """Starts the processes of a test; all of them are stopped at its end."""

    pki: TestPki
    home: Home
    config: ShuffleConfig = CONFIG
    managers: dict[str, AsyncExitStack] = field(default_factory=dict)
    workers: dict[str, AsyncExitStack] = field(default_factory=dict)
    clusters: list[AsyncExitStack] = field(default_factory=list)

    def identity(self, role: Role, name: str) -> TlsIdentity:
        """The identity of a process, issued in the home at the first call."""
        directory = self.home.identity(role, name)
        if not directory.exists():
            self.pki.issuer.issue_to(directory, SpiffeId.process(TRUST_DOMAIN, role, name), ips=["127.0.0.1"])
        return TlsIdentity(directory)

    async def start_manager(self, name: str = "manager-1") -> None:
        """Start a ShuffleManager; it leads or stands by when this returns."""
        self.identity(Role.SHUFFLE_MANAGER, name)
        stack = self.managers[name] = AsyncExitStack()
        config = RuntimeConfig(trust_domain=TRUST_DOMAIN, shuffle=self.config)
        await stack.enter_async_context(shuffle_manager(self.home, config, name))

    async def stop_manager(self, name: str = "manager-1") -> None:
        """Stop a ShuffleManager in an orderly way."""
        await self.managers.pop(name).aclose()

    async def start_worker(self, name: str, worker: NotedWorker | None = None) -> NotedWorker:
        """Start a worker, and wait until it is registered."""
        worker = worker or NotedWorker()
        stack = self.workers[name] = AsyncExitStack()
        identity = self.identity(Role.SHUFFLE_WORKER, name)
        await stack.enter_async_context(
            registered_worker(self.home, self.config, identity, worker, ("127.0.0.1", 40000 + len(self.workers)))
        )
        await self.until_registered(name)
        return worker

    async def until_registered(self, *names: str) -> None:
        """Wait until these workers have announced that they are registered."""
        for name in names:
            path = self.home.run / "endpoints" / f"shuffle-worker-{name}.json"
            await until(path.exists, f"{name} is registered")

    async def until_state(self, link: ShuffleManagerLink, name: str, state: WorkerState) -> None:
        """Wait until the manager sees the worker in ``state``."""
        await until_seen(link, lambda seen: (name, state) in {(w.name, w.state) for w in seen.workers}, state.value)

    async def stop_worker(self, name: str) -> None:
        """Stop a worker in an orderly way."""
        await self.workers.pop(name).aclose()

    async def cluster(self, secret: bytes = b"of the first cluster", name: str = "jm-1") -> ShuffleManagerLink:
        """Start the link of a JobManager whose cluster has this secret."""
        stack = AsyncExitStack()
        self.clusters.append(stack)
        rpc = RpcService(self.identity(Role.JOBMANAGER, name))
        stack.push_async_callback(rpc.close)
        finder = shuffle_manager_finder(rpc, self.home, self.config)
        link = ShuffleManagerLink(
            finder, secret, replicas=self.config.replicas, allocation_timeout=self.config.allocation_timeout
        )
        stack.push_async_callback(link.close)
        renewing = asyncio.create_task(link.run())
        stack.callback(renewing.cancel)
        return link

    async def close(self) -> None:
        """Stop everything."""
        for stack in (*self.clusters, *self.workers.values(), *self.managers.values()):
            await stack.aclose()


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """The shuffle service of a new home; nothing is started yet."""
    pki = TestPki(tmp_path)
    started = Service(pki, pki.home.create())
    yield started
    await started.close()
