"""A Spark job with dynamic allocation gets executors while it works, and gives them back while it rests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cluster.conftest import LocalCluster, eventually
from tests.system.resources.conftest import running_executors

PIPELINE = Path(__file__).with_name("up_and_down.py")
CONF = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.sustainedSchedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
}

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def slots_in_use(cluster: LocalCluster) -> int:
    """The number of used slots on all TaskManagers."""
    overview = cluster.get("/v1/overview")
    return int(overview["slots_total"] - overview["slots_available"])


def test_dynamic_allocation_adjusts_executors_and_slots_to_the_work(cluster: LocalCluster, flags: Path) -> None:
    options = [f"--conf={key}={value}" for key, value in CONF.items()]
    done = cluster.sluice("submit", "--executors", "1", *options, str(PIPELINE), "--", str(flags))
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()

    def count() -> int:
        job = cluster.job(job_id)
        assert job["failure"] is None, job["failure"]
        return len(running_executors(job))

    eventually(lambda: count() >= 3, "more executors while there is work")
    eventually((flags / "burst-1").exists, "the first burst is done")
    eventually(lambda: count() == 1 and slots_in_use(cluster) == 1, "one executor and one slot while there is none")
    (flags / "go-on").touch()
    eventually(lambda: count() >= 2, "more again")
    job = cluster.wait_for_state(job_id, "FINISHED", "FAILED")
    assert job["state"] == "FINISHED", job["failure"]
    assert job["progress"]["tasks_failed"] == 0
    reasons = {each["exit_reason"] for each in job["executors"] if each["exit_reason"] not in {"", "the job ended"}}
    assert reasons <= {"exit code 0", "killed by SIGTERM", "exit code 143"}, "nobody failed"
    log = cluster.sluice("jobs", "logs", job_id, "--source", "driver.stdout")
    assert log.stdout.strip() == "total 26"
