"""The audit of a real cluster with a running job, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.audit.identities import log_path
from sluice.core.home import Home
from sluice.gateway.credentials.token_file import TokenStore
from tests.integration.cluster import pipelines
from tests.integration.cluster.conftest import LocalCluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_a_cluster_with_a_running_job_gives_no_finding(cluster: LocalCluster, tmp_path: Path) -> None:
    pipeline = tmp_path / "slow.py"
    pipeline.write_text(pipelines.SLOW, encoding="utf-8")
    job_id = cluster.submit(pipeline, "120")
    eventually(lambda: cluster.job(job_id)["progress"]["tasks_running"] > 0, "a running task")
    try:
        done = cluster.sluice("audit", "--json")
    finally:
        cluster.sluice("jobs", "cancel", job_id)
        cluster.wait_for_state(job_id, "CANCELED", "FAILED")
    report = json.loads(done.stdout)
    found = [each for each in report["results"] if each["outcome"] == "finding"]
    assert (done.returncode, found) == (0, []), done.stderr
    listeners = {each["listener"]["name"].partition("-")[0]: each for each in report["listeners"]}
    assert listeners.keys() >= {"rpc", "blob", "ca", "enrolment", "edge", "rest", "auth", "driver", "executor", "home"}
    admitted = {
        each["listener"] for each in report["results"] if (each["check"], each["outcome"]) == ("MTL-10", "passed")
    }
    assert {"rpc", "blob", "ca"} < admitted
    assert any(name.startswith("executor") for name in admitted)
    # what was handed out for the audit is revoked, or gone in minutes
    home = Home.at(cluster.home)
    tokens = [record for record in TokenStore(home).read().records if record.name == "audit"]
    assert tokens
    assert all(record.revoked_at is not None for record in tokens)
    assert log_path(home).stat().st_mode & 0o077 == 0
