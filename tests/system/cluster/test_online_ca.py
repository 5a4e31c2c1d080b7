"""In a real cluster every internal identity comes from the online authority, which may die meanwhile."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.pki.ledger.file import ledger_path, read_ledger
from tests.integration.cluster.conftest import LocalCluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def ca_pid(cluster: LocalCluster) -> int | None:
    """The pid of the authority that takes requests now."""
    try:
        return int(json.loads((cluster.home / "run" / "endpoints" / "ca.json").read_text())["pid"])
    except FileNotFoundError:
        return None


COUNT = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("count").getOrCreate()
print("counted", spark.range(0, 1000, 1, 4).repartition(2).count())
spark.stop()
"""


def finish(cluster: LocalCluster, job_id: str) -> None:
    """Wait until the job has finished, and not failed."""
    job = cluster.wait_for_state(job_id, "FINISHED", "FAILED")
    assert job["state"] == "FINISHED", job


def test_jobs_get_their_identities_online_before_and_after_the_authority_is_killed(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    pipeline = tmp_path / "sum.py"
    pipeline.write_text(COUNT, encoding="utf-8")
    first = own_cluster.submit(pipeline)
    finish(own_cluster, first)
    before = ca_pid(own_cluster)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    second = own_cluster.submit(pipeline)
    eventually(lambda: ca_pid(own_cluster) not in {None, before}, "the authority runs again")
    finish(own_cluster, second)
    records = list(read_ledger(ledger_path(Home.at(own_cluster.home).pki)))
    processes = {record.identity.split("/")[3] for record in records if record.kind == "enrolment"}
    assert processes == {"jobmanager", "taskmanager", "gateway", "auth"}
    for job_id in (first, second):
        of_job = [record for record in records if f"/job/{job_id}/" in record.identity]
        assert {record.identity.split("/")[5] for record in of_job} == {"driver", "executor"}
        assert {record.requester for record in of_job} == {"spiffe://sluice.local/jobmanager/jobmanager-1"}
