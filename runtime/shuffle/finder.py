"""Finding the ShuffleManager that leads."""

from __future__ import annotations

from pki.home import Home
from pki.identity import Role
from runtime.addresses import read_shuffle_manager
from runtime.rpc import RpcService
from runtime.shuffle.config import ShuffleConfig
from runtime.taskmanager.leader_finder import AnnouncedLeader, AskedLeader


def shuffle_manager_finder(service: RpcService, home: Home, config: ShuffleConfig) -> AskedLeader | AnnouncedLeader:
    """How a process finds the ShuffleManager that leads: by ``shuffle.managers``, or in its home."""
    addresses = config.addresses()
    if addresses:
        return AskedLeader(service, addresses, role=Role.SHUFFLE_MANAGER)
    return AnnouncedLeader(service, home, read=read_shuffle_manager, role=Role.SHUFFLE_MANAGER)
