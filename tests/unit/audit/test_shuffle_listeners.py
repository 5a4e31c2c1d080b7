"""The listeners of the shuffle service, as its processes publish them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.audit.discovery import declared
from sluice.audit.errors import AuditError
from sluice.audit.model import Kind, Listener
from sluice.core.home import Home
from sluice.pki.channels import Channel
from sluice.runtime.node.addresses import (
    ShuffleManagerAddress,
    ShuffleRegistration,
    publish_registration,
    publish_shuffle_listener,
    publish_shuffle_manager,
)


def test_shuffle_managers_are_declared_on_rpc_and_workers_on_data(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    leader = ShuffleManagerAddress(name="sm-1", rpc=("127.0.0.1", 7001), pid=1)
    standby = ShuffleManagerAddress(name="sm-2", rpc=("127.0.0.1", 7002), pid=2)
    publish_shuffle_manager(home, leader)
    for each in (leader, standby):
        publish_shuffle_listener(home, each)
    publish_registration(home, ShuffleRegistration(name="sw-1", manager="sm-1", data=("127.0.0.1", 7003)))
    found = [each for each in declared(home) if each.channel in {Channel.RPC, Channel.DATA}]
    assert found == [
        Listener(name="rpc-sm-1", kind=Kind.MUTUAL, channel=Channel.RPC, host="127.0.0.1", port=7001),
        Listener(name="rpc-sm-2", kind=Kind.MUTUAL, channel=Channel.RPC, host="127.0.0.1", port=7002),
        Listener(name="data-sw-1", kind=Kind.MUTUAL, channel=Channel.DATA, host="127.0.0.1", port=7003),
    ]


def test_a_damaged_announcement_of_a_shuffle_worker_is_an_error(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    (home.run / "endpoints").mkdir()
    (home.run / "endpoints" / "shuffle-worker-sw-1.json").write_text('{"name": "sw-1"}')
    with pytest.raises(AuditError):
        declared(home)
