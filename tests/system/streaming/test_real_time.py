"""A query in real-time mode counts each row once although the cluster's processes are killed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.processes.story import Death, Kind
from tests.chaos.processes.victims import Killer, live_on
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

PIPELINE = Path(__file__).with_name("real_time_counts.py")
KEYS = 8
ROUNDS = int(os.environ.get("SLUICE_REAL_TIME_KILLS", "4"))
VICTIMS = (Kind.EXECUTOR_JVM, Kind.SHUFFLE_WORKER, Kind.DRIVER_JVM, Kind.SHUFFLE_MANAGER)
RESTARTS = ("--executors", "2", "--executor-cores", "2")
SECONDS = 240.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of this test alone."""
    running = start_cluster(tmp_path / "home", "--taskmanagers", "2")
    yield running
    running.sluice("down")


def counts(folder: Path) -> dict[int, int]:
    """The highest count of each key.

    The sink may receive a row again, but the state may not count it again.
    """
    found: dict[int, int] = {}
    for path in folder.iterdir():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                key, count = map(int, line.split())
                found[key] = max(count, found.get(key, 0))
    return found


def expected(given: int) -> dict[int, int]:
    """How many numbers with each key were given."""
    return {key: len(range(key, given, KEYS)) for key in range(min(KEYS, given))}


def test_each_row_is_counted_exactly_once_when_processes_are_killed(cluster: LocalCluster) -> None:
    folder = cluster.shared / "counts"
    (folder / "results").mkdir(parents=True)
    for each in (folder, folder / "results"):
        each.chmod(0o777)
    given = 0

    def give(more: int) -> None:
        nonlocal given
        given += more
        staged = folder / "given.new"
        staged.write_text(str(given))
        staged.rename(folder / "given")

    give(100)
    done = cluster.sluice("submit", str(PIPELINE), *RESTARTS, "--", str(folder))
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    killer, source = Killer(cluster, PIPELINE.name), random.Random(7)  # noqa: S311  a test's
    for number in range(ROUNDS):
        eventually(lambda: counts(folder / "results") == expected(given), "all rows are counted", SECONDS)
        give(200)
        live_on(source.random() * 6)
        killer.kill(Death(VICTIMS[number % len(VICTIMS)], choice=source.random(), after=0.0, hasty=False))
        give(50)
    eventually(lambda: counts(folder / "results") == expected(given), "all rows are counted", SECONDS)
    (folder / "stop").touch()
    job = cluster.wait_for_state(job_id, "FINISHED", "FAILED")
    assert job["state"] == "FINISHED", job["failure"]
    assert counts(folder / "results") == expected(given)
