"""Slots of the sizes that jobs ask for: carved out of a TaskManager, and given back.

A job that waits for a slot says why.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import aiohttp
import msgspec
import pytest

from sluice.runtime.config import LimitsConfig, ResourcesConfig
from tests.integration.runtime.conftest import DEADLINE_SECONDS, Cluster, eventually


async def taskmanager_of(cluster: Cluster) -> Any:
    """The only TaskManager, as REST describes it."""
    (found,) = (await cluster.get("/v1/taskmanagers"))["taskmanagers"]
    return found


async def test_a_large_executor_gets_a_slot_of_its_size_and_the_next_one_waits_with_a_reason(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")  # two default slots of 1 core and 768 MiB
    job_id = await cluster.submit(executors=2, executor_cores=2, executor_memory_mb=1024)
    await cluster.until_running(job_id, 1)
    shown = await taskmanager_of(cluster)
    carved = [each for each in shown["slots"] if each["job_id"] == job_id]
    assert [(each["slot"], each["cores"], each["memory_mb"]) for each in carved] == [(2, 2, 1024)]
    assert (shown["slots_free"], shown["free"]) == (0, {"cores": 0, "memory_mb": 512})

    async def waiting() -> bool:
        job = await cluster.job(job_id)
        return bool(job["pending_reason"] == "1 of 2 slots: all fitting slots are in use")

    await eventually(waiting, "the reason is shown")
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")

    async def given_back() -> bool:
        shown = await taskmanager_of(cluster)
        return bool(shown["slots_free"] == 2 and len(shown["slots"]) == 2)

    await eventually(given_back, "the carved slot is gone")


async def test_an_executor_larger_than_every_taskmanager_is_refused(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    form = aiohttp.FormData()
    form.add_field("request", json.dumps({"executor_memory_mb": 20 << 10}), content_type="application/json")
    form.add_field("pipeline", b"{}", filename="pipeline.json")
    status, problem = await cluster.call("POST", "/v1/jobs", data=form)
    assert status == 400
    assert "no TaskManager has 1 cores and 20480 MiB, the largest has 2 and 1536" in problem["detail"]
    assert "--executor-memory" in problem["detail"]
    assert (await cluster.get("/v1/jobs"))["jobs"] == []


async def test_a_job_submitted_before_any_taskmanager_reports_an_executor_too_large_for_it(cluster: Cluster) -> None:
    job_id = await cluster.submit(executors=1, executor_cores=64)
    await cluster.start_taskmanager("tm-1")
    reason = "0 of 1 slots: no TaskManager has 64 cores and 768 MiB, the largest has 2 and 1536"

    async def said() -> bool:
        return bool((await cluster.job(job_id))["pending_reason"] == reason)

    await eventually(said, "the reason is shown")
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")


@pytest.mark.parametrize(
    "size",
    [
        pytest.param({"executor_memory_mb": 100}, id="less-heap-than-spark-accepts"),
        pytest.param({"executor_memory_mb": 1 << 40}, id="too-much-heap"),
        pytest.param({"executor_cores": -1}, id="negative-cores"),
        pytest.param({"executor_cores": 5000}, id="too-many-cores"),
    ],
)
async def test_impossible_executors_are_refused(cluster: Cluster, size: dict[str, int]) -> None:
    form = aiohttp.FormData()
    form.add_field("request", json.dumps(size), content_type="application/json")
    form.add_field("pipeline", b"{}", filename="pipeline.json")
    status, problem = await cluster.call("POST", "/v1/jobs", data=form)
    assert status == 400
    assert "executors of" in problem["detail"]


async def restart_with(cluster: Cluster, **limits: int) -> None:
    """Restart the JobManager with these limits."""
    await cluster.master.aclose()
    cluster.config = msgspec.structs.replace(cluster.config, limits=LimitsConfig(**limits))
    await cluster.start_jobmanager()


async def test_a_job_beyond_the_limit_waits_for_its_turn_and_one_beyond_the_queue_is_refused(cluster: Cluster) -> None:
    await restart_with(cluster, max_jobs_per_user=1, max_queued_jobs=2)
    await cluster.start_taskmanager("tm-1")
    first = await cluster.submit(executors=1)
    await cluster.until(first, "RUNNING")
    second, third = await cluster.submit(executors=1), await cluster.submit(executors=1)
    waiting = await cluster.job(third)
    assert waiting["state"] == "INITIALIZING"
    assert waiting["pending_reason"].startswith("queued, 1 jobs ahead of it: 1 jobs of ")
    form = aiohttp.FormData()
    form.add_field("request", "{}", content_type="application/json")
    form.add_field("pipeline", b"{}", filename="pipeline.json")
    status, problem = await cluster.call("POST", "/v1/jobs", data=form)
    assert (status, problem["type"]) == (503, "urn:sluice:problem:TooManyJobs")
    assert (await cluster.call("PATCH", f"/v1/jobs/{second}?mode=cancel"))[0] == 202
    await cluster.until(second, "CANCELED")
    assert (await cluster.job(third))["state"] == "INITIALIZING", "the first one still runs"
    cluster.flag.touch()
    await cluster.until(first, "FINISHED")
    await cluster.until(third, "FINISHED")


async def test_queued_jobs_are_queued_again_after_a_restart(cluster: Cluster) -> None:
    await restart_with(cluster, max_running_jobs=1)
    await cluster.start_taskmanager("tm-1")
    jobs = [await cluster.submit(executors=1) for _ in range(2)]
    await cluster.until(jobs[0], "RUNNING")
    await restart_with(cluster, max_running_jobs=1)
    await cluster.until(jobs[0], "RUNNING")
    assert "1 jobs run, as many as may" in (await cluster.job(jobs[1]))["pending_reason"]
    cluster.flag.touch()
    for job_id in jobs:
        await cluster.until(job_id, "FINISHED")


async def test_the_jobs_of_one_user_hold_no_more_slots_than_the_limit(cluster: Cluster) -> None:
    await restart_with(cluster, max_slots_per_user=1)
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=2)
    await cluster.until_running(job_id, 1)

    async def said() -> bool:
        return "hold the 1 slots that one user may have" in (await cluster.job(job_id))["pending_reason"]

    await eventually(said, "the reason is shown")
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")


async def test_a_drained_taskmanager_hands_its_executors_on_and_leaves(cluster: Cluster) -> None:
    await cluster.start_driver_host()
    left = await cluster.start_taskmanager("tm-1", driver_slots=0)
    job_id = await cluster.submit(executors=1)
    (first,) = await cluster.until_running(job_id, 1)
    await cluster.start_taskmanager("tm-2", driver_slots=0)
    assert (await cluster.call("POST", "/v1/taskmanagers/tm-1/drain"))[0] == 202
    (second,) = await cluster.until_running(job_id, 1, excluding=[first["id"]])
    assert second["taskmanager"] == "tm-2"

    async def told() -> bool:
        log = (await cluster.get(f"/v1/jobs/{job_id}/logs?source=driver.stdout"))["data"]
        return f"decommissioned [{first['id']}]: TaskManager tm-1 is drained" in log

    await eventually(told, "the driver is told")
    shown = {each["id"]: each for each in (await cluster.get("/v1/taskmanagers"))["taskmanagers"]}
    assert (shown["tm-1"]["draining"], shown["tm-1"]["slots_free"]) == (True, 0)
    assert not left.done(), "its executor still runs"
    os.killpg(await cluster.pid(job_id, first), signal.SIGTERM)  # as Spark ends one whose blocks are elsewhere
    await asyncio.wait_for(left, DEADLINE_SECONDS)
    cluster.flag.touch()
    job = await cluster.until(job_id, "FINISHED")
    assert [each["id"] for each in job["executors"]] == [first["id"], second["id"]], "nobody else was started"


async def test_executors_that_outlast_the_drain_timeout_are_ended(cluster: Cluster) -> None:
    await cluster.master.aclose()
    cluster.config = msgspec.structs.replace(cluster.config, resources=ResourcesConfig(drain_timeout=0.5))
    await cluster.start_jobmanager()
    await cluster.start_driver_host()
    left = await cluster.start_taskmanager("tm-1", driver_slots=0)
    job_id = await cluster.submit(executors=1)
    await cluster.until_running(job_id, 1)
    assert (await cluster.call("POST", "/v1/taskmanagers/tm-1/drain"))[0] == 202
    await asyncio.wait_for(left, DEADLINE_SECONDS)

    async def waits() -> bool:
        return "no TaskManager" in (await cluster.job(job_id))["pending_reason"]

    await eventually(waits, "the job says what it waits for")
    assert (await cluster.job(job_id))["state"] == "RUNNING"


async def test_a_drained_taskmanager_waits_for_its_drivers_and_gets_no_new_ones(cluster: Cluster) -> None:
    left = await cluster.start_taskmanager("tm-1")
    first = await cluster.submit(executors=1)
    await cluster.until_running(first, 1)
    assert (await cluster.call("POST", "/v1/taskmanagers/tm-1/drain"))[0] == 202
    second = await cluster.submit(executors=1)

    async def waits() -> bool:
        why = (await cluster.job(second))["pending_reason"]
        return bool(why == "no slot for its driver: the TaskManagers that it would fit into are being drained")

    await eventually(waits, "the second job says what it waits for")
    (shown,) = (await cluster.get("/v1/taskmanagers"))["taskmanagers"]
    assert (shown["driver_slots_total"], shown["driver_slots_free"], shown["drivers"]) == (8, 0, [first])
    assert not left.done()
    cluster.flag.touch()
    await cluster.until(first, "FINISHED")
    await asyncio.wait_for(left, DEADLINE_SECONDS)
    await cluster.start_taskmanager("tm-2")
    await cluster.until(second, "FINISHED")
    (placed,) = (await cluster.job(second))["attempts"]
    assert placed["taskmanager"] == "tm-2"


async def test_a_driver_waits_for_a_driver_slot_and_takes_no_executor_slot(cluster: Cluster) -> None:
    """Jobs whose drivers wait for each other's slots would never end."""
    await cluster.start_taskmanager("tm-1", driver_slots=1)
    first = await cluster.submit(executors=2)
    await cluster.until_running(first, 2)
    second = await cluster.submit(executors=0)

    async def waits() -> bool:
        return bool(
            (await cluster.job(second))["pending_reason"] == "no slot for its driver: all fitting slots are in use"
        )

    await eventually(waits, "the second job waits")
    cluster.flag.touch()
    for job_id in (first, second):
        await cluster.until(job_id, "FINISHED")


async def test_logs_of_a_lost_taskmanager_come_from_the_history_or_are_reported_as_lost(
    cluster: Cluster,
) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(end="fail", executors=0)
    await cluster.until(job_id, "FAILED")
    path = f"/v1/jobs/{job_id}/logs"
    assert "args" in (await cluster.get(f"{path}?source=driver.stdout"))["data"]

    async def kept() -> bool:
        return bool((await cluster.get("/v1/history"))["jobs"])

    await eventually(kept, "the job is in the history")
    await cluster.stop_taskmanager("tm-1")

    async def gone() -> bool:
        return not (await cluster.get("/v1/taskmanagers"))["taskmanagers"]

    await eventually(gone, "the TaskManager is gone")
    assert "driver.stdout" in (await cluster.get(path))["logs"]
    assert "args" in (await cluster.get(f"{path}?source=driver.stdout"))["data"]
    status, problem = await cluster.call("GET", f"{path}?source=driver.jvm")  # the fake driver has none
    assert (status, problem["type"]) == (404, "urn:sluice:problem:LogNotFound")
    assert "TaskManager tm-1 is not there any more, and its logs with it" in problem["detail"]


async def test_draining_of_a_taskmanager_can_be_undone(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=1)
    (first,) = await cluster.until_running(job_id, 1)
    assert (await cluster.call("POST", "/v1/taskmanagers/tm-1/drain"))[0] == 202
    status, problem = await cluster.call("POST", "/v1/taskmanagers/nobody/drain")
    assert (status, problem["type"]) == (404, "urn:sluice:problem:TaskManagerNotFound")
    assert (await cluster.call("POST", "/v1/taskmanagers/tm-1/undrain"))[0] == 200

    async def draining() -> bool:
        return bool((await cluster.get("/v1/taskmanagers"))["taskmanagers"][0]["draining"])

    assert not await draining()
    await cluster.until_running(job_id, 1, excluding=[first["id"]])  # in the slot that nobody was given meanwhile
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")
