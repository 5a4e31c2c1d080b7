"""The RPC endpoint by which a TaskManager or driver asks any JobManager who leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from sluice.pki import Role
from sluice.runtime.ha.leadership import LeaderInformation
from sluice.runtime.messages import Message
from sluice.runtime.rpc import RpcEndpoint, rpc

LEADER = "leader"


class LeaderAddress(Message, frozen=True):
    """The leader's address, and the name in its certificate."""

    name: str
    host: str
    port: int
    epoch: int


class LeaderGateway(Protocol):
    """Served by every JobManager, whether it leads or not."""

    @rpc(allow={Role.TASKMANAGER, Role.DRIVER, Role.JOBMANAGER, Role.SHUFFLE_MANAGER, Role.SHUFFLE_WORKER})
    async def leader(self) -> LeaderAddress | None:
        """Who leads as far as this JobManager knows."""
        ...


class LeaderEndpoint(RpcEndpoint):
    """Answers who leads, by ``ask``."""

    def __init__(self, ask: Callable[[], Awaitable[LeaderInformation | None]]) -> None:
        super().__init__(LEADER, LeaderGateway)
        self._ask = ask

    async def leader(self) -> LeaderAddress | None:
        """Who leads as far as this JobManager knows."""
        return self.deferred(self._answer())

    async def _answer(self) -> LeaderAddress | None:
        found = await self._ask()
        if found is None:
            return None
        return LeaderAddress(name=found.name, host=found.rpc[0], port=found.rpc[1], epoch=found.epoch)
