"""The configuration of a ZooKeeper server: what is exported, and its place in the ensemble."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.runtime.ha.errors import HaMisconfigured
from sluice.runtime.processes.zookeeper import quorum_settings, server_settings

HOSTS = ("zk1.internal:2281", "zk2.internal:2291", "zk3.internal:2281")
EXPORTED = "secureClientPort=2281\nsslQuorum=true\n"


def test_a_server_is_bound_to_its_host_and_knows_the_others() -> None:
    text, number, port = server_settings(EXPORTED, Path("/home/data"), HOSTS, "zk2.internal")
    lines = text.splitlines()
    assert (number, port) == (2, 2291)
    assert "secureClientPort=2291" in lines
    assert "secureClientPortAddress=zk2.internal" in lines
    assert "dataDir=/home/data" in lines
    assert [line for line in lines if line.startswith("server.")] == [
        f"server.{each}=zk{each}.internal:2888:3888" for each in (1, 2, 3)
    ]
    assert not any(line.startswith("clientPort=") for line in lines)


def test_quorum_settings_admit_only_zookeeper_servers_of_the_own_trust_domain() -> None:
    assert quorum_settings("example.org").splitlines() == [
        "ssl.quorum.context.supplier.class=io.sluice.zookeeper.PunctualContext",
        "ssl.quorum.peers=spiffe://example.org/zookeeper/*",
    ]


def test_servers_may_use_other_peer_addresses_than_clients_do() -> None:
    peers = [f"peers{each}" for each in (1, 2, 3)]
    lines = server_settings(EXPORTED, Path("/home/data"), HOSTS, "zk1.internal", peers)[0].splitlines()
    assert "secureClientPortAddress=zk1.internal" in lines
    assert [line for line in lines if line.startswith("server.")] == [
        f"server.{each}=peers{each}:2888:3888" for each in (1, 2, 3)
    ]
    with pytest.raises(HaMisconfigured, match="2 peers for 3 servers"):
        server_settings(EXPORTED, Path("/home/data"), HOSTS, "zk1.internal", peers[:2])


def test_a_host_outside_the_ensemble_is_refused() -> None:
    with pytest.raises(HaMisconfigured, match=r"zk4\.internal"):
        server_settings(EXPORTED, Path("/home/data"), HOSTS, "zk4.internal")
