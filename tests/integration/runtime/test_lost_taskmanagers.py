"""The loss of a TaskManager is noticed in spite of other faults.

These are a full mailbox, an error with another TaskManager, and a lost notification.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from sluice.pki.spiffe_id import Role
from sluice.pki.tls.connections import ConnectionLog
from sluice.runtime.gateways import RESOURCE_MANAGER, ResourceManagerGateway
from sluice.runtime.jobmanager.gateways import ResourceManagerInternalGateway
from sluice.runtime.jobmanager.slots.resource_manager import ResourceManager
from sluice.runtime.jobmanager.slots.slot_ledger import AllocationLost
from sluice.runtime.jobmanager.slots.slot_pools import SlotPools
from sluice.runtime.messages import SlotProfile, TaskManagerRegistration
from sluice.runtime.placement import Placement
from sluice.runtime.rpc import RemotePeer, RpcEndpoint, RpcService
from tests.hostile import TestPki
from tests.waiting import until

NAMES = ("tm-1", "tm-2", "tm-3")


class FailingSlots(SlotPools):
    """Slot pools that raise an error once, when the TaskManager ``fails_for`` is lost."""

    fails_for = ""

    def lost(self, name: str) -> list[AllocationLost]:
        if name == self.fails_for:
            self.fails_for = ""
            raise RuntimeError(name)
        return list(super().lost(name))


@dataclass
class World:
    """A ResourceManager with three TaskManagers, each over a connection of its own."""

    manager: ResourceManager
    slots: FailingSlots
    workers: dict[str, RpcService]
    peers: dict[str, RemotePeer]
    failures: list[tuple[RpcEndpoint, BaseException]]

    async def names(self) -> list[str]:
        """The ids of the registered TaskManagers."""
        internal = self.manager.service.local(
            ResourceManagerInternalGateway, RESOURCE_MANAGER, token=self.manager.fencing_token
        )
        return [each.id for each in await internal.taskmanagers()]


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    pki = TestPki(tmp_path / "pki")
    failures: list[tuple[RpcEndpoint, BaseException]] = []
    async with AsyncExitStack() as stack:
        master = RpcService(
            pki.process(Role.JOBMANAGER, "jm-1"), on_failure=lambda endpoint, error: failures.append((endpoint, error))
        )
        stack.push_async_callback(master.close)
        manager = ResourceManager(
            heartbeat_interval=0.05,
            heartbeat_timeout=1000,
            blob_address=("127.0.0.1", 1),
            connections=ConnectionLog(),
        )
        slots = manager._slots = FailingSlots(lambda: "a", placement=Placement.SPREAD)
        await master.start(manager)
        host, port = await master.listen("127.0.0.1", 0)
        made = World(manager, slots, {}, {}, failures)
        for name in NAMES:
            worker = made.workers[name] = RpcService(pki.process(Role.TASKMANAGER, name))
            stack.push_async_callback(worker.close)
            peer = made.peers[name] = await worker.connect(host, port)
            await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(
                TaskManagerRegistration(
                    name=name, host="127.0.0.1", slots=1, profile=SlotProfile(cores=1, memory_mb=512),
                    python="python3", version="0",
                )
            )  # fmt: skip
        yield made


async def test_the_loss_of_a_taskmanager_is_noticed_despite_a_full_mailbox(world: World) -> None:
    capacity, world.manager._mailbox.capacity = world.manager._mailbox.capacity, 0
    await world.peers["tm-2"].close()
    await until(lambda: "tm-2" not in world.manager._registered)
    world.manager._mailbox.capacity = capacity
    assert await world.names() == ["tm-1", "tm-3"]


async def test_the_loss_of_a_taskmanager_that_registered_twice_is_no_internal_failure(world: World) -> None:
    """What follows from an accepted registration is the ResourceManager's own work."""
    registration = TaskManagerRegistration(
        name="tm-1", host="127.0.0.1", slots=2, profile=SlotProfile(cores=1, memory_mb=512), python="p", version="0"
    )
    await world.peers["tm-1"].gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(registration)
    await world.peers["tm-1"].close()
    await until(lambda: "tm-1" not in world.manager._registered)
    assert not world.failures


async def test_an_error_with_one_silent_taskmanager_does_not_hide_the_others(world: World) -> None:
    world.slots.fails_for = "tm-1"
    world.manager._monitor._timeout = -1.0  # all are silent
    await until(lambda: not world.manager._registered)
    assert world.manager.stats.failures == 1
    assert not world.failures  # no reason to end the process
    assert await world.names() == []


async def test_heartbeats_are_still_watched_after_an_error(world: World) -> None:
    world.slots.fails_for = "tm-1"
    world.manager._monitor._targets["tm-1"].last_heard = -10_000.0
    await until(lambda: world.manager.stats.failures == 1)
    world.manager._monitor._targets["tm-3"].last_heard = -10_000.0
    await until(lambda: list(world.manager._registered) == ["tm-2"])
    assert await world.names() == ["tm-2"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_closed_connection_is_noticed_without_a_notification(world: World, name: str) -> None:
    closed = asyncio.Event()

    class Gone:
        """A peer whose connection has closed without a notification."""

        closed = True

        async def close(self, reason: str = "") -> None:
            del reason
            closed.set()

    world.manager._registered[name].peer = Gone()  # type: ignore[assignment]  # stands for a peer
    await until(lambda: name not in world.manager._registered)
    assert len(await world.names()) == len(NAMES) - 1
