"""The RPC endpoint of every JobManager that returns the address of the leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from sluice.pki import Role
from sluice.runtime.ha.leadership import LeaderInformation
from sluice.runtime.messages import Message
from sluice.runtime.rpc import RpcEndpoint, rpc

LEADER = "leader"


class LeaderAddress(Message, frozen=True):
    """The leader's address and the process name in its certificate."""

    name: str
    host: str
    port: int
    epoch: int


class LeaderGateway(Protocol):
    """The interface of the endpoint. Every JobManager serves it, whether it leads or not."""

    @rpc(allow={Role.TASKMANAGER, Role.DRIVER, Role.JOBMANAGER, Role.SHUFFLE_MANAGER, Role.SHUFFLE_WORKER})
    async def leader(self) -> LeaderAddress | None:
        """The leader that this JobManager knows, or None."""
        ...


class LeaderEndpoint(RpcEndpoint):
    """Serves :class:`LeaderGateway`; ``ask`` returns the current leader, or None when unknown."""

    def __init__(self, ask: Callable[[], Awaitable[LeaderInformation | None]]) -> None:
        super().__init__(LEADER, LeaderGateway)
        self._ask = ask

    async def leader(self) -> LeaderAddress | None:
        """The leader that this JobManager knows, or None."""
        return self.deferred(self._answer())

    async def _answer(self) -> LeaderAddress | None:
        found = await self._ask()
        if found is None:
            return None
        return LeaderAddress(name=found.name, host=found.rpc[0], port=found.rpc[1], epoch=found.epoch)
