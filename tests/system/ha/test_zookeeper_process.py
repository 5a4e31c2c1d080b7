"""``sluice run zookeeper``: three servers, each on its own loopback address, and the audit of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.core.home import Home
from sluice.pki.identities.directory import CHAIN_FILE, KEY_FILE
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.processes.zookeeper import ELECTION_PORT, QUORUM_PORT
from sluice.runtime.spark.plugin_build import ensure_plugin
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(300)]

SERVERS = {f"zk-{number}": f"127.0.77.{number}" for number in (1, 2, 3)}
CLIENT_PORT = 2281
DEADLINE_SECONDS = 120.0
BEGUN = bytes.fromhex("1603010100010000fc0303") + bytes(90)
"""The header of a record, and less than it announces."""
SETTINGS = f"""
[ha]
mode = "zookeeper"
storage = "unused"
jobmanagers = ["jobmanager-1"]
zookeeper_hosts = [{", ".join(f'"{host}:{CLIENT_PORT}"' for host in SERVERS.values())}]
"""


def until(check: Callable[[], Any], what: str) -> Any:
    """Wait until ``check`` returns something true, and return that."""
    return wait_until(check, f"waited in vain until {what}", DEADLINE_SECONDS, pause=0.1)


@pytest.fixture(scope="module", autouse=True)
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Home]]:
    """The servers' homes, one per server as if on separate machines; all servers run."""
    compiled = str(ensure_plugin().parent.parent)  # once, not by each of the three
    root = tmp_path_factory.mktemp("ensemble")
    pki = TestPki(root / "authority")
    found = {}
    with contextlib.ExitStack() as stack:
        for name, host in SERVERS.items():
            home = Home.at(root / name).create()
            (home.root / "sluice.toml").write_text(SETTINGS)
            identity = SpiffeId.process(TRUST_DOMAIN, Role.ZOOKEEPER, name)
            pki.issuer.issue_to(home.identity(Role.ZOOKEEPER, name), identity, ips=[host])
            log = stack.enter_context((home.root / "server.log").open("wb"))
            argv = [sys.executable, "-m", "sluice.cli.main", "run", "zookeeper", "--name", name, "--host", host]
            environment = {"PATH": os.environ["PATH"], "HOME": str(home.root), "XDG_CACHE_HOME": compiled}
            running = subprocess.Popen(
                [*argv, "--home", str(home.root)], stdout=log, stderr=subprocess.STDOUT, env=environment
            )
            stack.callback(running.wait, 60)
            stack.callback(running.terminate)
            found[name] = home
        for name, home in found.items():
            announced = home.run / "endpoints" / f"zookeeper-{name}.json"
            until(announced.exists, f"{name} serves clients: {log_of(home)}")
        yield found


def log_of(home: Home) -> str:
    """The end of a server's log."""
    return (home.root / "server.log").read_text(errors="replace")[-3000:]


def test_one_zookeeper_server_leads_and_the_audit_finds_nothing(tmp_path: Path) -> None:
    (leading,) = until(lambda: [host for host in SERVERS.values() if listens(host, QUORUM_PORT)], "one leads")
    places = [(host, port) for host in SERVERS.values() for port in (CLIENT_PORT, ELECTION_PORT)]
    targets = tmp_path / "targets.toml"
    targets.write_text("".join(target(host, port) for host, port in (*places, (leading, QUORUM_PORT))))
    argv = [sys.executable, "-m", "sluice.cli.main", "audit", "--targets", str(targets), "--fail-on", "info", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    results = json.loads(done.stdout)["results"]
    seen = [(each["check"], each["listener"], each["seen"]) for each in results if each["outcome"] == "finding"]
    assert seen == []
    assert done.returncode == 0
    passed = {(each["check"], each["listener"]) for each in results if each["outcome"] == "passed"}
    for host, port in places:
        assert {("MTL-02", f"{host}-{port}"), ("TLS-04", f"{host}-{port}")} <= passed


def test_peers_with_unfinished_handshakes_do_not_block_others_and_are_disconnected() -> None:
    """At the election port, where ZooKeeper by itself handles one handshake after the other."""
    host = SERVERS["zk-1"]
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection((host, ELECTION_PORT))) for _ in range(5)]
        for each in held:
            each.sendall(BEGUN)
        with pytest.raises(ssl.SSLError, match=r"(?i)alert (certificate required|bad certificate)"):
            shake_hands(host)
        assert select.select(held, [], [], 0)[0] == []  # they are still being waited for
        until(lambda: len(select.select(held, [], [], 0.1)[0]) == len(held), "those that do not go on are thrown out")


def test_only_another_server_of_an_ensemble_may_take_part_in_elections(homes: dict[str, Home]) -> None:
    """A certificate of the authority alone is not enough: every executor has one."""
    host = SERVERS["zk-1"]
    with pytest.raises(ssl.SSLError, match=r"(?i)alert certificate unknown"):
        shake_hands(host, identity(homes, Role.TASKMANAGER))
    with pytest.raises(TimeoutError):  # let in, and waited for what it has to say
        shake_hands(host, identity(homes, Role.ZOOKEEPER), patience=3.0)


def identity(homes: dict[str, Home], role: Role) -> Path:
    """Issue a certificate from the servers' authority; returns its directory."""
    pki = TestPki(homes["zk-1"].root.parent / "authority")
    return pki.directory(SpiffeId.process(TRUST_DOMAIN, role, "somebody"))


def shake_hands(host: str, certificate: Path | None = None, *, patience: float = DEADLINE_SECONDS) -> None:
    """Connect to the election port over TLS and read one byte."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate / CHAIN_FILE, certificate / KEY_FILE)
    plain = socket.create_connection((host, ELECTION_PORT), timeout=patience)
    with plain, context.wrap_socket(plain) as secured:
        secured.recv(1)


def listens(host: str, port: int) -> bool:
    """Whether something listens there, according to the kernel's table.

    This avoids connecting: the server would take the connection for one from its ensemble.
    """
    number = int.from_bytes(bytes(int(part) for part in host.split(".")), "little")
    plain, mapped = f"{number:08X}:{port:04X}", f"0000000000000000FFFF0000{number:08X}:{port:04X}"
    tables = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()]
    return any(columns[1] in {plain, mapped} and columns[3] == "0A" for columns in tables)


def target(host: str, port: int) -> str:
    """An entry of the target file."""
    return (
        f'[[target]]\nname = "{host}-{port}"\nhost = "{host}"\nport = {port}\n'
        'expected = "mutual"\nchannel = "zookeeper"\n'
    )
