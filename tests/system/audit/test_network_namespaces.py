"""Listeners in another network namespace, as in a container; these tests need root.

The audit finds them in the namespace's tables and tries them from inside.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.audit.containers import Container, listeners_of
from sluice.audit.errors import AuditError
from sluice.audit.model import Kind, Listener
from sluice.audit.network import in_network_of
from sluice.audit.proc_net import namespace_sockets
from sluice.audit.runner import examine
from sluice.audit.subject import Options, Subject
from sluice.core.home import Home

LISTENER = """
import json, os, socket, sys, subprocess
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
home = sys.argv[1]
tcp = socket.create_server(("127.0.0.1", 0)); wide = socket.create_server(("::", 0), family=socket.AF_INET6)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0))
unix = socket.socket(socket.AF_UNIX); unix.bind(home + "/run/sock/auth.sock"); unix.listen()
os.chmod(home + "/run/sock/auth.sock", 0o600)
declared = json.dumps({"host": "127.0.0.1", "port": tcp.getsockname()[1]})
open(home + "/run/endpoints/envoy.json", "w").write(declared)
print(tcp.getsockname()[1], wide.getsockname()[1], udp.getsockname()[1], flush=True)
while True:
    connection, _ = tcp.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
    connection.close()
"""


@pytest.fixture
def home() -> Iterator[Home]:
    """Provide a home whose path is short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="ns-") as directory:
        made = Home.at(Path(directory, "home"))
        made.create()
        (made.run / "endpoints").mkdir(mode=0o700, exist_ok=True)
        yield made


@pytest.fixture
def inside(home: Home) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Run a process in its own network namespace; yield its pid and its ports.

    The ports are TCP, TCP on every address, and UDP.
    """
    command = ["unshare", "--net", sys.executable, "-c", LISTENER, str(home.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        tcp, wide, udp = (int(port) for port in process.stdout.readline().split())
        try:
            yield process.pid, (tcp, wide, udp)
        finally:
            process.send_signal(signal.SIGKILL)


def test_namespace_sockets_lists_the_sockets_of_the_namespace_and_not_of_the_host(
    inside: tuple[int, tuple[int, int, int]], home: Home
) -> None:
    pid, (tcp, wide, udp) = inside
    with socket.create_server(("127.0.0.1", 0)) as own:
        found = namespace_sockets(pid)
        assert {(each.host, each.port, each.udp) for each in found if each.port} == {
            ("127.0.0.1", tcp, False),
            ("::", wide, False),
            ("127.0.0.1", udp, True),
        }
        assert {each.path for each in found if each.path} == {str(home.sockets / "auth.sock")}
        assert {each.pid for each in found} == {pid}
        assert own.getsockname()[1] in {each.port for each in namespace_sockets(os.getpid())}


def test_a_listener_is_examined_from_inside_its_network_namespace(inside: tuple[int, tuple[int, int, int]]) -> None:
    pid, (tcp, _, _) = inside
    listener = Listener(name="x", kind=Kind.HTTP, host="127.0.0.1", port=tcp)

    def look() -> set[str]:
        report = examine("a namespace", [Subject(listener, Options(timeout=5.0))])
        return {result.check for result in report.findings()}

    assert look() == {"LSN-03"}  # from here, nobody is there
    assert in_network_of(pid, look) == {"EDG-09"}
    assert look() == {"LSN-03"}


def test_a_container_is_examined_as_a_machine_of_its_own(inside: tuple[int, tuple[int, int, int]], home: Home) -> None:
    pid, (tcp, wide, udp) = inside
    container = Container("edge", "blue", pid, home=str(home.root))
    found = {each.name: each for each in in_network_of(pid, lambda: listeners_of(container))}
    declared = {name: each.kind for name, each in found.items() if each.kind is not Kind.UNDECLARED}
    assert declared == {"edge/edge": Kind.SERVER, "edge/auth": Kind.SOCKET}
    assert {each.port for each in found.values() if each.kind is Kind.UNDECLARED} == {wide, udp}
    assert found["edge/edge"].port == tcp
    assert found["edge/auth"].path == f"/proc/{pid}/root{home.sockets / 'auth.sock'}"
    assert {each.container for each in found.values()} == {"edge"}


def test_the_namespace_of_a_missing_process_is_an_error() -> None:
    with pytest.raises(AuditError, match="cannot be entered"):
        in_network_of(1 << 22, lambda: None)
    with pytest.raises(AuditError, match="cannot be read"):
        namespace_sockets(1 << 22)
