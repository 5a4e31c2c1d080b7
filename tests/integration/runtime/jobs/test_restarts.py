"""Jobs that fail and are run again, on a cluster in this process."""

from __future__ import annotations

import os
import signal
from typing import Any

import aiohttp

from sluice.runtime.taskmanager.kept_logs import KEPT_DRIVERS
from tests.integration.runtime.conftest import Cluster, eventually, until_gone

FIXED = {"strategy": "fixed-delay", "delay": 0.1, "attempts": 2}


def outcomes(job: Any) -> list[tuple[int, str]]:
    """Numbers and outcomes of a job's attempts."""
    return [(each["number"], each["outcome"]) for each in job["attempts"]]


async def test_a_pipeline_that_fails_is_run_again_and_finishes(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(end="fail-first", failures=2, restart=FIXED)
    cluster.flag.touch()
    job = await cluster.until(job_id, "FINISHED")
    assert outcomes(job) == [(1, "FAILED"), (2, "FAILED"), (3, "FINISHED")]
    assert job["failure"] is None
    assert list(job["timestamps"])[-3:] == ["CREATED", "RUNNING", "FINISHED"]
    exceptions = (await cluster.get(f"/v1/jobs/{job_id}/exceptions"))["exceptions"]
    ended = [(each["attempt"], each["error"]) for each in exceptions if each["ended_attempt"]]
    assert ended == [(1, "ValueError: 1"), (2, "ValueError: 2")]
    logs = (await cluster.get(f"/v1/jobs/{job_id}/logs"))["logs"]
    assert {"driver.stdout", "attempt-1.driver.stdout", "attempt-2.driver.stdout"} <= set(logs)
    first = await cluster.get(f"/v1/jobs/{job_id}/logs?source=attempt-1.driver.stdout")
    assert "args" in first["data"]


async def test_a_killed_driver_is_replaced_and_nothing_of_the_first_attempt_stays(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(end="crash-first", failures=1, restart=FIXED)

    async def second() -> Any:
        job = await cluster.job(job_id)
        return job if job["attempt"] == 2 and job["state"] == "RUNNING" else None

    job = await eventually(second, "the second attempt runs")
    assert outcomes(job) == [(1, "FAILED"), (2, "")]
    assert "ended without reporting" in job["attempts"][0]["error"]
    running = {each["id"] for each in await cluster.until_running(job_id, 2)}
    others = [each for each in (await cluster.job(job_id))["executors"] if each["id"] not in running]
    assert {each["state"] for each in others} <= {"EXITED"}
    assert all(each["id"] < min(running) for each in others), "numbers are not used again"
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")


async def test_a_job_whose_restarts_are_used_up_has_failed_with_the_last_error(cluster: Cluster) -> None:
    job_id = await cluster.submit(end="fail-first", failures=9, executors=0, restart=FIXED)
    job = await cluster.until(job_id, "FAILED")
    assert outcomes(job) == [(1, "FAILED"), (2, "FAILED"), (3, "FAILED")]
    assert job["failure"]["error"] == "ValueError: 3"
    await cluster.master.aclose()
    await cluster.start_jobmanager()
    exceptions = (await cluster.get(f"/v1/jobs/{job_id}/exceptions"))["exceptions"]
    assert [each["attempt"] for each in exceptions] == [1, 2, 3]


async def test_without_a_strategy_a_batch_job_fails_at_once(cluster: Cluster) -> None:
    job_id = await cluster.submit(end="fail", executors=0)
    job = await cluster.until(job_id, "FAILED")
    assert outcomes(job) == [(1, "FAILED")]


async def test_a_job_that_waits_for_its_restart_shows_the_reason_and_can_be_cancelled(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(end="fail-first", failures=1, restart={**FIXED, "delay": 3000})

    async def waiting() -> Any:
        job = await cluster.job(job_id)
        return job if job["state"] == "RESTARTING" else None

    job = await eventually(waiting, "the job waits for its restart")
    assert "ValueError: 1" in job["pending_reason"]
    assert "3000 s" in job["pending_reason"]

    async def free() -> bool:
        return bool((await cluster.get("/v1/overview"))["slots_available"] == 2)

    await eventually(free, "its slots are given back meanwhile")
    status, _ = await cluster.call("PATCH", f"/v1/jobs/{job_id}?mode=cancel")
    assert status == 202
    job = await cluster.until(job_id, "CANCELED")
    assert outcomes(job) == [(1, "FAILED")]


async def test_a_job_that_waits_for_its_restart_is_run_by_the_next_leader(cluster: Cluster) -> None:
    job_id = await cluster.submit(end="fail-first", failures=1, executors=0, restart={**FIXED, "delay": 3000})

    async def waiting() -> bool:
        return bool((await cluster.job(job_id))["state"] == "RESTARTING")

    await eventually(waiting, "the job waits for its restart")
    await cluster.master.aclose()
    cluster.flag.touch()
    await cluster.start_jobmanager()
    job = await cluster.until(job_id, "FINISHED")
    assert job["attempt"] == 2


async def test_a_killed_executor_is_an_exception_that_ended_no_attempt(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit()
    victim, _ = await cluster.until_running(job_id, 2)
    pid = await cluster.pid(job_id, victim)
    os.kill(pid, signal.SIGKILL)
    await until_gone(pid)

    async def noted() -> Any:
        return (await cluster.get(f"/v1/jobs/{job_id}/exceptions"))["exceptions"]

    (entry,) = await eventually(noted, "the end of the executor is noted")
    assert (entry["executor"], entry["taskmanager"], entry["ended_attempt"]) == (victim["id"], "tm-1", False)
    assert "SIGKILL" in entry["error"]


async def test_an_unknown_strategy_is_refused(cluster: Cluster) -> None:

    form = aiohttp.FormData()
    form.add_field("request", '{"restart": {"strategy": "sometimes"}}', content_type="application/json")
    form.add_field("pipeline", b"{}", filename="pipeline.json")
    status, document = await cluster.call("POST", "/v1/jobs", data=form)
    assert (status, "strategy" in document["detail"]) == (400, True)


async def test_the_logs_of_the_latest_attempts_are_kept(cluster: Cluster) -> None:
    """A streaming job may be restarted for ever."""
    tries = KEPT_DRIVERS + 2
    restart = {"strategy": "fixed-delay", "delay": 0.0, "attempts": tries}
    job_id = await cluster.submit(end="fail-first", failures=tries - 1, executors=0, restart=restart)
    cluster.flag.touch()
    job = await cluster.until(job_id, "FINISHED")
    assert job["attempt"] == tries

    async def trimmed() -> bool:
        kept = {path.name for path in cluster.home.root.glob(f"work/*/jobs/{job_id}/driver-*")}
        return kept == {f"driver-{number}" for number in range(3, tries + 1)}

    await eventually(trimmed, "only the latest are kept")
