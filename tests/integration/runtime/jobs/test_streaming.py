"""Streaming jobs on a cluster in this process: their drivers report batches as real drivers do."""

from __future__ import annotations

import re
import shutil
from typing import Any

from tests.integration.runtime.conftest import Cluster, eventually

QUICK = {"initial_backoff": 0.1}


async def checkpoints(cluster: Cluster, job_id: str) -> Any:
    """Return what REST shows of a job's checkpoints."""
    return await cluster.get(f"/v1/jobs/{job_id}/checkpoints")


async def until_completed(cluster: Cluster, job_id: str, count: int) -> Any:
    """Wait until exactly ``count`` checkpoints are completed, and return the checkpoints document."""

    async def there() -> Any:
        shown = await checkpoints(cluster, job_id)
        return shown if shown["completed"] == count else None

    return await eventually(there, f"{count} checkpoints are completed")


async def test_a_job_with_checkpoints_is_restarted_by_default_from_the_last_checkpoint(cluster: Cluster) -> None:
    job_id = await cluster.submit(executors=0, end="crash-first", failures=1, stream=[0, 1, 2, 3], restart=QUICK)
    shown = await until_completed(cluster, job_id, 4)
    assert (shown["restored"]["number"], shown["restored"]["attempt"]) == (2, 1)
    assert [(each["number"], each["attempt"]) for each in shown["history"]] == [(3, 2), (4, 2)]
    assert shown["queries"][0]["batch"] == 3
    cluster.flag.touch()
    job = await cluster.until(job_id, "FINISHED")
    assert (job["attempt"], job["checkpoints"]) == (2, 4)
    assert (await checkpoints(cluster, job_id))["completed"] == 4

    async def gone() -> bool:
        return not (cluster.home.root / "checkpoints" / job_id).exists()

    await eventually(gone, "the checkpoint of the job that has ended is removed")


async def test_the_next_leader_takes_over_a_running_query_and_its_checkpoints(cluster: Cluster) -> None:
    job_id = await cluster.submit(executors=0, stream=[0, 1, 2, 3])
    await until_completed(cluster, job_id, 2)
    await cluster.master.aclose()
    await cluster.start_jobmanager()
    await cluster.until(job_id, "RUNNING")

    async def told() -> Any:
        shown = await checkpoints(cluster, job_id)
        return shown if shown["queries"] else None

    shown = await eventually(told, "the driver has told of its query")
    assert (shown["completed"], shown["restored"]["number"], shown["queries"][0]["batch"]) == (2, 2, 1)
    cluster.flag.touch()
    job = await cluster.until(job_id, "FINISHED")
    assert (job["attempt"], job["checkpoints"]) == (1, 2)


async def test_the_next_leader_starts_a_lost_query_again_from_the_last_checkpoint(cluster: Cluster) -> None:
    """The driver died while there was no leader."""
    job_id = await cluster.submit(executors=0, stream=[0, 1, 2, 3])
    await until_completed(cluster, job_id, 2)
    await cluster.master.aclose()
    await cluster.stop_taskmanager("tm-drivers")
    await cluster.start_jobmanager()
    await cluster.start_taskmanager("tm-drivers")
    shown = await until_completed(cluster, job_id, 4)
    assert shown["restored"]["number"] == 2
    cluster.flag.touch()
    job = await cluster.until(job_id, "FINISHED")
    assert job["attempt"] == 2


async def test_a_job_whose_checkpoint_is_lost_fails_before_its_driver_starts(cluster: Cluster) -> None:
    """Starting from the beginning would write its output twice."""
    job_id = await cluster.submit(executors=0, stream=[0, 1, 2, 3])
    await until_completed(cluster, job_id, 2)
    await cluster.master.aclose()
    shutil.rmtree(cluster.home.root / "checkpoints" / job_id)
    await cluster.start_jobmanager()
    job = await cluster.until(job_id, "FAILED")
    # Batch 1 was told and may not have been recorded yet.
    assert re.search("batch [01] of query rows was committed, and nothing of it is there", job["failure"]["error"])
    assert not cluster.driver_directory(job_id, 2).exists()


async def test_a_query_that_restarts_before_its_committed_batch_fails_the_job_for_good(cluster: Cluster) -> None:
    job_id = await cluster.submit(executors=0, end="crash-first", failures=1, stream=[4, 5, 0, 1], restart=QUICK)
    job = await cluster.until(job_id, "FAILED")
    assert "query rows is at batch 0 although batch 5 was committed" in job["failure"]["error"]
    assert job["attempt"] == 2


async def savepoint(cluster: Cluster, job_id: str, *, stop: bool) -> Any:
    """Ask for a savepoint, and wait until it is settled."""
    status, asked = await cluster.call("POST", f"/v1/jobs/{job_id}/savepoints", json={"stop": stop})
    assert status == 202, asked

    async def settled() -> Any:
        found = (await cluster.get(f"/v1/jobs/{job_id}/savepoints"))["savepoints"]
        (mine,) = [each for each in found if each["id"] == asked["savepoint_id"]]
        return mine if mine["state"] != "IN_PROGRESS" else None

    return await eventually(settled, "the savepoint is settled")


async def test_a_job_is_stopped_with_a_savepoint_and_another_continues_from_it(cluster: Cluster) -> None:
    first = await cluster.submit(executors=0, stream=[0, 1])
    await until_completed(cluster, first, 2)
    made = await savepoint(cluster, first, stop=True)
    assert made["state"] == "COMPLETED", made
    job = await cluster.until(first, "FINISHED")
    assert job["attempt"] == 1
    (listed,) = (await cluster.get("/v1/savepoints"))["savepoints"]
    assert (listed["id"], listed["path"], listed["checkpoint"]["number"]) == (made["id"], made["path"], 2)

    second = await cluster.submit(executors=0, stream=[2, 3], savepoint=made["path"])
    shown = await until_completed(cluster, second, 4)
    assert shown["restored"]["number"] == 2
    cluster.flag.touch()
    await cluster.until(second, "FINISHED")
    status, _ = await cluster.call("DELETE", f"/v1/savepoints/{made['id']}")
    assert status == 200
    assert (await cluster.get("/v1/savepoints"))["savepoints"] == []


async def test_a_savepoint_without_stop_leaves_the_job_running(cluster: Cluster) -> None:
    job_id = await cluster.submit(executors=0, stream=[0, 1])
    await until_completed(cluster, job_id, 2)
    made = await savepoint(cluster, job_id, stop=False)
    assert made["state"] == "COMPLETED", made
    assert (await cluster.job(job_id))["state"] == "RUNNING"
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")


async def test_a_savepoint_that_cannot_be_written_restarts_the_job(cluster: Cluster) -> None:
    job_id = await cluster.submit(executors=0, stream=[0, 1, 2, 3], restart=QUICK)
    await until_completed(cluster, job_id, 2)
    shutil.rmtree(cluster.home.root / "savepoints")
    (cluster.home.root / "savepoints").write_text("in the way")
    made = await savepoint(cluster, job_id, stop=True)
    assert made["state"] == "FAILED"
    await until_completed(cluster, job_id, 4)
    job = await cluster.job(job_id)
    assert (job["state"], job["attempt"]) == ("RUNNING", 2)
    assert "the savepoint failed" in job["attempts"][0]["error"]
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")


async def test_a_batch_job_has_no_savepoints(cluster: Cluster) -> None:
    job_id = await cluster.submit(executors=0)
    await cluster.until(job_id, "RUNNING")
    status, document = await cluster.call("POST", f"/v1/jobs/{job_id}/savepoints", json={"stop": True})
    assert (status, document["type"]) == (409, "urn:sluice:problem:NotStreaming")
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")
    status, document = await cluster.call("POST", f"/v1/jobs/{job_id}/savepoints", json={"stop": True})
    assert (status, document["type"]) == (409, "urn:sluice:problem:SavepointFailed")
