"""A real job at isolation level ``uid``, on a machine where the jobs' uids have no user names."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ordinary_user import ROOT, python_of_nobody, python_of_root

CONFIG = """
[taskmanager]
count = 1
slots = 1

[isolation]
level = "uid"

[egress]
mode = "off"
"""
PIPELINE = """
import os
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
uids = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getuid()).collect()
rows = spark.range(100)
print("sum", rows.selectExpr("sum(id)").collect()[0][0], "uids", {os.getuid(), *uids}, spark.sparkContext.sparkUser())
spark.stop()
"""
SECONDS = 400

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that other users can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="uid-level-") as name:
        path = Path(name)
        path.chmod(0o711)
        yield path


def test_a_job_runs_as_a_uid_without_a_name(directory: Path) -> None:
    home = directory / "home"
    home.mkdir(mode=0o700)
    (home / "sluice.toml").write_text(CONFIG)
    (directory / "named.py").write_text(PIPELINE)
    shutil.copytree(Path.home() / ".cache" / "sluice", directory / ".cache" / "sluice")  # the plugin, if compiled
    python = python_of_root() if os.geteuid() == 0 else python_of_nobody()

    def sluice(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*python, "-P", "-m", "sluice.cli.main", *arguments],
            cwd=ROOT,
            env={**os.environ, "SLUICE_HOME": str(home), "HOME": str(directory)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    try:
        started = sluice("up", "--detach", "--port", "0")
        if os.geteuid() != 0:
            assert started.returncode != 0
            assert "needs root" in started.stderr
            return
        assert started.returncode == 0, started.stderr
        made = sluice("token", "create", "ada", "--role", "submitter", "--output", str(home / "token"))
        assert made.returncode == 0, made.stderr
        done = sluice("submit", str(directory / "named.py"), "--executors", "1", "--wait")
        assert done.returncode == 0, done.stderr
        words = done.stdout.split()
        assert words[:2] == ["sum", "4950"], done.stdout
        assert words[-1] == "job"
        assert "{0}" not in done.stdout
    finally:
        sluice("down")
