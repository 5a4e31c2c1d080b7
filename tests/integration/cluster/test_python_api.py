"""``import sluice`` against a real cluster, through the real gateway."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sluice
from tests.integration.cluster import pipelines
from tests.integration.cluster.conftest import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

SESSION = """
import sys
import sluice

with_session = sluice.spark_session(home=sys.argv[1])
print("sum", with_session.range(1000).selectExpr("sum(id)").first()[0])
with_session.stop()
"""


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[sluice.Client]:
    with sluice.Client(home=cluster.home) as opened:
        yield opened


def test_a_pipeline_runs_and_its_output_is_read(client: sluice.Client, tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text(pipelines.SUM, encoding="utf-8")
    job = client.submit(tmp_path / "sum.py", name="from python", executors=1)
    status = job.wait(timeout=300)
    assert (status.state, status.name, status.owner) == ("FINISHED", "from python", "tester")
    assert "groups 7" in "".join(job.logs("driver.stdout"))
    assert job.id in [each.id for each in client.jobs(["FINISHED"])]
    assert client.job(job.id[:12]).id == job.id


def test_a_cancelled_job_is_an_error_of_whoever_waits(client: sluice.Client, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(pipelines.SLOW, encoding="utf-8")
    job = client.submit(tmp_path / "slow.py", ["600"], executors=1)
    job.cancel()
    with pytest.raises(sluice.JobFailed, match="is CANCELED"):
        job.wait(timeout=200)


def test_a_token_of_nobody_is_not_accepted(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("slc_" + "0" * 40)
    (tmp_path / "token").chmod(0o600)
    with sluice.Client(home=cluster.home, token_file=tmp_path / "token") as stranger:
        with pytest.raises(sluice.UnreachableError) as refused:
            stranger.jobs()
        assert "slc_" not in str(refused.value)


def test_a_spark_session_computes_on_the_cluster(cluster: LocalCluster, client: sluice.Client, tmp_path: Path) -> None:
    """In a process of its own, because a process has either a classic session or one of Spark Connect."""
    (tmp_path / "session.py").write_text(SESSION, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "session.py"), str(cluster.home)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "sum 499500" in done.stdout, done.stderr
    token = (cluster.home / "token").read_text().strip()
    assert token not in done.stdout + done.stderr
    for job in client.jobs(["RUNNING"]):
        client.job(job.id).cancel()
