"""A TaskManager is drained in the middle of a Spark job: blocks move, nothing is computed again, and it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.cluster.conftest import LocalCluster, eventually
from tests.system.resources.conftest import running_executors

PIPELINE = Path(__file__).with_name("steady.py")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_draining_moves_executors_with_their_blocks_and_the_taskmanager_leaves(
    cluster: LocalCluster, flags: Path
) -> None:
    done = cluster.sluice("submit", "--executors", "2", str(PIPELINE), "--", str(flags))
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    eventually((flags / "shuffled").exists, "there is shuffle output")
    before = {each["id"]: each["taskmanager"] for each in running_executors(cluster.job(job_id))}
    assert set(before.values()) == {"taskmanager-1", "taskmanager-2"}, "one on each"

    drained = cluster.sluice("drain", "taskmanager-2", "--wait", "--timeout", "120", "--json")
    assert drained.returncode == 0, drained.stderr
    assert json.loads(drained.stdout) == {"taskmanager": "taskmanager-2", "left": True}
    executors = running_executors(cluster.job(job_id))
    assert [each["taskmanager"] for each in executors] == ["taskmanager-1", "taskmanager-1"]
    assert cluster.job(job_id)["progress"]["tasks_finished"] == 16

    (flags / "go-on").touch()
    job = cluster.wait_for_state(job_id, "FINISHED", "FAILED")
    assert job["state"] == "FINISHED", job["failure"]
    log = cluster.sluice("jobs", "logs", job_id, "--source", "driver.stdout")
    assert log.stdout.strip() == "equal True, groups 100"
    progress = job["progress"]
    assert (progress["tasks_finished"], progress["tasks_failed"]) == (24, 0), "no map ran again"
    gone = next(each for each in job["executors"] if each["taskmanager"] == "taskmanager-2")
    assert gone["exit_reason"] == "exit code 0", "it ended by itself"
    status = cluster.sluice("status", "--json")
    assert "taskmanager-2" not in {each["name"] for each in json.loads(status.stdout)["processes"]}


def test_a_submitter_may_not_drain_and_an_unknown_taskmanager_is_an_error(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    made = cluster.sluice("token", "create", "eve", "--role", "submitter", "--output", str(token))
    assert made.returncode == 0, made.stderr
    refused = cluster.sluice("drain", "taskmanager-1", "--token-file", str(token))
    assert refused.returncode == 1
    assert "role does not allow" in refused.stderr
    assert cluster.sluice("drain", "nobody").returncode == 1
