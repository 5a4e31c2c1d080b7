"""A job that holds all slots yields to one of higher priority, and both give the right answer.

What the shuffle service keeps is not computed again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.core.files import make_private_directory
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.shared_folder import shared_folder
from tests.system.shuffle.pipelines.rests import MAPS
from tests.system.shuffle.test_executors_go import EXPECTED

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]
LONG_SECONDS = 400
"""Two jobs at a time start slowly on a small machine."""

CONFIG = """
[shuffle]
enabled = true
workers = 1

[taskmanager]
count = 2
slots = 1
slot_memory_mb = 512

[spark]
driver_memory_mb = 512

[jobmanager]
executor_failure_budget = 1

[scheduling]
preemption_wait = 1
preemption_grace = 10

[[scheduling.queues]]
name = "everybody"
users = ["*"]
max_priority = 10
"""
PIPELINES = Path(__file__).parent / "pipelines"
REASON = "preempted: a job of higher priority in its queue waits ("


@pytest.fixture(scope="module")
def shared_slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two slots on two TaskManagers, a shuffle service, and a queue with priorities."""
    home = make_private_directory(tmp_path_factory.mktemp("preemption") / "home")
    (home / "sluice.toml").write_text(CONFIG)
    cluster = start_cluster(home)
    try:
        yield cluster
    finally:
        cluster.sluice("down")


@pytest.fixture
def folders(shared_slots: LocalCluster, tmp_path: Path) -> tuple[Path, Path]:
    """Where each of two pipelines and the test tell each other how far they are."""
    low, high = (shared_folder(shared_slots.shared, f"{tmp_path.name}-{each}") for each in ("low", "high"))
    return low, high


def submit(cluster: LocalCluster, *arguments: str) -> str:
    """Submit a job that wants both slots; returns its id."""
    done = cluster.sluice("submit", "--executors", "2", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def running(cluster: LocalCluster, job_id: str) -> list[Any]:
    """The job's executors that are running."""
    return [each for each in cluster.job(job_id)["executors"] if each["state"] == "RUNNING"]


def preempted(job: Any) -> list[str]:
    """The exit reasons of the job's preempted executors."""
    return [each["exit_reason"] for each in job["executors"] if each["exit_reason"].startswith(REASON)]


def finished(cluster: LocalCluster, job_id: str) -> Any:
    """The job after it has finished, in its first attempt."""
    job = cluster.wait_for_state(job_id, "FINISHED", "FAILED", seconds=LONG_SECONDS)
    assert (job["state"], job["attempt"]) == ("FINISHED", 1), job["failure"]
    return job


def test_maps_kept_by_the_shuffle_service_do_not_run_again_after_preemption(
    shared_slots: LocalCluster, folders: tuple[Path, Path]
) -> None:
    low_folder, high_folder = folders
    low = submit(shared_slots, str(PIPELINES / "rests.py"), "--", str(low_folder))
    eventually((low_folder / "first").exists, "the shuffle was read", LONG_SECONDS)
    assert len(running(shared_slots, low)) == 2
    high = submit(shared_slots, "--priority", "5", str(PIPELINES / "rests.py"), "--", str(high_folder))
    eventually((high_folder / "first").exists, "the job of higher priority has computed", LONG_SECONDS)
    eventually(lambda: len(running(shared_slots, high)) == 2, "the other job has both slots", LONG_SECONDS)
    assert running(shared_slots, low) == []
    shown = {each["id"]: each for each in shared_slots.json("queues", "show", "everybody")["jobs"]}
    assert (shown[low]["slots"], shown[low]["lacking"], shown[low]["position"]) == (0, 2, 1)
    assert (shown[high]["slots"], shown[high]["lacking"], shown[high]["expected_by"]) == (2, 0, None)
    (high_folder / "go").touch()
    finished(shared_slots, high)
    eventually(lambda: running(shared_slots, low), "it has executors again", LONG_SECONDS)
    (low_folder / "go").touch()
    job = finished(shared_slots, low)
    assert preempted(job) == [f"{REASON}exit code 0)"] * 2, "they ended by themselves, within the grace"
    for folder in folders:
        assert json.loads((folder / "first").read_text()) == EXPECTED
        assert json.loads((folder / "second").read_text()) == EXPECTED
        assert len(list(folder.glob("map-*"))) == MAPS, "no map ran twice"


def test_a_task_that_outlives_the_grace_period_runs_again_and_is_not_counted_as_failed(
    shared_slots: LocalCluster, folders: tuple[Path, Path]
) -> None:
    low_folder, high_folder = folders
    once = ("--conf", "spark.task.maxFailures=1")
    low = submit(shared_slots, *once, str(PIPELINES / "holds.py"), "--", str(low_folder), "2")
    eventually(lambda: len(list(low_folder.glob("task-*"))) == 2, "both tasks run", LONG_SECONDS)
    high = submit(shared_slots, "--priority", "1", str(PIPELINES / "holds.py"), "--", str(high_folder), "2")
    eventually(lambda: len(list(high_folder.glob("task-*"))) == 2, "the other job's tasks run", LONG_SECONDS)
    (high_folder / "go").touch()
    finished(shared_slots, high)
    eventually(lambda: len(list(low_folder.glob("task-*"))) >= 4, "both tasks run again", LONG_SECONDS)
    (low_folder / "go").touch()
    job = finished(shared_slots, low)
    assert len(preempted(job)) == 2
    assert [(folder / "sum").read_text() for folder in folders] == ["1", "1"]
    assert not any(each["ended_attempt"] for each in shared_slots.json("jobs", "exceptions", low))
