"""The open sockets of a cluster while a job runs.

None of our listeners speaks plaintext to the network. The audit examines them as well.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
from pathlib import Path

import psutil
import pytest

from sluice.audit.identities import log_path
from sluice.core.home import Home
from sluice.gateway.credentials.token_file import TokenStore
from tests.integration.cluster.conftest import LocalCluster
from tests.live_files import paths_below
from tests.processes import command_line

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def listeners(cluster: LocalCluster) -> dict[tuple[str, int], str]:
    """Return (address, port) -> command line of the cluster's TCP listeners, from the kernel's table."""
    found = {}
    for process in cluster.processes():
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    address = connection.laddr.ip.removeprefix("::ffff:")  # how the JVM's sockets show IPv4
                    found[address, connection.laddr.port] = " ".join(command_line(process))
    return found


def speaks_plaintext(address: tuple[str, int]) -> bool:
    """Whether a listener answers a plaintext HTTP request with anything other than a TLS alert."""
    with socket.create_connection(address, timeout=5) as plain:
        plain.settimeout(3)
        with contextlib.suppress(OSError):
            plain.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = plain.recv(64)
            return bool(answer) and answer[0] != 0x15
    return False


@pytest.mark.usefixtures("running_job")
def test_every_listener_is_on_loopback_and_none_of_ours_speaks_plaintext(cluster: LocalCluster) -> None:
    found = listeners(cluster)
    assert len(found) >= 5, found  # gateway, rpc, blob, driver, executors
    assert all(ipaddress.ip_address(address).is_loopback for address, _ in found), found
    chatty = [command for address, command in found.items() if speaks_plaintext(address)]
    # py4j between the driver's own two processes: loopback, token, closed to anyone else
    assert all("PythonGatewayServer" in command for command in chatty), chatty


def test_rest_listens_only_on_a_unix_socket_accessible_only_to_its_owner(cluster: LocalCluster) -> None:
    sockets = list((cluster.home / "run" / "sock").glob("*.sock")) or [
        Path(str(connection.laddr))
        for process in cluster.processes()
        for connection in process.net_connections("unix")
        if str(connection.laddr).endswith("rest.sock")
    ]
    rest = next(path for path in sockets if path.name == "rest.sock")
    assert rest.stat().st_mode & 0o077 == 0
    assert rest.parent.stat().st_mode & 0o077 == 0


def test_key_files_are_readable_by_their_owner_alone(cluster: LocalCluster) -> None:
    secrets = [path for path in paths_below(cluster.home) if path.name == "key.pem" or path.suffix in {".p12", ".pass"}]
    assert len(secrets) >= 6
    modes = {}
    for path in secrets:
        with contextlib.suppress(FileNotFoundError):  # of a job that has ended meanwhile
            modes[path] = path.stat().st_mode
    assert len(modes) >= 6
    assert [path for path, mode in modes.items() if mode & 0o077] == []


@pytest.mark.usefixtures("running_job")
def test_a_cluster_with_a_running_job_gives_no_finding(cluster: LocalCluster) -> None:
    done = cluster.sluice("audit", "--json")
    report = json.loads(done.stdout)
    found = [each for each in report["results"] if each["outcome"] == "finding"]
    assert found == [], done.stderr
    assert done.returncode == 0, done.stderr
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
