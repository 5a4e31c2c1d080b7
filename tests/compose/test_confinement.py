"""What a container may do, what is in the image, and what can be reached from where."""

from __future__ import annotations

import io
import json
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from tests.compose.engine import IMAGE, Stack, run

pytestmark = pytest.mark.timeout(600)
SERVICES = ("ca", "jobmanager", "taskmanager-1", "taskmanager-2", "taskmanager-3", "auth", "envoy-agent", "envoy")
# Two, because a pattern that begins with a literal is found ten times faster.
SECRETS = (
    re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\r?\n[A-Za-z0-9+/=\r\n]{40,}-----END"),
    re.compile(rb"sl[jc]_[0-9a-f]{12}_[0-9a-f]{16,}"),
)
SCAN = """
import concurrent.futures, socket, sys
def open_port(address):
    try:
        socket.create_connection(address, 1.0).close()
    except OSError:
        return None
    return f"{address[0]}:{address[1]}"
hosts, ports = sys.argv[1].split(","), range(int(sys.argv[2]), int(sys.argv[3]))
with concurrent.futures.ThreadPoolExecutor(256) as pool:
    print(*filter(None, pool.map(open_port, [(host, port) for host in hosts for port in ports])))
"""
PLAIN = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as connection:
    connection.sendall(b"GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    try:
        print(connection.recv(100))
    except OSError:
        print(b"")
"""


def in_front(stack: Stack, program: str, *arguments: str) -> str:
    """Run Python in a container that is on the front network only."""
    return run(
        *("docker", "run", "--rm", "--network", stack.network("front"), "--cap-drop", "ALL", "--read-only"),
        *("--entrypoint", "python3", IMAGE, "-c", program, *arguments),
    ).stdout.strip()


@pytest.mark.parametrize("service", SERVICES)
def test_containers_have_no_rights(stack: Stack, service: str) -> None:
    host = stack.inspect(service)["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert any(option.startswith("no-new-privileges") for option in host["SecurityOpt"])
    assert host["Memory"] > 0
    assert host["NanoCpus"] > 0
    assert host["PidsLimit"] > 0
    assert host["RestartPolicy"]["Name"] == "unless-stopped"

    status = dict(line.split(":\t", 1) for line in (stack.proc(service) / "status").read_text().splitlines())
    assert status["Uid"].split() == ["10001"] * 4
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    for place in ("/", "/etc", "/opt/sluice", "/opt/sluice/app") if service != "envoy" else ():
        assert run("docker", "exec", stack.container(service), "touch", f"{place}/x", check=False).returncode != 0


@pytest.mark.parametrize("service", SERVICES)
def test_keys_stay_where_they_were_made_and_tokens_are_gone(stack: Stack, service: str) -> None:
    root = stack.proc(service) / "root"
    named = [path for path in (root / "var/lib/sluice").rglob("*key*.pem") if path.is_file()]
    keys = [path for path in named if b"PRIVATE KEY" in path.read_bytes()]
    # Envoy's keys are with its agent, and come to it on a socket.
    assert bool(keys) == (service != "envoy")
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 and key.stat().st_uid == 10001 for key in keys)
    assert any("authorities" in key.parts for key in keys) == (service == "ca")
    assert [path for place in (root / "run").glob("join*") for path in place.rglob("*") if path.is_file()] == []

    volumes = {mount["Name"] for mount in stack.inspect(service)["Mounts"] if mount["Type"] == "volume"}
    own = {volume.removeprefix(f"{stack.name}_") for volume in volumes}
    homes = {volume for volume in own if not volume.startswith("join-")}
    shared = {"envoy-run", "envoy-log"} if service.startswith("envoy") else set()
    assert homes == shared | {service}


def test_what_envoy_shares_with_its_agent_has_no_key(stack: Stack) -> None:
    for service in ("envoy", "envoy-agent"):
        for place in ("run", "access"):
            for path in (stack.proc(service) / "root/var/lib/sluice" / place).rglob("*"):
                assert not path.is_file() or b"PRIVATE KEY" not in path.read_bytes(), path


def test_only_the_gateways_port_is_published_and_only_it_is_in_front(stack: Stack) -> None:
    published, front = {}, []
    for service in stack.services:
        settings = stack.inspect(service)["NetworkSettings"]
        bound = {port: hosts for port, hosts in settings["Ports"].items() if hosts}
        if bound:
            published[service] = bound
        if stack.network("front") in settings["Networks"]:
            front.append(service)
    assert published == {"envoy": {"8443/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(stack.port)}]}}
    assert front == ["envoy"]
    for network in ("gateway", "cluster"):
        assert json.loads(run("docker", "network", "inspect", stack.network(network)).stdout)[0]["Internal"]


def test_from_the_front_only_the_gateway_answers_and_never_in_plaintext(stack: Stack) -> None:
    envoy = stack.address("envoy", "front")
    assert in_front(stack, SCAN, envoy, "1", "65536") == f"{envoy}:8443"
    inner = [stack.address(service, "gateway") for service in ("ca", "jobmanager", "auth", "envoy-agent", "envoy")]
    inner += [stack.address(service, "cluster") for service in ("ca", "jobmanager", *stack.taskmanagers)]
    for first, last in ((6123, 6125), (8081, 8083), (8443, 8446)):
        assert in_front(stack, SCAN, ",".join(inner), str(first), str(last)) == ""
    assert "HTTP" not in in_front(stack, PLAIN, envoy, "8443")


def test_every_port_inside_speaks_tls_and_nothing_else_listens(stack: Stack) -> None:
    """Every listener of the kernel's tables, loopback apart (a container's own resolver and py4j are there)."""
    expected = {
        "ca": {8444, 8445},
        "jobmanager": {6123, 6124, 8081},
        "auth": {8082},
        "envoy": {8443},
        **{service: set() for service in (*stack.taskmanagers, "envoy-agent")},
    }
    assert {service: set(stack.listening(service)) for service in stack.services} == expected


def layers() -> Iterator[tuple[str, bytes]]:
    """Every file of every layer of the image, and its configuration."""
    with subprocess.Popen(["docker", "save", IMAGE], stdout=subprocess.PIPE) as save:
        assert save.stdout is not None
        with tarfile.open(fileobj=save.stdout, mode="r|") as image:
            for member in image:
                file = image.extractfile(member)
                if file is None:
                    continue
                if not member.name.endswith(("layer.tar", ".tar")) and "blobs/" not in member.name:
                    yield member.name, file.read()
                    continue
                content = file.read()
                if not tarfile.is_tarfile(io.BytesIO(content)):
                    yield member.name, content
                    continue
                with tarfile.open(fileobj=io.BytesIO(content)) as layer:
                    for each in layer:
                        inner = layer.extractfile(each) if each.isfile() else None
                        yield each.name, inner.read() if inner else b""


def test_no_secret_is_in_any_layer() -> None:
    count = 0
    for name, content in layers():
        count += 1
        # An empty directory, so that the volume over it belongs to the user that all run as.
        assert name == "var/lib/sluice/access" or not name.startswith(("var/lib/sluice/", "run/join")), name
        assert not name.endswith(("/key.pem", "/token")), name
        # Cryptographic libraries carry the keys of their self-tests.
        if not content.startswith(b"\x7fELF"):
            assert not any(secret.search(content) for secret in SECRETS), name
    assert count > 1000
