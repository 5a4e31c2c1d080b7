"""Stops and starts the whole cluster, and checks how the engine has configured each container."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.compose.engine import Stack, eventually, run

pytestmark = pytest.mark.timeout(600)


def test_the_cluster_stops_cleanly_and_restarts_with_the_identities_it_had(stack: Stack) -> None:
    for service in stack.services:
        eventually(partial(stack.healthy, service), f"{service} is healthy")

    stack.compose("stop", "--timeout", "30")

    ended = {service: stack.inspect(service) for service in stack.services}
    wrong = {service: seen for service, seen in ended.items() if seen["State"]["ExitCode"] != 0}
    assert not wrong, "\n".join(
        f"{service}: {seen['State']}, started again {seen['RestartCount']} times\n{stack.said(service)}"
        for service, seen in wrong.items()
    )
    stack.up()
    since = stack.inspect("ca")["State"]["StartedAt"]
    said = run("docker", "logs", "--since", since, stack.container("ca"))
    assert "is ready" in said.stderr
    assert "invited" not in said.stdout + said.stderr
    assert stack.client("jobs", "list").returncode == 0


def test_containers_have_the_limits_of_the_compose_file(stack: Stack) -> None:
    document = json.loads(stack.compose("config", "--format", "json").stdout)
    assert set(document["services"]) == set(stack.services)
    assert {name for name, network in document["networks"].items() if network.get("internal")} == {
        "gateway",
        "cluster",
        "ensemble",
    }
    for name, service in document["services"].items():
        host = stack.inspect(name)["HostConfig"]
        assert int(service["mem_limit"]) == host["Memory"], name
        assert service["cpus"] * 1e9 == host["NanoCpus"], name
        assert service["pids_limit"] == host["PidsLimit"], name
