"""When a cluster ends: a session with `sluice down`, an application and a per-job cluster with their job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.cluster.conftest import COMMAND, REPOSITORY, LocalCluster, eventually, start_cluster

CONFIG = """
[gateway]
port = 0

[taskmanager]
count = 1
slots = 2
slot_memory_mb = 512

[spark]
driver_memory_mb = 512
executors = 1
"""
GOOD = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print("sum", spark.sparkContext.parallelize(range(100), 4).sum(), *sys.argv[1:])
spark.stop()
"""
BAD = 'raise KeyError("no such thing")\n'
SLOW = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).open("a").write("began\\n")
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.1)
"""
END_SECONDS = 200

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a configuration and no cluster."""
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    (made / "sluice.toml").write_text(CONFIG)
    return made


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    """The folder of the pipelines above."""
    for name, text in (("good", GOOD), ("bad", BAD), ("slow", SLOW)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Check that no process of the cluster is left after the test."""
    yield

    def gone() -> bool:
        return not [each.pid for each in psutil.process_iter(["cmdline"]) if names(each, tmp_path)]

    eventually(gone, "all processes are gone", 30)


def names(process: psutil.Process, path: Path) -> bool:
    """Whether a process has ``path`` in its command line."""
    return any(str(path) in argument for argument in process.info["cmdline"] or ())


def command(home: Path, *arguments: str) -> list[str]:
    """A command line for this home; the arguments start with the verb."""
    return [*COMMAND, *arguments[:2], "--home", str(home), *arguments[2:]]


def run(home: Path, *arguments: str, temporary: str = "/tmp") -> subprocess.CompletedProcess[str]:  # noqa: S108
    """Run a command to its end.

    ``temporary`` is short because Spark's Unix sockets are below it.
    """
    return subprocess.run(
        command(home, *arguments),
        cwd=REPOSITORY,
        env=os.environ | {"TMPDIR": temporary},
        capture_output=True,
        text=True,
        timeout=END_SECONDS,
        check=False,
    )


def running(home: Path) -> bool:
    """Whether a cluster runs in this home."""
    return LocalCluster(home).sluice("status").returncode == 0


def test_a_session_cluster_outlives_its_jobs_and_ends_with_sluice_down(home: Path, pipelines: Path) -> None:
    session = start_cluster(home)
    try:
        done = session.sluice("submit", "--wait", str(pipelines / "good.py"))
        assert (done.returncode, done.stdout) == (0, "sum 4950\n"), done.stderr
        assert running(home), "the job is over, the cluster is not"
    finally:
        session.sluice("down")
    assert not running(home)


def test_an_application_ends_with_its_job_and_has_the_exit_code_of_the_job(home: Path, pipelines: Path) -> None:
    done = run(home, "run", "application", str(pipelines / "good.py"), "--", "of", "all")
    assert (done.returncode, done.stdout) == (0, "sum 4950 of all\n"), done.stderr
    assert not running(home)
    failed = run(home, "run", "application", "--json", str(pipelines / "bad.py"))
    assert failed.returncode == 1, failed.stderr
    job: dict[str, Any] = json.loads(failed.stdout)
    assert (job["state"], job["failure"]["error"]) == ("FAILED", "KeyError: 'no such thing'")
    assert "no such thing" in failed.stderr
    tokens = json.loads((home / "gateway" / "tokens.json").read_text())["tokens"]
    assert not [each for each in tokens if each.get("revoked_at") is None], "none is left"


def test_a_killed_application_continues_its_job_when_it_is_run_again(home: Path, pipelines: Path) -> None:
    notes, end = pipelines / "notes", pipelines / "end"
    arguments = ("run", "application", "--json", str(pipelines / "slow.py"), "--", str(notes), str(end))
    first = subprocess.Popen(command(home, *arguments), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=sys.stderr)
    eventually(notes.exists, "the pipeline has begun")
    first.kill()
    first.communicate(timeout=30)
    end.touch()
    again = run(home, *arguments)
    assert again.returncode == 0, again.stderr
    job = json.loads(again.stdout)
    assert (job["state"], job["attempt"]) == ("FINISHED", 2), "the same job, not a second one"
    assert f"going on with job {job['id']}" in again.stderr


def test_a_per_job_cluster_exists_for_one_submission(home: Path, pipelines: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as temporary:
        good = ("submit", str(pipelines / "good.py"), "--target", "per-job", "--executors", "2")
        done = run(home, *good, temporary=temporary)
        assert (done.returncode, done.stdout) == (0, "sum 4950\n"), done.stderr
        assert not list(Path(temporary).glob("sluice-per-job-*")), "its home is gone"
        assert not (home / "pki").exists(), "it had a home of its own"
        failed = run(home, "submit", str(pipelines / "bad.py"), "--target", "per-job", temporary=temporary)
        assert failed.returncode == 1, failed.stderr
        assert "no such thing" in failed.stderr
        assert not list(Path(temporary).glob("sluice-per-job-*")), "its home is gone"
    refused = run(home, "submit", str(pipelines / "bad.py"), "--target", "per-job", "--server", "https://x")
    assert refused.returncode == 2
