"""``kill -9`` of the launcher and of an executor of a real cluster; ``tests/chaos`` has random kills."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.cluster import pipelines
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster, without_shuffle
from tests.integration.cluster.test_jobs import executor_processes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of this test alone."""
    running = start_cluster(without_shuffle(tmp_path / "home"), "--taskmanagers", "1")
    yield running
    running.sluice("down")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A pipeline that takes as long as it is told."""
    path = tmp_path / "slow.py"
    path.write_text(pipelines.SLOW, encoding="utf-8")
    return path


def test_kill_9_of_the_launcher_leaves_no_process_and_the_next_up_works(cluster: LocalCluster, slow: Path) -> None:
    job_id = cluster.submit(slow, "30")
    eventually(lambda: cluster.job(job_id)["progress"]["tasks_running"] > 0, "a running task")
    processes = cluster.processes()
    assert len(processes) >= 7  # launcher, jobmanager, taskmanager, auth, envoy, driver, executors
    processes[0].send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
    assert cluster.sluice("status").returncode == 1
    again = cluster.sluice("up", "--detach", "--port", "0", "--taskmanagers", "1")
    assert again.returncode == 0, again.stderr
    assert cluster.json("status")["ready"]


def test_a_killed_executor_is_replaced_and_the_job_finishes(cluster: LocalCluster, slow: Path) -> None:
    job_id = cluster.submit(slow, "0.4")
    eventually(lambda: cluster.job(job_id)["progress"]["tasks_finished"] >= 4, "some finished tasks")
    victim = executor_processes(cluster, job_id)[0]
    victim.send_signal(signal.SIGKILL)
    job = cluster.wait_for_state(job_id, "FINISHED", "FAILED")
    assert job["state"] == "FINISHED", job["failure"]
    assert len(job["executors"]) >= 3, "no replacement was started"
    log = cluster.json("jobs", "logs", job_id, "--source", "driver.stdout")
    assert f"total {sum(range(40))}" in log["data"]
