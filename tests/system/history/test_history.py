"""A real Spark job in the history, under a new leader and after no TaskManager has its logs any more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster import pipelines
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster, without_shuffle

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster for this test alone that keeps only one finished job in its list."""
    home = without_shuffle(tmp_path / "home")
    with (home / "sluice.toml").open("a", encoding="utf-8") as settings:
        settings.write("\n[jobmanager]\nfinished_jobs_kept = 1\n")
    running = start_cluster(home, "--taskmanagers", "1")
    yield running
    running.sluice("down")


def test_an_old_job_is_shown_with_its_logs_after_a_restart_without_its_work_files(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    pipeline = tmp_path / "slow.py"
    pipeline.write_text(pipelines.SLOW, encoding="utf-8")
    jobs = []
    for _ in range(2):
        jobs.append(cluster.submit(pipeline, "0.01"))
        assert cluster.wait_for_state(jobs[-1], "FINISHED", "FAILED")["state"] == "FINISHED"
    first, second = jobs
    eventually(lambda: [job["id"] for job in cluster.json("jobs", "list")["jobs"]] == [second], "a list of one job")
    before, connections = cluster.job(first), cluster.json("jobs", "connections", first)["connections"]
    assert connections
    assert cluster.sluice("down").returncode == 0
    shutil.rmtree(cluster.home / "work")
    again = cluster.sluice("up", "--detach", "--port", "0", "--taskmanagers", "1")
    assert again.returncode == 0, again.stderr
    assert [job["id"] for job in cluster.json("jobs", "history")["jobs"]] == [second, first]
    assert cluster.job(first) == before
    assert cluster.json("jobs", "connections", first)["connections"] == connections
    for name in (first, first[:8], second):
        log = cluster.json("jobs", "logs", name, "--source", "driver.stdout")
        assert f"total {sum(range(40))}" in log["data"]
    listed = cluster.json("jobs", "logs", first, "--list")
    assert {"driver.stderr", "executor-1.stderr"} <= set(listed)
