"""``sluice audit`` examines every open port of the running containers and finds nothing."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from sluice.runtime.processes.zookeeper import ELECTION_PORT, QUORUM_PORT
from tests.compose.engine import Stack, eventually, sluice
from tests.compose.jobs import AUDIT_SECONDS, TOTAL, under_way

pytestmark = pytest.mark.timeout(600)
PORTS = {
    ("ca", 8444): ("mutual", "ca", "cluster"),
    ("ca", 8445): ("server", "enrolment", "gateway"),
    **{
        (service, port): ("mutual", channel, network)
        for service in ("jobmanager", "jobmanager-2")
        for port, channel, network in ((6123, "rpc", "cluster"), (6124, "blob", "cluster"), (8081, "rest", "gateway"))
    },
    **{
        (f"zookeeper-{number}", port): ("mutual", "zookeeper", network)
        for number in (1, 2, 3)
        for port, network in ((2281, "cluster"), (QUORUM_PORT, "ensemble"), (ELECTION_PORT, "ensemble"))
    },
    ("shuffle-manager-1", 7337): ("mutual", "rpc", "cluster"),
    ("shuffle-manager-2", 7337): ("mutual", "rpc", "cluster"),
    ("shuffle-worker-1", 7338): ("mutual", "data", "cluster"),
    ("shuffle-worker-2", 7338): ("mutual", "data", "cluster"),
    ("auth", 8082): ("mutual", "auth", "gateway"),
    ("envoy", 8443): ("server", "edge", "front"),
    ("envoy", 8447): ("mutual", "egress", "cluster"),
}
"""What each port is to be, on which channel, and the network on which it is examined."""
FOLLOWERS = 2
"""Of ZooKeeper's servers: they do not listen where the one that leads is followed."""


def target(stack: Stack, service: str, port: int) -> str:
    """Return the entry of the target file for a port of a service."""
    expected, channel, network = PORTS[service, port]
    name = "localhost" if channel == "edge" else ""
    return "\n".join(
        (
            "[[target]]",
            f'name = "{service}-{port}"',
            f'host = "{stack.address(service, network)}"',
            f"port = {port}",
            f'expected = "{expected}"',
            f'channel = "{channel}"',
            f'server_name = "{name}"',
            "",
        )
    )


def findings(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str, str]]:
    """Return check, listener and observation of each finding in a report.

    Fails if the report shows that nothing was examined.
    """
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert any(result["outcome"] == "passed" for result in report["results"]), done.stderr
    assert len(report["listeners"]) >= len(PORTS) - FOLLOWERS
    return [
        (result["check"], result["listener"], result["seen"])
        for result in report["results"]
        if result["outcome"] == "finding"
    ]


def test_the_audit_finds_nothing_in_any_container_while_a_job_runs(stack: Stack, slow_sum: Path) -> None:
    """From inside each container: open ports and who declared them, the home, every handshake."""
    job_id = under_way(stack, slow_sum, "taskmanager-1", AUDIT_SECONDS)

    done = sluice(
        *("audit", "--compose", stack.directory, "--project", stack.name),
        *("--fail-on", "info", "--json"),
        check=False,
    )

    assert findings(done) == []
    assert done.returncode == 0, done.stderr
    examined = {each["listener"]["name"] for each in json.loads(done.stdout)["listeners"]}
    assert any(re.match(r"taskmanager-\d/driver-", name) for name in examined), examined
    assert not any(name.startswith(("jobmanager/driver-", "jobmanager-2/driver-")) for name in examined), examined
    assert any(name.startswith("taskmanager-1/executor-") for name in examined), examined
    assert TOTAL in stack.until_finished(job_id)


def test_the_audit_finds_nothing_at_any_open_port(stack: Stack, tmp_path: Path) -> None:
    """From outside, with only the addresses."""
    eventually(lambda: not any(map(stack.listening, stack.taskmanagers)), "the processes of the last job have ended")
    open_ports = [(service, port) for service in stack.services for port in stack.listening(service)]
    quorum = {place for place in PORTS if place[1] == QUORUM_PORT}
    assert set(open_ports) - quorum == set(PORTS) - quorum
    assert len(quorum - set(open_ports)) == FOLLOWERS
    targets = tmp_path / "targets.toml"
    targets.write_text("\n".join(target(stack, service, port) for service, port in open_ports))

    done = sluice("audit", "--targets", targets, "--fail-on", "info", "--json", check=False)

    assert findings(done) == []
    assert done.returncode == 0, done.stderr
