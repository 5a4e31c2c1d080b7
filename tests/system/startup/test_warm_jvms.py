"""JVMs that wait for jobs on a real cluster: what they can do, who takes them, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.core.home import Home
from sluice.gateway.credentials.token_file import create_token
from sluice.runtime.spark.jvm import WAITING_ROOM
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.processes import command_line

CONFIG = """
[taskmanager]
count = 1
slots = 1

[spark]
executors = 1

[shuffle]
enabled = false

[warm]
jvms = 2
fill = "always"
"""
SUM = """
import os, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.getOrCreate()
twice = udf(lambda number: 2 * number, "long")
print("sum", spark.range(1000).select(twice("id").alias("n")).groupBy().sum("n").collect()[0][0])
print("asked", sys.argv[1:], __name__, os.path.basename(__file__))
spark.stop()
"""
STREAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
ticks = spark.readStream.format("rate").load()
ticks.writeStream.format("noop").queryName("ticks").start().awaitTermination()
"""
SESSION = """
import sys
from pyspark.sql import SparkSession

print("sum", SparkSession.builder.getOrCreate().range(1000).groupBy().sum("id").collect()[0][0])
"""
FILL_SECONDS = 400
"""A JVM waits after some 20 s of processor time."""

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(900)]


class Pool:
    """What a cluster reports about its pool of waiting JVMs, and the processes in the pool."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.cold = ""
        """What the pipeline has printed with JVMs that were started for it."""

    def figures(self, name: str, **labels: str) -> dict[str, float]:
        """The values of a TaskManager metric, by kind."""
        return {
            each["labels"]["kind"]: each["value"]
            for each in self.cluster.json("metrics")
            if each["name"] == name and labels.items() <= each["labels"].items()
        }

    def takes(self, result: str) -> dict[str, float]:
        """How many drivers and executors found a waiting JVM, or did not, as ``result`` says."""
        return self.figures("sluice_warm_takes_total", result=result)

    def filled(self) -> list[psutil.Process]:
        """The waiting JVMs, once one for a driver and one for an executor wait."""
        full = {"driver": 1.0, "executor": 1.0}
        eventually(lambda: self.figures("sluice_warm_jvms") == full, "a driver and an executor wait", FILL_SECONDS)
        return [each for each in self.cluster.processes() if WAITING_ROOM in command_line(each)[-2:]]

    def run(self, pipeline: Path, *arguments: str) -> Any:
        """Run a job until it has finished; returns it."""
        job_id = self.cluster.submit(pipeline, *arguments)
        job = self.cluster.wait_for_state(job_id, "FINISHED", "FAILED", seconds=300)
        assert job["state"] == "FINISHED", job["failure"]
        return job

    def output(self, job: Any) -> str:
        """What the pipeline printed."""
        return self.cluster.sluice("jobs", "logs", job["id"], "--source", "driver.stdout").stdout


def of_driver(jvms: list[psutil.Process]) -> psutil.Process:
    """The JVM whose parent is the agent of a driver."""
    (found,) = (each for each in jvms if any("--wait" in command_line(above) for above in each.parents()))
    return found


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline") / "sum.py"
    path.write_text(SUM, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory, pipeline: Path) -> Iterator[Pool]:
    """The pool of a cluster after a first job; before that, no JVM waits."""
    home = tmp_path_factory.mktemp("warm") / "home"
    home.mkdir(mode=0o700)
    (home / "sluice.toml").write_text(CONFIG)
    running = start_cluster(home)
    found = Pool(running)
    found.cold = found.output(found.run(pipeline, "a", "b"))
    yield found
    running.sluice("down")


def test_a_job_runs_on_the_waiting_jvms_which_end_with_it(pool: Pool, pipeline: Path) -> None:
    waiting = pool.filled()
    assert len(waiting) == 2
    own = Path("/proc/self/ns/net").readlink()
    for each in waiting:
        assert Path(f"/proc/{each.pid}/ns/net").readlink() != own
        assert not each.net_connections(kind="inet")
    before = pool.takes("hit")
    warm = pool.output(pool.run(pipeline, "a", "b"))
    assert warm == pool.cold
    assert "sum 999000" in warm
    assert pool.takes("hit") == {kind: count + 1 for kind, count in before.items()}
    _, alive = psutil.wait_procs(waiting, timeout=60)
    assert not alive, "it has had its job"


def test_the_audit_finds_no_listener_of_waiting_jvms(pool: Pool) -> None:
    pool.filled()
    done = pool.cluster.sluice("audit", timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_starts_cold_without_a_waiting_jvm(pool: Pool, pipeline: Path) -> None:
    for each in pool.filled():
        each.kill()
    misses = pool.takes("miss")
    assert "sum 999000" in pool.output(pool.run(pipeline))
    assert sum(pool.takes("miss").values()) > sum(misses.values())


def test_a_job_whose_waiting_jvm_is_unusable_starts_cold_in_the_same_attempt(pool: Pool, pipeline: Path) -> None:
    before = pool.takes("unusable")
    waiting = pool.filled()
    for each in waiting:
        each.suspend()
    job_id = pool.cluster.submit(pipeline, "a", "b")
    agents = pool.cluster.home / "work"
    eventually(lambda: not [*agents.glob("*/waiting/*/agent-ready")], "the agent has heard of its job", 60)
    of_driver(waiting).kill()
    job = pool.cluster.wait_for_state(job_id, "FINISHED", "FAILED", seconds=300)
    assert job["state"] == "FINISHED", job["failure"]
    assert len(job["attempts"]) == 1
    assert pool.output(job) == pool.cold
    assert pool.takes("unusable") == {kind: count + 1 for kind, count in before.items()}


def test_a_spark_connect_session_takes_waiting_jvms(pool: Pool, tmp_path: Path) -> None:
    pool.filled()
    before = pool.takes("hit")
    token = create_token(Home.at(pool.cluster.home), name="ada", role="submitter")
    settings = pool.cluster.json("connect")
    program = tmp_path / "session.py"
    program.write_text(SESSION, encoding="utf-8")
    done = subprocess.run(
        (sys.executable, str(program)),
        env={**os.environ, **settings["environment"], settings["token_variable"]: token},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "sum 499500" in done.stdout, done.stderr
    assert pool.takes("hit") == {kind: count + 1 for kind, count in before.items()}
    (session,) = (each for each in pool.cluster.get("/v1/jobs")["jobs"] if each["kind"] == "CONNECT")
    pool.cluster.sluice("jobs", "cancel", session["id"])
    pool.cluster.wait_for_state(session["id"], "CANCELED", "FINISHED")


def test_a_restarted_streaming_job_takes_another_waiting_jvm_and_continues(pool: Pool, tmp_path: Path) -> None:
    first = of_driver(pool.filled())
    before = pool.takes("hit")
    program = tmp_path / "stream.py"
    program.write_text(STREAM, encoding="utf-8")
    done = pool.cluster.sluice("submit", str(program), "--restart-strategy", "fixed-delay")
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()

    def checkpoints() -> Any:
        return pool.cluster.get(f"/v1/jobs/{job_id}/checkpoints")

    eventually(lambda: checkpoints()["completed"] > 0, "a batch is committed", 300)
    pool.filled()
    first.kill()
    eventually(lambda: checkpoints()["restored"], "it goes on from its checkpoint", 300)
    restored = checkpoints()["restored"]["number"]
    eventually(lambda: checkpoints()["completed"] > restored, "another batch is committed", 300)
    after = pool.takes("hit")
    assert after["driver"] == before["driver"] + 2
    assert after["executor"] > before["executor"], "the first attempt may have had one more, when it lost its driver"
    pool.cluster.sluice("jobs", "cancel", job_id)
    pool.cluster.wait_for_state(job_id, "CANCELED")


def test_all_waiting_jvms_end_with_the_cluster(pool: Pool) -> None:
    waiting = pool.filled()
    pool.cluster.sluice("down")
    _, alive = psutil.wait_procs(waiting, timeout=60)
    assert not alive
    assert not list(pool.cluster.home.glob("work/*/waiting/*"))
