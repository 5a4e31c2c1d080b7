"""Registers a TaskManager at the leading JobManager.

While the TaskManager looks for the leader, its drivers and executors keep running. It reports them when it registers:
the leader keeps those of jobs that continue, and frees the other slots (ADR 103). The TaskManager offers the kept slots
to the JobMasters again. If no JobManager is found for the heartbeat timeout, a new leader may have restarted the jobs
elsewhere, so the TaskManager ends its drivers and executors (fencing).
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
    """The part of the TaskExecutor that the link uses."""

    def attach(self, peer: RemotePeer) -> None:
        """Send calls to this JobManager from now on."""
        ...

    async def reset(self) -> None:
        """End all drivers and executors and free all slots."""
        ...

    def offer_held(self) -> None:
        """Offer the held slots to the JobMasters of this JobManager."""
        ...

    def report(self) -> SlotReport:
        """The current state of all slots."""
        ...


@dataclass(frozen=True, slots=True)
class RegisteringTaskManager:
    """A TaskManager as a :class:`sluice.runtime.node.leader_link.Registrant`.


    Attributes:
        executor: the TaskExecutor of this process.
        registration: the registration message; its slot report is filled in at each registration.
        fence_after: seconds without a JobManager after which drivers and executors are ended.
    """

    executor: LinkedTaskExecutor
    registration: TaskManagerRegistration
    fence_after: float

    async def register(self, peer: RemotePeer) -> RegistrationAccepted:
        """Register with a report of all slots, then offer the held slots."""
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
        """Fence: end all drivers and executors. If that takes too long, this process exits, and they die with it."""
        await asyncio.sleep(self.fence_after)
        _LOG.warning("no JobManager for %g s: ending all drivers and executors", self.fence_after)
        await self.executor.reset()
