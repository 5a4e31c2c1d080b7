"""``import sluice`` against a real cluster, through the real gateway."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sluice
from sluice.gateway.authz.policy_file import DEFAULT_POLICY
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


def test_a_pipeline_runs_and_its_output_is_read(cluster: LocalCluster, client: sluice.Client, tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text(pipelines.SUM, encoding="utf-8")
    job = client.submit(tmp_path / "sum.py", name="from python", executors=1)
    status = job.wait(timeout=300)
    assert (status.state, status.name, status.owner) == ("FINISHED", "from python", "tester")
    assert "groups 7" in "".join(job.logs("driver.stdout"))
    assert job.id in [each.id for each in client.jobs(["FINISHED"])]
    assert client.job(job.id[:12]).id == job.id
    check_receipt(cluster, job, tmp_path)


def check_receipt(cluster: LocalCluster, job: sluice.Job, tmp_path: Path) -> None:
    """Check that a job's receipt verifies with the authority's certificate alone.

    The receipt must also name the decision that is in the audit log.
    """
    file, trust = tmp_path / "receipt.json", tmp_path / "trust.pem"
    assert cluster.sluice("jobs", "receipt", job.id[:12], "--output", str(file)).returncode == 0
    assert cluster.sluice("pki", "export", "internal", "--output", str(trust)).returncode == 0
    command = ("jobs", "verify-receipt", str(file), "--trust", str(trust), "--file", str(tmp_path / "sum.py"))
    done = cluster.sluice(*command)
    assert done.returncode == 0, done.stderr
    assert "checked: the signature is of spiffe://" in done.stdout
    statement = json.loads(base64.b64decode(json.loads(file.read_bytes())["payload"]))
    predicate = statement["predicate"]
    driver, *executors = predicate["processes"]["listed"]
    assert driver["identity"].endswith(f"/job/{job.id}/driver")
    assert executors
    assert all(each["serials"] and each["isolation"] == "sandbox" for each in (driver, *executors))
    assert predicate["connections"]["listed"]
    assert predicate["submission"]["principal"] == "tester"
    decision = predicate["submission"]["decision"]
    assert decision["policySha256"] == hashlib.sha256(DEFAULT_POLICY.read_bytes()).hexdigest()
    log = cluster.sluice("audit-log", "tail", "--operation", "jobs.submit", "-n", "1000", "--json").stdout
    (recorded,) = [
        each
        for each in map(json.loads, log.splitlines())
        if (each["event"], each["request_id"]) == ("decision", decision["requestId"])
    ]
    assert (recorded["principal"], recorded["decision"]) == ("tester", "allow")
    assert len(job.receipt(disclose_parameters=True)) > len(job.receipt())
    file.write_bytes(file.read_bytes().replace(b'"payload":"ey', b'"payload":"eY'))
    forged = cluster.sluice(*command)
    assert forged.returncode == 1
    assert "verified" not in forged.stdout


def test_waiting_for_a_cancelled_job_raises_job_failed(client: sluice.Client, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(pipelines.SLOW, encoding="utf-8")
    job = client.submit(tmp_path / "slow.py", ["600"], executors=1)
    job.cancel()
    with pytest.raises(sluice.JobFailed, match="is CANCELED"):
        job.wait(timeout=200)


def test_an_unknown_token_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("slc_" + "0" * 40)
    (tmp_path / "token").chmod(0o600)
    with sluice.Client(home=cluster.home, token_file=tmp_path / "token") as stranger:
        with pytest.raises(sluice.UnreachableError) as refused:
            stranger.jobs()
        assert "slc_" not in str(refused.value)


def test_a_spark_session_computes_on_the_cluster(cluster: LocalCluster, client: sluice.Client, tmp_path: Path) -> None:
    """Run in its own process, since a process has either a classic session or a Connect one."""
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
