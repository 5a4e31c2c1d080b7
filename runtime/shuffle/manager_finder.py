"""Finds the leading ShuffleManager."""

from __future__ import annotations

from sluice.core import Home
from sluice.pki import Role
from sluice.runtime.node import AnnouncedLeader, AskedLeader, read_shuffle_manager
from sluice.runtime.rpc import RpcService
from sluice.runtime.shuffle.config import ShuffleConfig


def shuffle_manager_finder(service: RpcService, home: Home, config: ShuffleConfig) -> AskedLeader | AnnouncedLeader:
    """Return a finder of the leading ShuffleManager. It asks ``shuffle.managers``, or reads the home if empty."""
    addresses = config.addresses()
    if addresses:
        return AskedLeader(service, addresses, role=Role.SHUFFLE_MANAGER)
    return AnnouncedLeader(service, home, read=read_shuffle_manager, role=Role.SHUFFLE_MANAGER)
