"""No map output is lost when executors are released or decommissioned, or when workers hand over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.core.files import make_private_directory
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.processes import command_line
from tests.shared_folder import shared_folder
from tests.system.shuffle.pipelines.rests import MAPS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

CONFIG = """
[shuffle]
enabled = true
workers = 2

[taskmanager]
count = 2
slots = 2
slot_memory_mb = 512

[spark]
driver_memory_mb = 512
executors = 1
"""
PIPELINE = Path(__file__).parent / "pipelines" / "rests.py"
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
}
EXPECTED = [[key, sum(range(key, 100_000, 13))] for key in range(13)]


@pytest.fixture(scope="module")
def shuffling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two TaskManagers and a shuffle service."""
    home = make_private_directory(tmp_path_factory.mktemp("executors-go") / "home")
    (home / "sluice.toml").write_text(CONFIG)
    cluster = start_cluster(home)
    try:
        yield cluster
    finally:
        cluster.sluice("down")


def running(job: Any) -> list[Any]:
    """The job's executors that are running."""
    return [each for each in job["executors"] if each["state"] == "RUNNING"]


@pytest.fixture
def folder(shuffling: LocalCluster, tmp_path: Path) -> Path:
    """Where a pipeline and its test tell each other how far they are."""
    return shared_folder(shuffling.shared, tmp_path.name)


def submit(cluster: LocalCluster, folder: Path, *options: str) -> str:
    """Submit the pipeline; returns the job id once the shuffle was read for the first time."""
    done = cluster.sluice("submit", *options, str(PIPELINE), "--", str(folder))
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    eventually((folder / "first").exists, "the shuffle was read", 150)
    return job_id


def check(cluster: LocalCluster, job_id: str, folder: Path) -> None:
    """Let the job go on, and check that its answer is right and that no map ran twice."""
    (folder / "go").touch()
    job = cluster.wait_for_state(job_id, "FINISHED", "FAILED")
    assert job["state"] == "FINISHED", job["failure"]
    assert json.loads((folder / "first").read_text()) == EXPECTED
    assert json.loads((folder / "second").read_text()) == EXPECTED
    assert len(list(folder.glob("map-*"))) == MAPS


def test_no_map_output_is_lost_when_all_executors_are_released_before_the_reducers(
    shuffling: LocalCluster, folder: Path
) -> None:
    job_id = submit(shuffling, folder, *(f"--conf={key}={value}" for key, value in DYNAMIC.items()))
    eventually(lambda: not running(shuffling.job(job_id)), "no executor is left", 60)
    check(shuffling, job_id, folder)


def test_no_map_runs_again_when_a_drained_worker_loses_its_disk(shuffling: LocalCluster, folder: Path) -> None:
    def state() -> str:
        workers = json.loads(shuffling.sluice("shuffle", "status", "--json").stdout)["service"]["workers"]
        return str(next(each["state"] for each in workers if each["name"] == "shuffle-worker-1"))

    job_id = submit(shuffling, folder)
    assert shuffling.sluice("shuffle", "drain", "shuffle-worker-1").returncode == 0
    eventually(lambda: state() == "DRAINED", "what it kept is with the other worker", 60)
    victim = next(
        each for each in shuffling.processes() if {"shuffle-worker", "shuffle-worker-1"} <= set(command_line(each))
    )
    victim.suspend()
    kept = [path for path in shuffling.home.rglob("shuffle-worker-1/*") if path.name == job_id]
    assert kept, "it has a copy still"
    for path in kept:
        shutil.rmtree(path)
    victim.kill()  # the supervisor starts it again: it knows of nothing
    eventually(lambda: state() == "ACTIVE", "it is back", 60)
    check(shuffling, job_id, folder)


def test_executors_of_a_drained_taskmanager_are_decommissioned(shuffling: LocalCluster, folder: Path) -> None:
    job_id = submit(shuffling, folder, "--executors", "2")
    assert {each["taskmanager"] for each in running(shuffling.job(job_id))} == {"taskmanager-1", "taskmanager-2"}
    assert shuffling.sluice("drain", "taskmanager-1").returncode == 0
    eventually(
        lambda: {each["taskmanager"] for each in running(shuffling.job(job_id))} == {"taskmanager-2"},
        "its executors have moved",
        120,
    )
    check(shuffling, job_id, folder)
    eventually(
        lambda: [each["id"] for each in shuffling.get("/v1/taskmanagers")["taskmanagers"]] == ["taskmanager-2"],
        "it has left, after the driver that it may have had",
        120,
    )
