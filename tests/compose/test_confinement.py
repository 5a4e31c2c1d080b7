"""The privileges of containers, the contents of the image, and which networks can reach what."""

from __future__ import annotations

import hashlib
import io
import json
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from sluice.runtime.processes.zookeeper import ELECTION_PORT, QUORUM_PORT
from tests.compose.engine import IMAGE, Stack, run

pytestmark = pytest.mark.timeout(600)
SHARED = tuple(f"var/lib/sluice/{name}" for name in ("access", "ha-storage", "shuffle-ha", "tmp"))
SERVICES = (
    *("ca", "jobmanager", "jobmanager-2", "zookeeper-1", "zookeeper-2", "zookeeper-3"),
    *("taskmanager-1", "taskmanager-2", "taskmanager-3"),
    *("shuffle-manager-1", "shuffle-manager-2", "shuffle-worker-1", "shuffle-worker-2"),
    *("auth", "envoy-agent", "envoy"),
)
# Two, because a pattern that begins with a literal is found ten times faster.
SECRETS = (
    re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\r?\n[A-Za-z0-9+/=\r\n]{40,}-----END"),
    re.compile(rb"sl[jc]_[0-9a-f]{12}_[0-9a-f]{16,}"),
)
SELF_TESTS = {"33b4ec02496899e8621fc19d2c8e1d3ec48fed00d7363909c1b059fe91f9bbc0"}
"""SHA-256 of keys in libraries: Netty tries OpenSSL with one, a constant that the archive of classes keeps."""
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
UNKNOWN = """
import socket, ssl, sys
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as connection:
        with context.wrap_socket(connection) as tls:
            tls.sendall(b"CONNECT localhost:443 HTTP/1.1\\r\\nHost: localhost:443\\r\\n\\r\\n")
            print(tls.recv(100))
except (ssl.SSLError, ConnectionError):
    print("refused")
"""
"""Connects without a certificate; in TLS 1.3 the refusal arrives with the first read."""
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
    """Run Python code in a container that is on the front network only."""
    return run(
        *("docker", "run", "--rm", "--network", stack.network("front"), "--cap-drop", "ALL", "--read-only"),
        *("--entrypoint", "python3", IMAGE, "-c", program, *arguments),
    ).stdout.strip()


@pytest.mark.parametrize("service", SERVICES)
def test_containers_run_without_privileges_and_with_resource_limits(stack: Stack, service: str) -> None:
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


@pytest.mark.parametrize("service", [each for each in SERVICES if each != "envoy"])
def test_only_taskmanagers_can_create_user_and_network_namespaces(stack: Stack, service: str) -> None:
    """The kernel is asked as well: the options given to the engine are only half of the answer."""

    def makes(*namespaces: str) -> bool:
        command = ("docker", "exec", stack.container(service), "unshare", "--user", *namespaces, "true")
        return run(*command, check=False).returncode == 0

    runs_jobs = service in stack.taskmanagers
    assert makes() == makes("--mount", "--pid", "--fork", "--ipc", "--uts", "--cgroup") == makes("--net") == runs_jobs
    assert not makes("--time")
    status = (stack.proc(service) / "status").read_text()
    assert "\nSeccomp:\t2\n" in status
    host = stack.inspect(service)["HostConfig"]
    assert bool(host["MaskedPaths"]) == bool(host["ReadonlyPaths"]) == (not runs_jobs)
    sysctl = ("docker", "exec", stack.container(service), "touch", "/proc/sys/kernel/core_pattern")
    assert run(*sysctl, check=False).returncode != 0


@pytest.mark.parametrize("service", SERVICES)
def test_private_keys_stay_in_their_own_container_and_join_tokens_are_deleted(stack: Stack, service: str) -> None:
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
    if service in stack.jobmanagers:
        shared = {"ha-storage"}
    assert homes == shared | {service}


def test_the_directories_shared_by_envoy_and_its_agent_contain_no_private_key(stack: Stack) -> None:
    for service in ("envoy", "envoy-agent"):
        for place in ("run", "access"):
            for path in (stack.proc(service) / "root/var/lib/sluice" / place).rglob("*"):
                assert not path.is_file() or b"PRIVATE KEY" not in path.read_bytes(), path


def test_only_the_gateway_port_is_published_and_only_envoy_is_on_the_front_network(stack: Stack) -> None:
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
    for network in ("gateway", "cluster", "ensemble"):
        assert json.loads(run("docker", "network", "inspect", stack.network(network)).stdout)[0]["Internal"]


def test_from_the_front_network_only_the_gateway_is_reachable_and_never_in_plaintext(stack: Stack) -> None:
    envoy = stack.address("envoy", "front")
    assert in_front(stack, SCAN, envoy, "1", "65536").split() == [f"{envoy}:8443", f"{envoy}:8447"]
    beside = ("ca", *stack.jobmanagers, "auth", "envoy-agent", "envoy")
    inner = [stack.address(service, "gateway") for service in beside]
    inside = ("ca", *stack.jobmanagers, *stack.zookeepers, *stack.taskmanagers, *stack.shuffle)
    inner += [stack.address(service, "cluster") for service in inside]
    inner += [stack.address(service, "ensemble") for service in stack.zookeepers]
    for first, last in (
        (2281, 2282),
        (2888, 2889),
        (3888, 3889),
        (6123, 6125),
        (7337, 7339),
        (8081, 8083),
        (8443, 8448),
    ):
        assert in_front(stack, SCAN, ",".join(inner), str(first), str(last)) == ""
    assert "HTTP" not in in_front(stack, PLAIN, envoy, "8443")
    assert in_front(stack, UNKNOWN, envoy, "8447") == "refused"


def test_only_the_expected_ports_listen_and_each_speaks_tls(stack: Stack) -> None:
    """All listeners in the kernel's tables except on loopback (the container's resolver and py4j)."""
    expected = {
        "ca": {8444, 8445},
        **{key: {6123, 6124, 8081} for key in stack.jobmanagers},
        **{key: {2281, ELECTION_PORT} for key in stack.zookeepers},
        "auth": {8082},
        "envoy": {8443, 8447},
        **{service: {7337 if "manager" in service else 7338} for service in stack.shuffle},
        **{service: set() for service in (*stack.taskmanagers, "envoy-agent")},
    }
    found = {service: set(stack.listening(service)) for service in stack.services}
    assert sum(QUORUM_PORT in ports for ports in found.values()) == 1
    assert {service: ports - {QUORUM_PORT} for service, ports in found.items()} == expected


def test_the_zookeeper_servers_talk_to_each_other_on_a_network_of_their_own(stack: Stack) -> None:
    for service in stack.zookeepers:
        clients, peers = stack.address(service, "cluster"), stack.address(service, "ensemble")
        bound = stack.listening(service)
        assert bound.pop(2281) == clients
        assert set(bound.values()) == {peers}
    for service in stack.services:
        attached = stack.network("ensemble") in stack.inspect(service)["NetworkSettings"]["Networks"]
        assert attached == (service in stack.zookeepers), service


def layers() -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of every file in every layer of the image, and of its configuration."""
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


def test_no_layer_of_the_image_contains_a_secret() -> None:
    count = 0
    for name, content in layers():
        count += 1
        # Empty directories, so that the volumes over them belong to the user that all run as.
        assert name in SHARED or not name.startswith(("var/lib/sluice/", "run/join")), name
        assert not name.endswith(("/key.pem", "/token")), name
        # Cryptographic libraries carry the keys of their self-tests.
        if not content.startswith(b"\x7fELF"):
            found = {
                hashlib.sha256(each.group()).hexdigest() for secret in SECRETS for each in secret.finditer(content)
            }
            assert found <= SELF_TESTS, name
    assert count > 1000
