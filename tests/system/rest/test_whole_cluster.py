"""What a whole cluster shows of itself and of a job of Spark, through the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cluster.conftest import LocalCluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SHUFFLING = """
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
spark = SparkSession.builder.getOrCreate()
numbers = spark.range(0, 10000, numPartitions=4).withColumn("key", F.col("id") % 10)
assert numbers.groupBy("key").count().count() == 10
print("done")
"""
PROCESSES = {"jobmanager/jobmanager-1", "taskmanager/taskmanager-1", "auth/auth-1", "ca/ca-1", "gateway/envoy"}


def test_stages_and_plan_of_a_job_are_available_after_its_end(cluster: LocalCluster, tmp_path: Path) -> None:
    pipeline = tmp_path / "shuffling.py"
    pipeline.write_text(SHUFFLING, encoding="utf-8")
    job_id = cluster.submit(pipeline)
    cluster.wait_for_state(job_id, "FINISHED")
    stages = cluster.get(f"/v1/jobs/{job_id}/stages")["stages"]
    assert {stage["state"] for stage in stages} <= {"FINISHED", "SKIPPED"}
    ran = [stage for stage in stages if stage["state"] == "FINISHED"]
    assert ran[0]["tasks_finished"] == 4
    assert ran[0]["shuffle_write_bytes"] > 0
    assert sum(stage["shuffle_read_bytes"] for stage in ran) > 0
    assert all(len(stage["task_ms"]) == 5 for stage in ran)
    assert any("Exchange" in operator for stage in stages for operator in stage["operators"])
    plan = cluster.get(f"/v1/jobs/{job_id}/plan")
    assert any(node["parents"] for node in plan["nodes"])
    assert {stage for job in plan["jobs"] for stage in job["stages"]} == {node["id"] for node in plan["nodes"]}


def test_every_process_shows_its_metrics(cluster: LocalCluster) -> None:
    def shown() -> set[str]:
        return {sample["labels"]["process"] for sample in cluster.json("metrics")}

    eventually(lambda: shown() >= PROCESSES, "all processes show metrics")
    logged = cluster.get("/v1/taskmanagers/taskmanager-1/logs")
    assert "registered" in logged["data"]
