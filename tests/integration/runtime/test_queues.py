"""Queues that share the slots of real processes: who may use them, which job gets slots, and after a restart."""

from __future__ import annotations

import json

import aiohttp
import msgspec

from sluice.runtime.scheduling_config import QueueConfig, SchedulingConfig
from tests.integration.runtime.conftest import Cluster, eventually

QUEUES = SchedulingConfig(
    queues=(
        QueueConfig(name="small", users=("*",), max_slots=1),
        QueueConfig(name="large", users=("*",), weight=2, max_priority=3),
        QueueConfig(name="others", users=("somebody-else",), weight=1000),
    )
)


async def restart_with_queues(cluster: Cluster) -> None:
    """The JobManager again, with queues."""
    await cluster.master.aclose()
    cluster.config = msgspec.structs.replace(cluster.config, scheduling=QUEUES)
    await cluster.start_jobmanager()


async def until_waiting(cluster: Cluster, job_id: str, reason: str) -> None:
    """Wait until the job says why it does not have all slots."""

    async def said() -> bool:
        return bool((await cluster.job(job_id))["pending_reason"] == reason)

    await eventually(said, f"the job says: {reason}")


async def test_queues_hold_for_new_jobs_and_under_the_next_leader(cluster: Cluster) -> None:
    await restart_with_queues(cluster)
    await cluster.start_taskmanager("tm-1")  # two slots
    first = await cluster.submit(executors=2)
    full = "1 of 2 slots: queue small: its jobs hold the 1 slots that it may have"
    await cluster.until_running(first, 1)
    await until_waiting(cluster, first, full)
    second = await cluster.submit(executors=2, queue="large", priority=3)
    await cluster.until_running(second, 1)
    await until_waiting(
        cluster, second, "1 of 2 slots: all fitting slots are in use; queue large has 50% of the cluster"
    )
    await restart_with_queues(cluster)
    for job_id in (first, second):
        await cluster.until(job_id, "RUNNING")
        await cluster.until_running(job_id, 1)
    await until_waiting(cluster, first, full)
    cluster.flag.touch()
    for job_id in (first, second):
        await cluster.until(job_id, "FINISHED")


async def test_queues_of_others_and_higher_priorities_are_refused(cluster: Cluster) -> None:
    await restart_with_queues(cluster)
    for request in (
        {"queue": "others"},
        {"queue": "unknown"},
        {"queue": "small", "priority": 1},
        {"queue": "large", "priority": 4},
        {"priority": 1},
        {"queue": "large", "priority": -1},
        {"queue": "x" * 33},
    ):
        form = aiohttp.FormData()
        form.add_field("request", json.dumps(request), content_type="application/json")
        form.add_field("pipeline", b"{}", filename="pipeline.json")
        status, problem = await cluster.call("POST", "/v1/jobs", data=form)
        assert status == 400, (request, problem)
    assert (await cluster.get("/v1/jobs"))["jobs"] == []
