"""Starting and stopping a cluster, and what is left after a crash."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.integration.cluster import pipelines
from tests.integration.cluster.conftest import LocalCluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_a_second_sluice_up_in_the_same_home_fails_as_already_running(cluster: LocalCluster) -> None:
    done = cluster.sluice("up", "--port", "0")
    assert done.returncode != 0
    assert "already running" in done.stderr
    assert cluster.json("status")["ready"]


def test_requests_are_refused_while_the_auth_service_is_stopped(cluster: LocalCluster) -> None:
    record = json.loads((cluster.home / "run" / "cluster.json").read_text())
    pids = {child["name"]: child["pid"] for child in record["children"]}
    os.kill(pids["auth"], signal.SIGSTOP)
    try:
        refused = cluster.sluice("jobs", "list")
        assert refused.returncode == 3
    finally:
        os.kill(pids["auth"], signal.SIGCONT)
    eventually(lambda: cluster.sluice("jobs", "list").returncode == 0, "the auth service")


@pytest.mark.parametrize(
    ("token", "code"),
    [
        pytest.param("", 2, id="none"),
        pytest.param("slc_unknown_secret", 3, id="unknown"),
        pytest.param("not a token at all", 3, id="nonsense"),
    ],
)
def test_a_request_without_a_valid_token_is_refused(
    cluster: LocalCluster, tmp_path: Path, token: str, code: int
) -> None:
    arguments = ["--token-file", str(tmp_path / "token")]
    if token:
        (tmp_path / "token").write_text(token)
        (tmp_path / "token").chmod(0o600)
    done = cluster.sluice("jobs", "list", *arguments)
    assert done.returncode == code, done.stderr


def test_a_viewer_may_list_jobs_but_not_submit(cluster: LocalCluster, tmp_path: Path) -> None:
    token = tmp_path / "viewer"
    made = cluster.sluice("token", "create", "eve", "--role", "viewer", "--output", str(token))
    assert made.returncode == 0, made.stderr
    assert cluster.sluice("jobs", "list", "--token-file", str(token)).returncode == 0
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text(pipelines.SUM, encoding="utf-8")
    refused = cluster.sluice("submit", "--token-file", str(token), str(pipeline))
    assert refused.returncode == 1
    assert "403" in refused.stderr or "role" in refused.stderr
