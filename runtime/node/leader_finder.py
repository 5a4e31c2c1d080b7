"""Finds the leading JobManager: any JobManager returns its address, and its certificate proves its identity.

TaskManagers and drivers do not access ZooKeeper. They know the addresses of the JobManagers, or the home in which the
leader announces itself. ShuffleManagers are found in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from sluice.core import Home, SluiceError
from sluice.pki import Role
from sluice.runtime.ha import LEADER, LeaderAddress, LeaderGateway
from sluice.runtime.node.addresses import read_jobmanager
from sluice.runtime.rpc import PeerUnreachable, RemotePeer, RpcService

_LOG = logging.getLogger(__name__)

Address = tuple[str, int]


class Announcement(Protocol):
    """The published addresses of a leader."""

    @property
    def name(self) -> str:
        """The name in its certificate."""
        ...

    @property
    def rpc(self) -> Address:
        """The address of its RPC listener."""
        ...


class HomeLeaderFinder:
    """Finds a leader with ``role`` by its announcement in this home, which ``read`` reads."""

    def __init__(
        self,
        service: RpcService,
        home: Home,
        *,
        read: Callable[[Home], Announcement] = read_jobmanager,
        role: Role = Role.JOBMANAGER,
    ) -> None:
        self._service = service
        self._home = home
        self._read = read
        self._role = role

    async def dial(self) -> RemotePeer:
        """Connect to the leader; raises ``AddressUnknown`` when none is announced, or the errors of connecting."""
        address = self._read(self._home)
        return await self._service.connect(*address.rpc, role=self._role, name=address.name)

    async def superseded(self, peer: RemotePeer) -> bool:
        """Whether a process other than ``peer`` is announced."""
        try:
            return self._read(self._home).name != peer.identity.name
        except SluiceError:
            return False


class RemoteLeaderFinder:
    """Finds the leader by asking the processes with ``role`` at ``addresses``.

    Only JobManagers named in ``jobmanagers`` are trusted; empty: any JobManager of the trust domain.
    """

    def __init__(
        self,
        service: RpcService,
        addresses: Sequence[Address],
        *,
        role: Role = Role.JOBMANAGER,
        jobmanagers: Collection[str] = (),
    ) -> None:
        self._service = service
        self._jobmanagers = frozenset(jobmanagers) or None
        self._role = role
        self._addresses = list(addresses)

    async def dial(self) -> RemotePeer:
        """Connect to the leader; raises the last error when no address leads to it."""
        reason: Exception = PeerUnreachable(
            f"no {self._role.value} leads at the moment", "the request is repeated until one leads"
        )
        for address in tuple(self._addresses):
            try:
                found = await self._dial_through(address)
            except (SluiceError, OSError) as error:
                reason = error
                self._ask_last(address)
                continue
            if found is not None:
                return found
        raise reason

    async def superseded(self, peer: RemotePeer) -> bool:
        """Whether one of the processes reports a leader other than ``peer``."""
        for address in tuple(self._addresses):
            try:
                asked = await self._service.connect(*address, role=self._role, jobmanagers=self._jobmanagers)
            except (SluiceError, OSError):
                self._ask_last(address)  # so that the next search does not wait for this address first
                continue
            if asked.identity == peer.identity:
                await asked.close()
                self._ask_last(address)
                continue
            leader = await self._ask(asked)
            await asked.close()
            if leader is not None:
                return leader.name != peer.identity.name
        return False

    async def _dial_through(self, address: Address) -> RemotePeer | None:
        peer = await self._service.connect(*address, role=self._role, jobmanagers=self._jobmanagers)
        try:
            leader = await peer.gateway(LeaderGateway, LEADER).leader()
        except BaseException:
            await peer.close()
            raise
        if leader is not None and leader.name == peer.identity.name:
            return peer
        await peer.close()
        if leader is None:
            return None
        return await self._service.connect(
            leader.host, leader.port, role=self._role, name=leader.name, jobmanagers=self._jobmanagers
        )

    async def _ask(self, peer: RemotePeer) -> LeaderAddress | None:
        try:
            return await peer.gateway(LeaderGateway, LEADER).leader()
        except SluiceError as error:
            _LOG.info("%s does not return the leader's address: %s", peer.identity, error)
            return None

    def _ask_last(self, address: Address) -> None:
        """Move ``address`` to the end of the list."""
        self._addresses.remove(address)
        self._addresses.append(address)


class LeaderDiscovery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to find the leading JobManager.

    Attributes:
        addresses: addresses of JobManagers to ask; empty: the leader is announced in ``home``.
        jobmanagers: names of the JobManagers that are trusted; empty: any of the trust domain.
        home: root directory of the home.
    """

    addresses: tuple[Address, ...] = ()
    jobmanagers: tuple[str, ...] = ()
    home: str = ""

    def finder(self, service: RpcService) -> HomeLeaderFinder | RemoteLeaderFinder:
        """Return a finder that connects with the identity of ``service``."""
        if self.addresses:
            return RemoteLeaderFinder(service, self.addresses, jobmanagers=self.jobmanagers)
        return HomeLeaderFinder(service, Home.at(Path(self.home)))
