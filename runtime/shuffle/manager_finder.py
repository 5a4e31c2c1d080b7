"""Finds the leading ShuffleManager."""

from __future__ import annotations

from sluice.core import Home
from sluice.pki import Role
from sluice.runtime.node import HomeLeaderFinder, RemoteLeaderFinder, read_shuffle_manager
from sluice.runtime.rpc import RpcService
from sluice.runtime.shuffle.config import ShuffleConfig


def shuffle_manager_finder(
    service: RpcService, home: Home, config: ShuffleConfig
) -> RemoteLeaderFinder | HomeLeaderFinder:
    """Return a finder of the leading ShuffleManager. It asks ``shuffle.managers``, or reads the home if empty."""
    addresses = config.addresses()
    if addresses:
        return RemoteLeaderFinder(service, addresses, role=Role.SHUFFLE_MANAGER)
    return HomeLeaderFinder(service, home, read=read_shuffle_manager, role=Role.SHUFFLE_MANAGER)
