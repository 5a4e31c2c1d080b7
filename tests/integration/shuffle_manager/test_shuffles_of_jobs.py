"""Shuffles from the driver through its JobMaster to the ShuffleManager.

Also what happens to the data when a job ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack

import msgspec
import psutil
import pytest

from sluice.runtime.config import JobManagerConfig, RuntimeConfig, TaskManagerConfig
from tests.hostile import TRUST_DOMAIN
from tests.integration.runtime.conftest import Cluster, eventually as eventually_async
from tests.integration.shuffle_manager.conftest import CONFIG, Service
from tests.processes import command_line
from tests.waiting import until


@pytest.fixture
async def cluster(service: Service) -> AsyncIterator[Cluster]:
    """A JobManager that uses the shuffle service of the same home; neither is started."""
    config = RuntimeConfig(
        trust_domain=TRUST_DOMAIN,
        jobmanager=JobManagerConfig(heartbeat_interval=0.2, cancel_grace=1.0, finished_jobs_kept=3),
        taskmanager=TaskManagerConfig(slots=2),
        shuffle=service.config,
    )
    started = Cluster(service.pki, service.home, config, service.home.root.parent)
    yield started
    await started.close()


async def shuffles(cluster: Cluster, job_id: str, count: int) -> list[str]:
    """Wait for more than ``count`` lines about shuffles in the driver's output, and return them."""

    async def noted() -> list[str]:
        document = await cluster.get(f"/v1/jobs/{job_id}/logs?source=driver.stdout")
        lines = [line for line in document["data"].splitlines() if line.startswith("shuffle")]
        return lines if len(lines) > count else []

    lines: list[str] = await eventually_async(noted, "the driver has its shuffles")
    return lines


async def submit(
    cluster: Cluster, *, end: str = "when-told", count: int = 2, restart: Mapping[str, object] | None = None
) -> str:
    """Submit a job with ``count`` shuffles and no executors; returns its id."""
    cluster.pipeline_extras = {"shuffles": count}
    return await cluster.submit(end=end, executors=0, restart=restart)


def kill_driver(job_id: str) -> None:
    """Kill the driver of a job, a child of this process, in which the TaskManager runs."""
    (driver,) = (each for each in psutil.Process().children() if any(job_id in part for part in command_line(each)))
    driver.kill()


@pytest.mark.parametrize("end", ["when-told", "cancel", "crash"])
async def test_the_shuffles_of_a_job_live_as_long_as_the_job(service: Service, cluster: Cluster, end: str) -> None:
    await service.start_manager()
    worker = await service.start_worker("w-1")
    await cluster.start_jobmanager()
    job_id = await submit(cluster, end="when-told" if end == "cancel" else end)
    if end != "crash":
        lines = await shuffles(cluster, job_id, 2)
        assert lines == ["shuffle True", f"shuffle 0 is {1 << 20} on w-1", f"shuffle 1 is {(1 << 20) + 1} on w-1"]
        assert list(worker.allowed) == [job_id]
        worker.kept[job_id] = {1 << 20}
    if end == "cancel":
        await cluster.call("PATCH", f"/v1/jobs/{job_id}?mode=cancel")
    else:
        cluster.flag.touch()
    await cluster.until(job_id, {"when-told": "FINISHED", "cancel": "CANCELED", "crash": "FAILED"}[end])
    await until(lambda: not worker.allowed and not worker.kept, "nothing of the job is left")


async def test_a_restarted_job_gets_new_shuffles_and_its_earlier_ones_are_deleted(
    service: Service, cluster: Cluster
) -> None:
    await service.start_manager()
    worker = await service.start_worker("w-1")
    await cluster.start_jobmanager()
    job_id = await submit(cluster, restart={"strategy": "fixed-delay", "delay": 0.1, "attempts": 2})
    await shuffles(cluster, job_id, 2)
    worker.kept[job_id] = {1 << 20, (1 << 20) + 1}
    kill_driver(job_id)

    async def again() -> bool:
        return f"shuffle 0 is {2 << 20} on w-1" in await shuffles(cluster, job_id, 2)

    await eventually_async(again, "the second attempt has its shuffles")
    await until(lambda: worker.kept[job_id] == set(), "the shuffles of the first attempt are gone")
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")
    await until(lambda: not worker.allowed and not worker.kept, "nothing of the job is left")


async def test_a_job_that_continues_under_another_leader_keeps_its_shuffles(service: Service, cluster: Cluster) -> None:
    await service.start_manager()
    worker = await service.start_worker("w-1")
    await cluster.start_jobmanager()
    job_id = await submit(cluster)
    await shuffles(cluster, job_id, 2)
    worker.kept[job_id] = {1 << 20, (1 << 20) + 1}
    await cluster.master.aclose()
    cluster.master = AsyncExitStack()
    await cluster.start_jobmanager()

    async def goes_on() -> bool:
        return bool((await cluster.job(job_id))["state"] == "RUNNING")

    await eventually_async(goes_on, "the new leader has taken the job over")
    assert worker.kept[job_id] == {1 << 20, (1 << 20) + 1}
    cluster.flag.touch()
    assert (await cluster.until(job_id, "FINISHED"))["attempt"] == 1
    await until(lambda: not worker.allowed and not worker.kept, "nothing of the job is left")


async def test_a_driver_gets_the_reason_when_a_shuffle_cannot_be_allocated(service: Service, cluster: Cluster) -> None:
    service.config = msgspec.structs.replace(CONFIG, allocation_timeout=0.3)
    cluster.config = msgspec.structs.replace(cluster.config, shuffle=service.config)
    await cluster.start_jobmanager()
    job_id = await submit(cluster, count=1)
    lines = await shuffles(cluster, job_id, 1)
    assert "shuffle 0 has no place" in lines[1]
    assert "no ShuffleManager answers" in lines[1]
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")
