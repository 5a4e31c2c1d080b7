"""The audit knows the metrics sockets of a home's processes, and no other socket beside them."""

from __future__ import annotations

from pathlib import Path

from sluice.audit.discovery import declared
from sluice.audit.model import Kind
from sluice.core.home import Home
from sluice.core.metrics.metrics_socket import socket_of
from sluice.pki.spiffe_id import Role


def test_a_metrics_socket_is_declared_only_for_an_identity_of_the_home(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home").create()
    for role, name in ((Role.JOBMANAGER, "jobmanager-1"), (Role.TASKMANAGER, "tm-1"), (Role.TASKMANAGER, "tm-2")):
        home.identity(role, name).mkdir(parents=True)
    there = socket_of(home, "jobmanager/jobmanager-1"), socket_of(home, "taskmanager/tm-2")
    there[0].parent.mkdir()
    for path in (*there, there[0].with_name("hidden.sock"), socket_of(home, "taskmanager/nobody")):
        path.touch()
    found = {each.name: each for each in declared(home) if each.name.startswith("metrics-")}
    assert {name: each.path for name, each in found.items()} == {
        "metrics-jobmanager-1": str(there[0]),
        "metrics-tm-2": str(there[1]),
    }
    assert all(each.kind is Kind.SOCKET for each in found.values())
