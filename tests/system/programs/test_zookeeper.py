"""The ZooKeeper among pyspark's jars, with the output of ``sluice pki export --for zookeeper``."""

from __future__ import annotations

import itertools
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core.clock import utc_now
from sluice.pki.export.programs.catalogue import Program, export_for
from sluice.pki.export.programs.sources import KEY_STORE
from sluice.pki.identities.directory import read_identity
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.free_ports import free_ports
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki
from tests.integration.programs.ports import (
    Listener,
    client_context,
    exchange,
    is_open,
    presented,
    refuses,
    running,
    tail,
    until,
)
from tests.integration.programs.zookeeper import command

SERVERS = 2
"""Both are needed for a majority: without TLS between them nothing would be served."""
TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
POLLS_BEFORE_A_TOUCH = 100


@dataclass(frozen=True)
class Ensemble:
    """A running ensemble."""

    pki: TestPki
    root: Path
    client_ports: list[int]
    quorum_ports: list[int]
    election_ports: list[int]

    def serves(self, context: ssl.SSLContext) -> bool:
        """Whether each server, asked over mutual TLS, is a leader or a follower."""
        answers = [exchange(port, context, b"srvr") for port in self.client_ports]
        return all(b"Mode: leader" in answer or b"Mode: follower" in answer for answer in answers)

    def logs(self) -> str:
        """The ends of the servers' logs."""
        return "\n".join(tail(self.root / f"server-{number}.log") for number in range(1, SERVERS + 1))


def shell(client_configuration: Path, ports: list[int], commands: str) -> subprocess.CompletedProcess[str]:
    """Run commands in ZooKeeper's own shell."""
    return subprocess.run(
        command(
            "org.apache.zookeeper.ZooKeeperMain",
            *("-client-configuration", client_configuration, "-waitforconnection"),
            *("-server", ",".join(f"localhost:{port}" for port in ports)),
        ),
        input=commands,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """An ensemble whose servers connect to each other with nothing but the exported settings."""
    root = tmp_path_factory.mktemp("zookeeper")
    pki = TestPki(root / "pki")
    ports = free_ports(3 * SERVERS)
    running_ensemble = Ensemble(pki, root, ports[:SERVERS], ports[SERVERS : 2 * SERVERS], ports[2 * SERVERS :])
    peers = "".join(
        f"server.{number}=localhost:{running_ensemble.quorum_ports[number - 1]}"
        f":{running_ensemble.election_ports[number - 1]}\n"
        for number in range(1, SERVERS + 1)
    )
    with ExitStack() as stack:
        for number in range(1, SERVERS + 1):
            identity = pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.ZOOKEEPER, f"zk-{number}"))
            place = root / f"server-{number}"
            export_for(Program.ZOOKEEPER, identity, place, now=utc_now())
            data = root / f"data-{number}"
            data.mkdir()
            (data / "myid").write_text(str(number))
            exported = (place / "zoo.cfg").read_text()
            assert "\nsecureClientPort=2281\n" in exported
            configuration = exported.replace("=2281", f"={running_ensemble.client_ports[number - 1]}") + (
                f"dataDir={data}\ntickTime=1000\ninitLimit=30\nsyncLimit=20\n{peers}"
            )
            file = root / f"server-{number}.cfg"
            file.write_text(configuration)
            log = root / f"server-{number}.log"
            stack.enter_context(running(command("org.apache.zookeeper.server.quorum.QuorumPeerMain", file), log))
        context = client_context(pki.directory(TASKMANAGER))
        until(lambda: running_ensemble.serves(context), running_ensemble.logs)
        yield running_ensemble


def test_the_ensemble_forms_and_zookeepers_own_client_writes_and_reads(ensemble: Ensemble) -> None:
    place = ensemble.root / "client"
    export_for(Program.ZOOKEEPER, ensemble.pki.directory(TASKMANAGER), place, now=utc_now())
    done = shell(place / "client.properties", ensemble.client_ports, "create /proof by-TLS\nget /proof\nquit\n")
    assert "by-TLS" in done.stdout.splitlines(), done.stdout + done.stderr


@pytest.mark.parametrize(
    "case", [Hostile.NO_CERTIFICATE, Hostile.EDGE_CERTIFICATE, Hostile.FOREIGN_CA, Hostile.EXPIRED]
)
@pytest.mark.parametrize("port", ["client", "quorum", "election"])
def test_no_port_admits_a_hostile_peer(port: str, case: Hostile, ensemble: Ensemble) -> None:
    hostile = ensemble.pki.hostile(case, pretending=TASKMANAGER)
    ports = {
        "client": ensemble.client_ports,
        "quorum": ensemble.quorum_ports,
        "election": ensemble.election_ports,
    }[port]
    listening = [each for each in ports if is_open(each)]
    assert listening, "only the leader listens for quorum, but one does"
    assert all(refuses(each, hostile.client_context()) for each in listening), ensemble.logs()


def test_plaintext_and_an_older_tls_are_refused(ensemble: Ensemble) -> None:
    good = client_context(ensemble.pki.directory(TASKMANAGER))
    good.maximum_version = good.minimum_version.TLSv1_2
    for port in ensemble.client_ports:
        assert b"Mode:" not in exchange(port, None, b"srvr\r\n\r\n")
        assert exchange(port, good, b"srvr") == b""


def test_a_renewed_export_takes_effect_without_a_restart(ensemble: Ensemble) -> None:
    renewed = ensemble.pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.ZOOKEEPER, "zk-1"))
    leaf = read_identity(renewed)[0].leaf.public_bytes(Encoding.DER)
    context = client_context(ensemble.pki.directory(TASKMANAGER))
    ports = (ensemble.client_ports[0], ensemble.election_ports[0])
    assert leaf not in [presented(port, context) for port in ports]
    export_for(Program.ZOOKEEPER, renewed, ensemble.root / "server-1", now=utc_now())
    polls = itertools.count(1)

    def shown() -> bool:
        if next(polls) % POLLS_BEFORE_A_TOUCH == 0:  # ZooKeeper misses a change now and then; the next makes up for it
            (ensemble.root / "server-1" / KEY_STORE).touch()
        return {presented(port, context) for port in ports} == {leaf}

    until(shown, ensemble.logs)
    until(lambda: ensemble.serves(context), ensemble.logs)


@pytest.mark.parametrize("case", [None, Hostile.EDGE_CERTIFICATE, Hostile.FOREIGN_CA])
def test_the_client_connects_only_to_a_server_of_its_authority(case: Hostile | None, ensemble: Ensemble) -> None:
    """All servers have the right host name; the edge authority is even below the same root."""
    honest = ensemble.pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.ZOOKEEPER, "zk-1"))
    place = ensemble.root / f"client-of-{case and case.name}"
    export_for(Program.ZOOKEEPER, ensemble.pki.directory(TASKMANAGER), place, now=utc_now())
    if case is None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(honest / "chain.pem", honest / "key.pem")
    else:
        context = ensemble.pki.hostile(case, pretending=TASKMANAGER).server_context()
    log = place / "log"
    with Listener(context) as listener:
        argv = (
            *("-client-configuration", place / "client.properties", "-waitforconnection"),
            *("-server", f"localhost:{listener.port}", "ls", "/"),
        )
        with running(command("org.apache.zookeeper.ZooKeeperMain", *argv), log):
            until(lambda: listener.accepted or listener.refused, lambda: tail(log))
    assert bool(listener.accepted) is (case is None), listener.refused
