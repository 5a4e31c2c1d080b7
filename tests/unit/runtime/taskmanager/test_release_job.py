"""A TaskManager forgets a job that is over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from sluice.runtime.gateways import TASK_EXECUTOR, TaskExecutorGateway
from sluice.runtime.messages import ExecutorExit, SlotKind, SlotProfile, SlotRequest
from sluice.runtime.rpc import RpcEndpoint, RpcTimeout
from sluice.runtime.taskmanager.slot_table import SlotTable
from sluice.runtime.taskmanager.slot_tables import SlotTables
from sluice.runtime.taskmanager.task_executor import TaskExecutor
from tests.unit.runtime.taskmanager.launches import LAUNCH

PROFILE = SlotProfile(cores=1, memory_mb=512)
REQUEST = SlotRequest(
    slot=0,
    allocation_id="allocation",
    job_id=LAUNCH.job_id,
    jobmaster_endpoint="jobmaster",
    jobmaster_token=b"token",
    profile=PROFILE,
    kind=SlotKind.DRIVER,
)


class Processes:
    """Executors or drivers that end when the test says so."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.forgotten: list[str] = []

    async def end_slot(self, _slot: object) -> None:
        await self.ended.wait()

    def release_job(self, job_id: str) -> None:
        self.forgotten.append(job_id)


async def test_a_job_is_released_even_if_its_jobmaster_stops_waiting() -> None:
    """It waits for five seconds, and a large job may take longer to end."""
    processes: Any = Processes()
    executor = task_executor()
    executor._drivers = executor._executors = processes
    released: Any = executor.release_job
    call = asyncio.ensure_future((await released(LAUNCH.job_id)).coroutine)
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.sleep(0)
    processes.ended.set()
    await asyncio.gather(*executor._tasks)
    assert processes.forgotten == [LAUNCH.job_id] * 2


def task_executor() -> TaskExecutor:
    """An endpoint with a driver's slot that is held, and nothing else."""
    executor = object.__new__(TaskExecutor)
    RpcEndpoint.__init__(executor, TASK_EXECUTOR, TaskExecutorGateway)
    executor._slots = SlotTables(SlotTable(1, PROFILE), SlotTable(1, PROFILE))
    executor._slots.reserve(REQUEST)
    executor._slots_changed = executor._trim_logs = lambda: None  # type: ignore[method-assign]
    executor._trimming, executor._over = asyncio.Lock(), set()
    return executor


async def test_a_slot_is_freed_even_if_the_resource_manager_stops_waiting() -> None:
    """It waits for ten seconds, and never asks again while the slot is being released."""
    processes: Any = Processes()
    executor = task_executor()
    executor._drivers = executor._executors = processes
    freed: Any = executor.free_slot
    call = asyncio.ensure_future((await freed(REQUEST.allocation_id)).coroutine)
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.sleep(0)
    processes.ended.set()
    await asyncio.gather(*executor._tasks)
    assert tuple(executor._slots.held()) == ()


async def test_the_end_of_an_executor_is_reported_until_a_busy_jobmaster_has_heard_it() -> None:
    told: list[ExecutorExit] = []

    class JobMaster:
        async def executor_exited(self, report: ExecutorExit) -> None:
            told.append(report)
            if len(told) == 1:
                raise RpcTimeout("executor_exited gave no answer in 10 s")

    executor: Any = task_executor()
    executor._jobmanager = SimpleNamespace(closed=False)
    executor._jobmaster = lambda _: JobMaster()
    report = ExecutorExit(executor_id=1, exit_code=0, by_application=False, reason="ended", host="h")
    executor._tell_exit(REQUEST, report)
    await asyncio.gather(*executor._tasks)
    assert told == [report, report]
