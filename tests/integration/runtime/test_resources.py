"""Slots of the sizes that jobs ask for: carved out of a TaskManager, waited for with a reason, and given back."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from tests.integration.runtime.conftest import Cluster, eventually


async def taskmanager_of(cluster: Cluster) -> Any:
    """The only TaskManager."""
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


async def test_what_no_taskmanager_has_is_said(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=1, executor_cores=64)
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
