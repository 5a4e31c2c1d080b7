"""Queues that share the slots of real processes: limits, which job gets slots, and restarts."""

from __future__ import annotations

import json

import aiohttp
import msgspec
import pytest

from sluice.runtime.scheduling_config import QueueConfig, SchedulingConfig
from tests.integration.runtime.conftest import Cluster, eventually

QUEUES = SchedulingConfig(
    queues=(
        QueueConfig(name="small", users=("*",), max_slots=1),
        QueueConfig(name="large", users=("*",), weight=2, max_priority=3),
        QueueConfig(name="private", users=("somebody-else",), weight=1000),
    )
)


GUARANTEED = SchedulingConfig(
    queues=(
        QueueConfig(name="spare", users=("*",), max_priority=5),
        QueueConfig(name="sure", users=("*",), guaranteed=0.5),
    ),
    preemption_wait=0.5,
    preemption_grace=1.0,
)


async def restart_with_queues(cluster: Cluster, queues: SchedulingConfig = QUEUES) -> None:
    """Restart the JobManager with queues."""
    await cluster.master.aclose()
    cluster.config = msgspec.structs.replace(cluster.config, scheduling=queues)
    await cluster.start_jobmanager()


async def until_waiting(cluster: Cluster, job_id: str, reason: str) -> None:
    """Wait until the job gives this reason for not having all of its slots."""

    async def said() -> bool:
        return bool((await cluster.job(job_id))["pending_reason"] == reason)

    await eventually(said, f"the job says: {reason}")


async def test_queue_limits_apply_to_new_jobs_and_under_the_next_leader(cluster: Cluster) -> None:
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


async def until_preempted(cluster: Cluster, job_id: str, reason: str, count: int) -> None:
    """Wait until exactly ``count`` executors of the job have ended for this reason."""

    async def gone() -> bool:
        executors = (await cluster.job(job_id))["executors"]
        return count == sum(str(each["exit_reason"]).startswith(f"{reason} (") for each in executors)

    await eventually(gone, f"{count} executors ended: {reason}")


@pytest.mark.parametrize("cluster", [{"executor_failure_budget": 1}], indirect=True, ids=["one executor may fail"])
async def test_a_queue_below_its_guarantee_and_a_higher_priority_preempt_executors(cluster: Cluster) -> None:
    """None ends by itself: each is killed after its grace. Its job counts no failure and later continues."""
    await restart_with_queues(cluster, GUARANTEED)
    await cluster.start_taskmanager("tm-1", slots=4)
    low = await cluster.submit(executors=4, queue="spare")
    await cluster.until_running(low, 4)
    sure = await cluster.submit(executors=4, queue="sure")
    await cluster.until_running(sure, 2)
    await until_preempted(cluster, low, "preempted: another queue waits below what it is guaranteed", 2)
    await cluster.until_running(low, 2)
    await until_waiting(cluster, low, "2 of 4 slots: all fitting slots are in use; queue spare has 50% of the cluster")

    urgent = await cluster.submit(executors=1, queue="spare", priority=5)
    await cluster.until_running(urgent, 1)
    await cluster.until_running(low, 1)
    await cluster.until_running(sure, 2)

    job = await cluster.job(low)
    assert (job["state"], job["attempt"]) == ("RUNNING", 1)
    assert job["failure"] is None
    status, _ = await cluster.call("PATCH", f"/v1/jobs/{sure}?mode=cancel")
    assert status == 202
    await cluster.until(sure, "CANCELED")
    await cluster.until_running(low, 3)
    cluster.flag.touch()
    for job_id in (low, urgent):
        await cluster.until(job_id, "FINISHED")
    assert (await cluster.get(f"/v1/jobs/{low}/exceptions"))["exceptions"] == []


async def test_a_new_leader_completes_a_preemption_that_its_predecessor_began(cluster: Cluster) -> None:
    slow = msgspec.structs.replace(GUARANTEED, preemption_grace=600.0)
    await restart_with_queues(cluster, slow)
    await cluster.start_taskmanager("tm-1", slots=2)
    low = await cluster.submit(executors=2, queue="spare")
    await cluster.until_running(low, 2)
    sure = await cluster.submit(executors=1, queue="sure")
    await until_waiting(cluster, sure, "0 of 1 slots: executors of other jobs are making room for 1 of its slots")
    await restart_with_queues(cluster, GUARANTEED)
    await cluster.until_running(sure, 1)
    await cluster.until_running(low, 1)
    cluster.flag.touch()
    for job_id in (low, sure):
        await cluster.until(job_id, "FINISHED")


async def test_queues_of_others_and_higher_priorities_are_refused(cluster: Cluster) -> None:
    await restart_with_queues(cluster)
    for request in (
        {"queue": "private"},
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
