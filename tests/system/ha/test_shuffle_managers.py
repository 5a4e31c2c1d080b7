"""ShuffleManagers on machines of their own, elected by ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from sluice.core.home import Home
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.ha.config import HaConfig
from sluice.runtime.ha.zookeeper.session import ZooKeeperSession
from sluice.runtime.processes.shuffle_manager import shuffle_ha, shuffle_manager
from sluice.runtime.processes.shuffle_worker import run_shuffle_worker
from sluice.runtime.rpc import RpcService
from sluice.runtime.shuffle.config import ShuffleConfig
from sluice.runtime.shuffle.control_plane.errors import ShuffleMisconfigured
from sluice.runtime.shuffle.control_plane.manager_link import ShuffleManagerLink
from sluice.runtime.shuffle.manager_finder import shuffle_manager_finder
from tests.free_ports import free_ports
from tests.hostile import TRUST_DOMAIN
from tests.system.ha.ensemble import Ensemble
from tests.system.ha.world import eventually

JOB, OTHER = "a" * 32, "b" * 32
NAMES = ("sm-1", "sm-2")


@dataclass
class Machines:
    """Processes with separate homes that find each other through ``shuffle.managers``."""

    ensemble: Ensemble
    root: Path
    config: RuntimeConfig
    running: dict[str, AsyncExitStack] = field(default_factory=dict)

    def home(self, role: Role, name: str) -> Home:
        """Create a home that has the identity of ``name``."""
        home = Home.at(self.root / name).create()
        directory = home.identity(role, name)
        if not directory.exists():
            spiffe_id = SpiffeId.process(TRUST_DOMAIN, role, name)
            self.ensemble.pki.issuer.issue_to(directory, spiffe_id, ips=["127.0.0.1"])
        return home

    async def start(self, name: str) -> None:
        """Start a manager; it leads or stands by when this returns."""
        port = self.config.shuffle.addresses()[NAMES.index(name)][1]
        shuffle = msgspec.structs.replace(self.config.shuffle, manager_port=port)
        config = msgspec.structs.replace(self.config, shuffle=shuffle)
        stack = self.running[name] = AsyncExitStack()
        await stack.enter_async_context(shuffle_manager(self.home(Role.SHUFFLE_MANAGER, name), config, name))

    async def stop(self, name: str) -> None:
        """Shut down a manager in an orderly way."""
        await self.running.pop(name).aclose()


@pytest.fixture
async def shuffle_machines(ensemble: Ensemble, tmp_path: Path) -> AsyncIterator[Machines]:
    """Provide machines on which nothing is started yet."""
    await asyncio.to_thread(ensemble.until_whole)
    ports = free_ports(2)
    config = RuntimeConfig(
        trust_domain=TRUST_DOMAIN,
        ha=HaConfig(
            mode="zookeeper",
            storage="/unused",
            cluster="shared-by-both",
            session_timeout=4.0,
            zookeeper_hosts=ensemble.hosts,
            jobmanagers=("jm-1",),
        ),
        shuffle=ShuffleConfig(
            enabled=True,
            managers=tuple(f"127.0.0.1:{port}" for port in ports),
            manager_names=NAMES,
            memory_mb=32,
            disk_reserve_mb=1,
            heartbeat_interval=0.2,
            heartbeat_timeout=10.0,
        ),
    )
    made = Machines(ensemble, tmp_path, config)
    yield made
    for name in list(made.running):
        await made.stop(name)


async def test_the_shuffle_manager_of_the_other_machine_continues_live_jobs(shuffle_machines: Machines) -> None:
    machines = shuffle_machines
    for name in NAMES:
        await machines.start(name)
    home = machines.home(Role.SHUFFLE_WORKER, "sw-1")
    worker = asyncio.create_task(run_shuffle_worker(home, machines.config.shuffle, "sw-1"))
    rpc = RpcService(TlsIdentity(machines.home(Role.JOBMANAGER, "jm-1").identity(Role.JOBMANAGER, "jm-1")))
    link = ShuffleManagerLink(
        shuffle_manager_finder(rpc, home, machines.config.shuffle), b"s" * 32, replicas=1, allocation_timeout=60.0
    )
    try:
        before = await link.allocate(JOB, 0, 4)
        led = (await link.overview()).manager.rpartition("/")[2]
        await machines.stop(led)
        after = await link.allocate(JOB, 1, 4)
        assert after.integrity_key == before.integrity_key
        assert (await link.overview()).manager.rpartition("/")[2] != led
        await link.release_job(JOB)

        async def over() -> bool:
            return (await link.overview()).jobs == ()

        await eventually(over, "nothing of the job is left")
    finally:
        await link.close()
        await rpc.close()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


async def test_jobmanagers_cannot_access_the_zookeeper_nodes_of_shuffle_managers(shuffle_machines: Machines) -> None:
    machines = shuffle_machines
    await machines.start("sm-1")
    root = shuffle_ha(machines.config.ha, machines.config.shuffle).zookeeper_root
    assert root == "/sluice-shuffle"
    identity = machines.ensemble.pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "sm-1"))
    session = ZooKeeperSession(machines.ensemble.hosts, identity, 4.0, lambda _: None)
    session.start()
    try:

        async def refused() -> bool:
            try:
                await session.children(f"{root}/shared-by-both/jobs")
            except Exception as error:  # noqa: BLE001  # kazoo's errors have no common base that is typed
                return type(error).__name__ == "NoAuthError"
            return False

        await eventually(refused, "a JobManager of the same name is refused")
    finally:
        await session.close()


def test_zookeeper_mode_without_manager_names_is_refused() -> None:
    with pytest.raises(ShuffleMisconfigured, match="manager_names"):
        shuffle_ha(HaConfig(mode="zookeeper", zookeeper_hosts=("zk:2281",)), ShuffleConfig())
    assert shuffle_ha(HaConfig(mode="kubernetes"), ShuffleConfig()).cluster == "default-shuffle"
