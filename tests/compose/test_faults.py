"""Containers killed and networks cut while a job runs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.compose.engine import ROOT, Stack, eventually, run

pytestmark = pytest.mark.timeout(1500)
TOTAL = f"keys 7 total {sum(range(1, 91))}"


def on(stack: Stack, job_id: str, taskmanager: str) -> Any:
    """The job's executor on ``taskmanager`` once the job is well under way there; else None."""
    job = stack.job(job_id)
    assert job["state"] in {"CREATED", "INITIALIZING", "RUNNING"}, job
    running = [each for each in job["executors"] if each["state"] == "RUNNING"]
    here = [each for each in running if each["taskmanager"] == taskmanager]
    return here if here and job["progress"]["tasks_finished"] >= 5 else None


def under_way(stack: Stack, pipeline: Path, taskmanager: str) -> str:
    """Submit the pipeline and wait until some of it was done, and ``taskmanager`` has a part in it."""
    job_id = stack.submit(pipeline, "1.0")
    eventually(lambda: on(stack, job_id, taskmanager), f"{taskmanager} works on the job")
    return job_id


def all_registered(stack: Stack) -> bool:
    """Whether all TaskManagers are healthy, which they are when registered."""
    return all(stack.healthy(service) for service in stack.taskmanagers)


def test_a_job_from_outside_finds_what_is_there(stack: Stack) -> None:
    job_id = stack.submit(ROOT / "pipelines" / "cert_inventory.py", "--format", "json")
    report = json.loads(stack.until_finished(job_id))
    assert report["certificates"] > 50
    assert report["bad_inputs"] == 0


def test_a_killed_taskmanager_costs_no_result(stack: Stack, slow_sum: Path) -> None:
    job_id = under_way(stack, slow_sum, "taskmanager-2")
    before = stack.inspect("taskmanager-2")["RestartCount"]
    stack.kill("taskmanager-2")
    assert TOTAL in stack.until_finished(job_id)
    eventually(lambda: stack.inspect("taskmanager-2")["RestartCount"] > before, "the engine has started it again")
    eventually(lambda: all_registered(stack), "it is registered again, with the identity it had")
    assert stack.job(job_id)["progress"]["executors_removed"] >= 1


def test_a_taskmanager_whose_network_is_cut_costs_no_result(stack: Stack, slow_sum: Path) -> None:
    job_id = under_way(stack, slow_sum, "taskmanager-3")
    run("docker", "network", "disconnect", stack.network("cluster"), stack.container("taskmanager-3"))
    try:
        assert TOTAL in stack.until_finished(job_id)
    finally:
        alias = ("--alias", "taskmanager-3")
        run("docker", "network", "connect", *alias, stack.network("cluster"), stack.container("taskmanager-3"))
    eventually(lambda: all_registered(stack), "it is registered again")


def test_without_the_auth_service_requests_are_refused_and_nothing_else(stack: Stack, slow_sum: Path) -> None:
    job_id = under_way(stack, slow_sum, "taskmanager-1")
    run("docker", "kill", stack.container("auth"))
    try:
        refused = stack.client("jobs", "list", check=False)
        assert refused.returncode != 0
        assert "cannot answer now" in refused.stderr
        for service in ("jobmanager", *stack.taskmanagers, "envoy", "ca"):
            assert stack.healthy(service)
    finally:
        run("docker", "start", stack.container("auth"))
    eventually(lambda: stack.client("jobs", "list", check=False).returncode == 0, "requests are answered again")
    assert TOTAL in stack.until_finished(job_id)


def test_the_whole_cluster_stops_in_order_and_comes_back_with_its_identities(stack: Stack) -> None:
    for service in stack.services:
        eventually(partial(stack.healthy, service), f"{service} is healthy")
    stack.compose("stop", "--timeout", "30")
    assert {service: stack.inspect(service)["State"]["ExitCode"] for service in stack.services} == dict.fromkeys(
        stack.services, 0
    )
    stack.up()
    since = stack.inspect("ca")["State"]["StartedAt"]
    said = run("docker", "logs", "--since", since, stack.container("ca"))
    assert "is ready" in said.stderr
    assert "invited" not in said.stdout + said.stderr
    assert stack.client("jobs", "list").returncode == 0
