"""The access report as a user runs it: on a cluster, about that cluster's own audit log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.gateway.audit_log.log import audit_directory
from tests.integration.cluster.conftest import REPOSITORY, LocalCluster, start_cluster

PIPELINE = REPOSITORY / "pipelines" / "access_report.py"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    running = start_cluster(tmp_path / "home", "--taskmanagers", "1")
    yield running
    running.sluice("down")


def test_report_about_the_cluster_it_runs_on(cluster: LocalCluster) -> None:
    refused = cluster.sluice("jobs", "list", SLUICE_TOKEN="slc_000000000000_" + "0" * 64)
    assert refused.returncode == 3, refused.stdout
    log = audit_directory(Home.at(cluster.home))
    copy, output = cluster.shared / "audit", cluster.shared / "report.json"
    shutil.copytree(log, copy)  # no job may see the home
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    done = cluster.sluice(
        *("submit", "--wait", str(PIPELINE), "--"),
        *("--log", str(copy), "--format", "json", "--output", str(output)),
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    assert "written to" in done.stdout
    did = {(each["principal"], each["operation"]) for each in report["did"]}
    assert ("tester", "jobs.submit") in did, "the very job that made the report"
    assert {each["kind"]: each["acts"] for each in report["acts_by_kind"]}["token.created"] == 1
    assert sum(each["refused"] for each in report["by_reason"]) == report["refused"] >= 1
