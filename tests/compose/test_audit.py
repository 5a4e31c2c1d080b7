"""``sluice audit`` of the running containers: every port that the kernel has open in any of them, and no finding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compose.engine import Stack, sluice

pytestmark = pytest.mark.timeout(600)
PORTS = {
    ("ca", 8444): ("mutual", "ca", "cluster"),
    ("ca", 8445): ("server", "enrolment", "gateway"),
    ("jobmanager", 6123): ("mutual", "rpc", "cluster"),
    ("jobmanager", 6124): ("mutual", "blob", "cluster"),
    ("jobmanager", 8081): ("mutual", "rest", "gateway"),
    ("auth", 8082): ("mutual", "auth", "gateway"),
    ("envoy", 8443): ("server", "edge", "front"),
}
"""What each port is to be, on which channel, and the network on which it is examined."""


def target(stack: Stack, service: str, port: int) -> str:
    """An entry of the target file."""
    expected, channel, network = PORTS[service, port]
    name = "localhost" if service == "envoy" else ""
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


def test_the_audit_finds_nothing_at_any_open_port(stack: Stack, tmp_path: Path) -> None:
    open_ports = [(service, port) for service in stack.services for port in stack.listening(service)]
    assert set(open_ports) == set(PORTS)
    targets = tmp_path / "targets.toml"
    targets.write_text("\n".join(target(stack, service, port) for service, port in open_ports))

    done = sluice("audit", "--targets", targets, "--fail-on", "info", "--json", check=False)

    report = json.loads(done.stdout)
    verdicts = {result["outcome"] for result in report["results"]}
    assert [result for result in report["results"] if result["outcome"] == "finding"] == []
    assert "passed" in verdicts
    assert done.returncode == 0, done.stderr
    assert len(report["listeners"]) == len(PORTS)
