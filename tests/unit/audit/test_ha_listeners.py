"""JobManagers that stand by, and ZooKeeper servers, announce where they listen; the audit examines all of it."""

from __future__ import annotations

from pathlib import Path

from sluice.audit.discovery import declared, reconcile
from sluice.audit.model import Kind, Listener
from sluice.audit.sockets import KernelSocket
from sluice.core.home import Home
from sluice.pki.channels import Channel
from sluice.runtime.node.addresses import (
    JobManagerAddress,
    ZooKeeperAddress,
    listening_jobmanager,
    publish_jobmanager,
    publish_zookeeper,
)


def jobmanager(number: int) -> JobManagerAddress:
    host = f"10.0.0.{number}"
    return JobManagerAddress(
        name=f"jm-{number}",
        rpc=(host, 6123),
        blob=(host, 6124),
        rest=f"/run/{number}/rest.sock",
        rest_tls=(host, 8081),
        pid=number,
    )


def places(listeners: tuple[Listener, ...]) -> dict[str, tuple[Channel | None, str, int]]:
    """The channel, host and port of each listener with mutual TLS, by name."""
    return {each.name: (each.channel, each.host, each.port) for each in listeners if each.kind is Kind.MUTUAL}


def test_the_leader_is_declared_without_a_name_suffix_and_the_standby_with_its_name(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    home.create()
    with listening_jobmanager(home, jobmanager(1)), listening_jobmanager(home, jobmanager(2)):
        publish_jobmanager(home, jobmanager(1))
        assert places(declared(home)) == {
            "rpc": (Channel.RPC, "10.0.0.1", 6123),
            "blob": (Channel.BLOB, "10.0.0.1", 6124),
            "rest-tls": (Channel.REST, "10.0.0.1", 8081),
            "rpc-jm-2": (Channel.RPC, "10.0.0.2", 6123),
            "blob-jm-2": (Channel.BLOB, "10.0.0.2", 6124),
            "rest-tls-jm-2": (Channel.REST, "10.0.0.2", 8081),
        }
    assert "rpc-jm-2" not in places(declared(home))


def test_a_zookeeper_server_is_expected_on_its_quorum_port_only_while_it_leads(tmp_path: Path) -> None:
    """Only the leader listens on the quorum port, so on the other servers nothing is missing there."""
    home = Home.at(tmp_path)
    home.create()
    host = "10.0.0.3"
    publish_zookeeper(
        home, ZooKeeperAddress(name="zk-1", client=(host, 2281), quorum=(host, 2888), election=(host, 3888), pid=1)
    )
    declarations = [each for each in declared(home) if each.kind is Kind.MUTUAL]
    assert {each.channel for each in declarations} == {Channel.ZOOKEEPER}
    following = reconcile(declarations, [KernelSocket("zookeeper", 7, "", host=host, port=2281)], lambda _: True)
    assert {each.name for each in following} == {"clients-zk-1", "election-zk-1"}
    leads = [KernelSocket("zookeeper", 7, "", host=host, port=port) for port in (2281, 2888, 3888)]
    found = {each.name: each for each in reconcile(declarations, leads, lambda _: True)}
    assert set(found) == {"clients-zk-1", "election-zk-1", "quorum-zk-1"}
    assert all(each.process == "zookeeper" for each in found.values())
