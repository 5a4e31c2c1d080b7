"""`resources.provider = "process"`: TaskManagers start when a job lacks slots and leave when unneeded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster

PIPELINE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print("sum", spark.sparkContext.parallelize(range(100), 6).sum())
spark.stop()
"""
CONFIG = """
[resources]
provider = "process"
max_taskmanagers = 2
taskmanager_idle_timeout = 2.0

[taskmanager]
slots = 2
slot_memory_mb = 512

[spark]
driver_memory_mb = 512

[jobmanager]
heartbeat_interval = 1.0
"""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def taskmanagers(cluster: LocalCluster) -> set[str]:
    """The names of the TaskManager processes that the launcher knows."""
    record = json.loads((cluster.home / "run" / "cluster.json").read_text())
    return {each["name"] for each in record["children"] if each["name"].startswith("taskmanager")}


def test_taskmanagers_are_started_for_a_job_and_stopped_after_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "sluice.toml").write_text(CONFIG)
    pipeline = tmp_path / "sum.py"
    pipeline.write_text(PIPELINE)
    cluster = start_cluster(home)
    try:
        assert taskmanagers(cluster) == set(), "none before there is a job"
        done = cluster.sluice("submit", "--executors", "3", str(pipeline))
        assert done.returncode == 0, done.stderr
        job_id = done.stdout.strip()
        eventually(lambda: len(taskmanagers(cluster)) == 2, "two TaskManagers for three executors")
        job = cluster.wait_for_state(job_id, "FINISHED", "FAILED")
        assert job["state"] == "FINISHED", job["failure"]
        eventually(lambda: taskmanagers(cluster) == set(), "none when nothing needs them")
        assert cluster.get("/v1/taskmanagers")["taskmanagers"] == []
        log = (home / "log" / "launcher.log").read_text()
        assert "started taskmanager-2: jobs lack slots" in log
        assert "taskmanager-2 is drained and has left" in log
    finally:
        cluster.sluice("down")
