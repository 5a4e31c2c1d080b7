"""The processes of :mod:`benchmarks.control_plane`: a real ResourceManager, and simulated TaskManagers.

Run it as ``jobmanager DIRECTORY`` or ``taskmanagers PORT DIRECTORY``. :mod:`benchmarks.worker` defines how the
processes get their orders.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil

from benchmarks.worker import Figures, next_order, say
from sluice.pki import Role
from sluice.pki.tls import ConnectionLog, TlsIdentity
from sluice.runtime import (
    RESOURCE_MANAGER,
    TASK_EXECUTOR,
    JobMasterGateway,
    ResourceManagerGateway,
    SlotCount,
    SlotOffer,
    SlotProfile,
    SlotReport,
    SlotRequest,
    SlotState,
    SlotStatus,
    TaskManagerRegistration,
    jobmaster_endpoint,
)
from sluice.runtime.jobmanager import ResourceManagerInternalGateway, SlotRequirement
from sluice.runtime.jobmanager.slots import ResourceManager
from sluice.runtime.node import allow_many_files
from sluice.runtime.rpc import (
    PeerUnreachable,
    PermanentlyFencedRpcEndpoint,
    RemotePeer,
    RpcEndpoint,
    RpcService,
    RpcTimeout,
    rpc,
)

SLOTS = 4
PROFILE = SlotProfile(cores=1, memory_mb=1024)
JOB = "0123456789abcdef0123456789abcdef"
TOKEN = bytes(16)
AT_ONCE = 32
"""How many connections one process opens, or heartbeats it sends, concurrently."""
PATIENCE_SECONDS = 300.0
HEARTBEAT_TIMEOUT_SECONDS = 600.0
"""Long, so that no TaskManager is lost during a slow phase."""


_T = TypeVar("_T")


class OfferGateway(Protocol):
    """The part of :class:`sluice.runtime.gateways.JobMasterGateway` that this benchmark needs."""

    @rpc(allow={Role.TASKMANAGER})
    async def offer_slot(self, offer: SlotOffer) -> bool:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def slots_lost(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """See :class:`sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        ...


class Master(PermanentlyFencedRpcEndpoint):
    """A JobMaster that accepts every slot and does nothing with it."""

    def __init__(self) -> None:
        super().__init__(jobmaster_endpoint(JOB), OfferGateway, TOKEN)
        self.offered: set[str] = set()

    async def offer_slot(self, offer: SlotOffer) -> bool:
        """Accept the slot."""
        self.offered.add(offer.allocation_id)
        return True

    async def slots_lost(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """Fail: no TaskManager is killed in this benchmark."""
        raise SystemExit(f"{taskmanager} lost {allocation_ids}")


class TaskManagerSide(Protocol):
    """The calls that the ResourceManager makes to a TaskManager."""

    @rpc(allow={Role.JOBMANAGER})
    async def request_slot(self, request: SlotRequest) -> None:
        """See :class:`sluice.runtime.gateways.TaskExecutorGateway`."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def free_slot(self, allocation_id: str) -> None:
        """See :class:`sluice.runtime.gateways.TaskExecutorGateway`."""
        ...


class TaskManager(RpcEndpoint):
    """A simulated TaskManager with four slots, its own identity and its own connection, but without executors."""

    def __init__(self, name: str, service: RpcService) -> None:
        super().__init__(TASK_EXECUTOR, TaskManagerSide)
        self.taskmanager = name
        self.rpc = service
        self.peer: RemotePeer
        self.resource_manager: ResourceManagerGateway
        self.slots = [SlotStatus(number, SlotState.FREE) for number in range(SLOTS)]

    async def join(self, port: int) -> None:
        """Connect and register."""
        await self.rpc.start(self)
        registration = TaskManagerRegistration(self.taskmanager, "localhost", SLOTS, PROFILE, "3.11", "0")
        while True:
            try:
                self.peer = await self.rpc.connect("127.0.0.1", port)
                gateway = self.peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER)
                accepted = await _patiently(partial(gateway.register, registration))
                break
            except PeerUnreachable:  # the machine may be busy; real TaskManagers retry as well
                await asyncio.sleep(1.0)
        self.resource_manager = self.peer.gateway(
            ResourceManagerGateway, RESOURCE_MANAGER, token=accepted.fencing_token
        )

    async def beat(self) -> None:
        """Send one heartbeat."""
        await _patiently(lambda: self.resource_manager.heartbeat(SlotReport(tuple(self.slots))))

    async def request_slot(self, request: SlotRequest) -> None:
        """Reserve the slot and offer it, as a TaskExecutor does."""
        self._set(request.slot, SlotState.ALLOCATED, request)
        self._offer(request)

    def _offer(self, request: SlotRequest) -> None:
        master = self.peer.gateway(JobMasterGateway, request.jobmaster_endpoint, token=request.jobmaster_token)
        offer = SlotOffer(self.taskmanager, "localhost", request.slot, request.allocation_id, PROFILE)
        self.hand_off(
            master.offer_slot(offer),
            then=lambda _: self._set(request.slot, SlotState.ACTIVE, request),
            failed=lambda _: self._offer(request),  # only a timeout is possible: no process is killed here
        )

    async def free_slot(self, allocation_id: str) -> None:
        """Free the slot."""
        for number, slot in enumerate(self.slots):
            if slot.allocation_id == allocation_id:
                self.slots[number] = SlotStatus(number, SlotState.FREE)

    def _set(self, number: int, state: SlotState, request: SlotRequest) -> None:
        self.slots[number] = SlotStatus(number, state, request.allocation_id, request.job_id)


async def jobmanager(directory: Path) -> None:
    """Serve until told to end."""
    identity, connections = TlsIdentity(directory), ConnectionLog()
    service = RpcService(identity, connections=connections)
    resource_manager = ResourceManager(
        heartbeat_interval=10.0,
        heartbeat_timeout=HEARTBEAT_TIMEOUT_SECONDS,
        blob_address=("localhost", 1),
        connections=connections,
    )
    master = Master()
    await service.start(resource_manager)
    await service.start(master)
    _, port = await service.listen("127.0.0.1", 0)
    internal = service.local(ResourceManagerInternalGateway, RESOURCE_MANAGER, token=resource_manager.fencing_token)

    async def allocate(count: int) -> None:
        await internal.require_slots(SlotRequirement(JOB, (SlotCount(PROFILE, count),), jobmaster_endpoint(JOB), TOKEN))
        await _until(lambda: len(master.offered) == count)

    async def release(count: int) -> None:
        await internal.release_job(JOB)

        async def free() -> int:
            return sum(each.slots_free for each in await internal.taskmanagers())

        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            asked = time.monotonic()
            if await free() >= count:
                return
            if asked > deadline:
                raise SystemExit("slots are not freed")
            await asyncio.sleep(20 * (time.monotonic() - asked))  # the cost of polling must stay negligible

    say({"port": port, **_usage()})
    while order := await next_order():
        started = time.perf_counter()
        if order["do"] == "allocate":
            await allocate(order["count"])
        elif order["do"] == "release":
            await release(order["count"])
        seconds = time.perf_counter() - started
        say({"seconds": seconds, "taskmanagers": len(await internal.taskmanagers()), **_usage()})
    await service.close()


async def taskmanagers(port: int, directory: Path) -> None:
    """Simulate TaskManagers until told to end."""
    members: list[TaskManager] = []

    async def do(order: Mapping[str, Any]) -> None:
        if order["do"] == "join":
            for number in range(order["first"], order["last"]):
                name = f"tm-{number}"
                members.append(TaskManager(name, RpcService(TlsIdentity(directory / name))))
            await _each(members, lambda each: each.join(port))
        elif order["do"] == "beat":
            await _each(members, TaskManager.beat)

    say({"ready": 1})
    while order := await next_order():
        started = time.perf_counter()
        await do(order)
        say({"seconds": time.perf_counter() - started})
    await _each(members, lambda each: each.rpc.close())


async def _patiently(call: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a call that times out, as TaskManagers do: the machine may be busy."""
    while True:
        try:
            return await call()
        except RpcTimeout:
            continue


async def _each(members: Iterable[TaskManager], work: Callable[[TaskManager], Awaitable[None]]) -> None:
    """Do ``work`` for all members, :data:`AT_ONCE` at a time."""
    waiting = iter(list(members))

    async def some() -> None:
        for each in waiting:
            await work(each)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  # what is waited for sets no event
            await asyncio.sleep(0.02)


def _usage() -> Figures:
    gc.collect()
    process = psutil.Process()
    times = process.cpu_times()
    return {"cpu_s": times.user + times.system, "rss_mib": process.memory_info().rss / (1 << 20)}


def main() -> None:
    """See the module's documentation."""
    logging.basicConfig(level=logging.ERROR)
    allow_many_files()
    role, *rest = sys.argv[1:]
    if role == "jobmanager":
        asyncio.run(jobmanager(Path(rest[0])))
    else:
        asyncio.run(taskmanagers(int(rest[0]), Path(rest[1])))


if __name__ == "__main__":
    main()
