"""How a TaskManager registers at the JobManager that leads.

While it looks for the leader, its drivers and executors run on. It names them when it registers: the leader keeps
those of jobs that go on, and has the other slots freed (ADR 103). The TaskManager offers the kept ones again to the
JobMasters. A JobManager that stays away for the heartbeat timeout may have been replaced by one that restarts the jobs
elsewhere: drivers and executors are ended then (fencing).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

import msgspec

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
        """End all drivers and executors and free all slots."""
        ...

    def offer_held(self) -> None:
        """Offer what is held to the JobMasters at this JobManager."""
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
        fence_after: seconds without a JobManager after which drivers and executors are ended.
    """

    executor: LinkedTaskExecutor
    registration: TaskManagerRegistration
    fence_after: float

    async def register(self, peer: RemotePeer) -> RegistrationAccepted:
        """Say what is held and offer all slots."""
        self.executor.attach(peer)
        held = msgspec.structs.replace(self.registration, report=self.executor.report())
        accepted = await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(held)
        self.executor.offer_held()
        return accepted

    async def heartbeat(self, peer: RemotePeer, token: bytes) -> None:
        """Report all slots."""
        gateway = peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER, token=token)
        await gateway.heartbeat(self.executor.report())

    async def disconnected(self) -> None:
        """Fence. Processes that cannot be ended in time end this process, and end with it."""
        await asyncio.sleep(self.fence_after)
        _LOG.warning("no JobManager for %g s: drivers and executors are ended", self.fence_after)
        await self.executor.reset()
