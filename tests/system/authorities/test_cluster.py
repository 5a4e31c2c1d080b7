"""A whole cluster with two authorities: while one is dead, jobs still get identities.

The dead authority restarts by itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.pki.ca.address import read_cas
from sluice.pki.errors import CaUnavailable
from tests.authorities import check_ledger
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster, without_shuffle

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

COUNT = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("count").getOrCreate()
print("counted", spark.range(0, 1000, 1, 4).repartition(2).count())
spark.stop()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    running = start_cluster(without_shuffle(tmp_path / "home"), "--taskmanagers", "1", "--authorities", "2")
    yield running
    running.sluice("down")


def pids(cluster: LocalCluster) -> dict[str, int]:
    """Return the pids of the authorities that have announced themselves."""
    try:
        return {each.name: each.pid for each in read_cas(Home.at(cluster.home))}
    except CaUnavailable:
        return {}


def test_jobs_run_while_each_of_two_authorities_is_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    pipeline = tmp_path / "count.py"
    pipeline.write_text(COUNT, encoding="utf-8")
    assert {"ca-1", "ca-2"} <= {each["name"] for each in cluster.json("status")["processes"]}
    for name in ("ca-1", "ca-2"):
        before = pids(cluster)
        assert before.keys() == {"ca-1", "ca-2"}
        os.kill(before[name], signal.SIGKILL)
        job = cluster.wait_for_state(cluster.submit(pipeline), "FINISHED", "FAILED")
        assert job["state"] == "FINISHED", job
        eventually(lambda: pids(cluster).get(name) not in {None, before[name]}, f"{name} runs again")  # noqa: B023
    check_ledger(Home.at(cluster.home))
    found = cluster.sluice("pki", "doctor", "--json")
    assert "listener-unreachable" not in found.stdout
