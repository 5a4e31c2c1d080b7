"""A JobMaster that has vanished without notice does not cause slot reservations forever."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sluice.pki.spiffe_id import Role
from sluice.pki.tls.connections import ConnectionLog
from sluice.runtime.gateways import (
    RESOURCE_MANAGER,
    TASK_EXECUTOR,
    ResourceManagerGateway,
    TaskExecutorGateway,
)
from sluice.runtime.jobmanager.errors import LogNotFound
from sluice.runtime.jobmanager.gateways import ResourceManagerInternalGateway, SlotRequirement
from sluice.runtime.jobmanager.slots.resource_manager import ResourceManager
from sluice.runtime.messages import (
    ConnectionEvidence,
    DriverLaunch,
    EventLogChunk,
    ExecutorExcess,
    ExecutorLaunch,
    LogChunk,
    SlotCount,
    SlotProfile,
    SlotReport,
    SlotRequest,
    SlotState,
    SlotStatus,
    TaskManagerRegistration,
)
from sluice.runtime.rpc import RpcEndpoint, RpcService
from tests.hostile import TestPki

JOB = "0" * 32
QUIET_HEARTBEATS = 5
MAX_HEARTBEATS = 500
FREE = SlotReport(slots=(SlotStatus(slot=0, state=SlotState.FREE),))


class ForgetfulTaskExecutor(RpcEndpoint):
    """Accepts every reservation, finds nobody to offer the slot to, and frees it at once."""

    def __init__(self) -> None:
        super().__init__(TASK_EXECUTOR, TaskExecutorGateway)
        self.requests = 0

    async def request_slot(self, request: SlotRequest) -> None:
        assert request.job_id == JOB
        self.requests += 1

    async def free_slot(self, allocation_id: str) -> None: ...

    async def drain(self, draining: bool) -> None: ...

    async def leave(self) -> None: ...

    async def launch_executor(self, launch: ExecutorLaunch) -> None: ...

    async def launch_driver(self, launch: DriverLaunch) -> None: ...

    async def stop_driver(self, job_id: str, attempt: int, grace_seconds: float) -> None: ...

    async def excesses(self, job_id: str) -> tuple[ExecutorExcess, ...]:
        return ()

    async def driver_logs(self, job_id: str, attempt: int) -> tuple[str, ...]:
        return ()

    async def read_driver_log(self, job_id: str, attempt: int, name: str, offset: int, limit: int) -> LogChunk:
        raise LogNotFound("this driver keeps none")

    async def read_event_log(self, job_id: str, attempt: int, offset: int, limit: int) -> EventLogChunk:
        raise LogNotFound("this driver keeps none")

    async def give_way(self, job_id: str, executor_id: int) -> None: ...

    async def kill_executor(self, job_id: str, executor_id: int) -> None: ...

    async def release_job(self, job_id: str) -> None: ...

    async def read_executor_log(self, job_id: str, executor_id: int, stream: str, offset: int, limit: int) -> LogChunk:
        raise LogNotFound("this executor keeps none")

    async def connections(self, job_id: str) -> tuple[ConnectionEvidence, ...]:
        return ()


async def test_slots_are_not_reserved_repeatedly_for_a_vanished_jobmaster(tmp_path: Path) -> None:
    pki = TestPki(tmp_path / "pki")
    master = RpcService(pki.process(Role.JOBMANAGER, "jm-1"))
    worker = RpcService(pki.process(Role.TASKMANAGER, "tm-1"))
    try:
        manager = ResourceManager(
            heartbeat_interval=10, heartbeat_timeout=50, blob_address=("127.0.0.1", 1), connections=ConnectionLog()
        )
        await master.start(manager)
        host, port = await master.listen("127.0.0.1", 0)
        executor = ForgetfulTaskExecutor()
        await worker.start(executor)
        peer = await worker.connect(host, port)
        accepted = await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(
            TaskManagerRegistration(
                name="tm-1",
                host="127.0.0.1",
                slots=1,
                profile=SlotProfile(cores=1, memory_mb=512),
                python="python3",
                version="0",
            )
        )
        fenced = peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER, token=accepted.fencing_token)
        internal = master.local(ResourceManagerInternalGateway, RESOURCE_MANAGER, token=manager.fencing_token)
        await internal.require_slots(
            SlotRequirement(
                job_id=JOB,
                wanted=(SlotCount(SlotProfile(cores=1, memory_mb=512), 1),),
                jobmaster_endpoint=f"jobmaster/{JOB}",
                jobmaster_token=b"t",
            )
        )
        quiet = 0
        for _ in range(MAX_HEARTBEATS):
            before = executor.requests
            await fenced.heartbeat(FREE)
            await asyncio.sleep(0)
            quiet = quiet + 1 if executor.requests == before and before else 0
            if quiet == QUIET_HEARTBEATS:
                break
        assert quiet == QUIET_HEARTBEATS, f"{executor.requests} reservations for nobody"
    finally:
        await worker.close()
        await master.close()
