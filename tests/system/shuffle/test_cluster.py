"""A cluster with the shuffle service: a job's shuffles go through it, and a worker may die in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.spark.evidence import EVIDENCE_FILE, read_evidence
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.processes import command_line
from tests.shared_folder import shared_folder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

WORKERS = ("shuffle-worker-1", "shuffle-worker-2")
PIPELINE = Path(__file__).parent / "pipelines" / "two_steps.py"


@pytest.fixture
def shuffling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A cluster with one TaskManager and two shuffle workers; both hold every map's output."""
    monkeypatch.setenv("SLUICE__SHUFFLE__ENABLED", "true")
    monkeypatch.setenv("SLUICE__SHUFFLE__REPLICAS", "2")
    cluster = start_cluster(tmp_path / "home", "--taskmanagers", "1")
    try:
        yield cluster
    finally:
        cluster.sluice("down")


def test_every_process_shows_metrics_and_logs_in_the_configured_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE__LOG__FORMAT", "json")
    cluster = start_cluster(tmp_path / "home", "--taskmanagers", "1")
    try:
        shown = set(re.findall(r'process="([^"]+)"', cluster.sluice("metrics").stdout))
        assert shown == {
            *("ca/ca-1", "jobmanager/jobmanager-1", "taskmanager/taskmanager-1"),
            *("auth/auth-1", "gateway/connect", "gateway/envoy"),
            *("shuffle-manager/shuffle-manager-1", *(f"shuffle-worker/{name}" for name in WORKERS)),
        }
        for log in ("jobmanager", "taskmanager-1", "auth", "shuffle-manager-1", *WORKERS):
            lines = (cluster.home / "log" / f"{log}.log").read_text().splitlines()
            assert lines
            assert all("identity" in json.loads(line) for line in lines), log
    finally:
        cluster.sluice("down")


def test_job_continues_when_a_worker_is_killed_between_its_stages(shuffling: LocalCluster) -> None:
    folder = shared_folder(shuffling.shared, "sums")
    job_id = shuffling.submit(PIPELINE, str(folder))
    eventually((folder / "first").exists, "the first shuffle was read", 150)
    assert not list(shuffling.home.rglob("shuffle_*.data"))
    peers = {
        each.peer for path in shuffling.home.rglob(EVIDENCE_FILE) for each in read_evidence(path.parent).connections
    }
    assert {peer.rpartition("/")[2] for peer in peers if "/shuffle-worker/" in peer} == set(WORKERS)
    victim = next(each for each in shuffling.processes() if {"shuffle-worker", WORKERS[0]} <= set(command_line(each)))
    os.kill(victim.pid, signal.SIGKILL)
    (folder / "go").touch()
    job = shuffling.wait_for_state(job_id, "FINISHED", "FAILED")
    assert job["state"] == "FINISHED"
    expected = [[key, sum(range(key, 200_000, 13))] for key in range(13)]
    assert json.loads((folder / "first").read_text()) == expected
    assert json.loads((folder / "second").read_text()) == expected
    assert job["attempt"] == 1
