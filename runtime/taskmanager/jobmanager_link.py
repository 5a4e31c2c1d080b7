"""How a TaskManager registers at the JobManager that leads.

Whenever it registers it starts from nothing: the JobManager gives up a TaskManager at the moment its stream closes,
so what still runs from before belongs to nobody. A JobManager that stays away for the heartbeat timeout may have
been replaced by one that restarts the jobs elsewhere: executors are ended then (fencing).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.gateways import RESOURCE_MANAGER, ResourceManagerGateway
from sluice.runtime.messages import RegistrationAccepted, SlotReport, TaskManagerRegistration
from sluice.runtime.rpc import RemotePeer

_LOG = logging.getLogger(__name__)


class LinkedTaskExecutor(Protocol):
    """What the link needs of the TaskExecutor."""

    def attach(self, peer: RemotePeer) -> None:
        """Calls go to this JobManager from now on."""
        ...

    async def reset(self) -> None:
        """End all executors and free all slots."""
        ...

    def report(self) -> SlotReport:
        """All slots as they are now."""
        ...


@dataclass(frozen=True, slots=True)
class RegisteringTaskManager:
    """A TaskManager as a :class:`sluice.runtime.node.leader_link.Registrant`.

    Attributes:
        executor: this process's TaskExecutor.
        registration: what it introduces itself with.
        fence_after: seconds without a JobManager after which executors are ended.
    """

    executor: LinkedTaskExecutor
    registration: TaskManagerRegistration
    fence_after: float

    async def register(self, peer: RemotePeer) -> RegistrationAccepted:
        """Begin from nothing and offer all slots."""
        await self.executor.reset()
        self.executor.attach(peer)
        return await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(self.registration)

    async def heartbeat(self, peer: RemotePeer, token: bytes) -> None:
        """Report all slots."""
        gateway = peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER, token=token)
        await gateway.heartbeat(self.executor.report())

    async def disconnected(self) -> None:
        """Fence. Executors that cannot be ended in time end this process, and end with it."""
        await asyncio.sleep(self.fence_after)
        _LOG.warning("no JobManager for %g s: executors are ended", self.fence_after)
        await self.executor.reset()
