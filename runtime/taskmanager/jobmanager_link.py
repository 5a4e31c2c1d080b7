"""The TaskManager's connection to the JobManager: registered, heartbeating, made again when it breaks.

Whenever it registers it starts from nothing: the JobManager gives up a TaskManager at the moment its stream closes,
so what still runs from before belongs to nobody. A JobManager that stays away for the heartbeat timeout may have
been replaced by one that restarts the jobs elsewhere: executors are ended then (fencing).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from sluice.core.errors import SluiceError
from sluice.core.tasks import end_tasks
from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.gateways import RESOURCE_MANAGER, ResourceManagerGateway
from sluice.runtime.messages import RegistrationAccepted, SlotReport, TaskManagerRegistration
from sluice.runtime.rpc import RemotePeer, RpcError, RpcTimeout

_LOG = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 1.0
RETRY_FACTOR = 1.5


class Leader(Protocol):
    """Whoever leads now (:mod:`sluice.runtime.node.leader_finder`)."""

    async def dial(self) -> RemotePeer:
        """Connect to it."""
        ...

    async def superseded(self, peer: RemotePeer) -> bool:
        """Whether another one leads than ``peer``, which does not answer."""
        ...


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
class _Session:
    peer: RemotePeer
    accepted: RegistrationAccepted


class JobManagerLink:
    """See the module's documentation.

    Args:
        leader: makes a connection to whoever leads.
        executor: this process's TaskExecutor.
        registration: what it introduces itself with.
        slots_changed: set when the ResourceManager should hear of the slots before the next interval.
        fence_after: seconds without a JobManager after which executors are ended.
        registered: told who took the registration, and None when the connection is gone.
    """

    def __init__(
        self,
        leader: Leader,
        executor: LinkedTaskExecutor,
        registration: TaskManagerRegistration,
        *,
        slots_changed: asyncio.Event,
        fence_after: float,
        registered: Callable[[SpiffeId | None], None] = lambda _: None,
    ) -> None:
        self._leader = leader
        self._executor = executor
        self._registration = registration
        self._fence_after = fence_after
        self._changed = slots_changed
        self._registered = registered

    async def run(self) -> NoReturn:
        """Keep the link up until cancelled."""
        while True:
            session = await self._establish_or_fence()
            self._registered(session.peer.identity)
            try:
                await self._heartbeats(session)
            finally:
                self._registered(None)
                with contextlib.suppress(RpcError, OSError):
                    await session.peer.close()
            _LOG.warning("the connection to the JobManager is gone")

    async def _establish_or_fence(self) -> _Session:
        """A new session; executors that cannot be ended in time end this process, and end with it."""
        fence = asyncio.create_task(self._fence())
        establishing = asyncio.create_task(self._establish())
        try:
            await asyncio.wait({fence, establishing}, return_when=asyncio.FIRST_COMPLETED)
            if fence.done():
                fence.result()
            return await establishing
        finally:
            await end_tasks(fence, establishing)

    async def _fence(self) -> None:
        await asyncio.sleep(self._fence_after)
        _LOG.warning("no JobManager for %g s: executors are ended", self._fence_after)
        await self._executor.reset()

    async def _establish(self) -> _Session:
        delay, said = FIRST_RETRY_SECONDS, ""
        while True:
            try:
                return await self._register(await self._leader.dial())
            except (SluiceError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    _LOG.info("cannot register yet: %s", error)
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))  # noqa: S311  # spreads load only
            delay = min(delay * RETRY_FACTOR, LONGEST_RETRY_SECONDS)

    async def _register(self, peer: RemotePeer) -> _Session:
        try:
            await self._executor.reset()
            self._executor.attach(peer)
            accepted = await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(self._registration)
        except BaseException:
            await peer.close()
            raise
        _LOG.info("registered at %s", peer.identity)
        return _Session(peer, accepted)

    async def _heartbeats(self, session: _Session) -> None:
        """Report until the connection is gone or the JobManager does not want us any more."""
        gateway = session.peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER, token=session.accepted.fencing_token)
        closed = asyncio.ensure_future(session.peer.wait_closed())
        heard = time.monotonic()
        try:
            while not closed.done():
                self._changed.clear()
                try:
                    await gateway.heartbeat(self._executor.report())
                    heard = time.monotonic()
                except RpcTimeout:
                    if time.monotonic() - heard > session.accepted.heartbeat_timeout:
                        return
                    if await self._leader.superseded(session.peer):
                        _LOG.warning("%s does not answer, and another JobManager leads", session.peer.identity)
                        return
                except SluiceError as error:
                    _LOG.warning("the JobManager does not take our heartbeat: %s", error)
                    return
                await self._pause(closed, session.accepted.heartbeat_interval)
        finally:
            await end_tasks(closed)

    async def _pause(self, closed: asyncio.Future[None], interval: float) -> None:
        """Wait for the interval, a change of slots, or the end of the connection."""
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            pending: set[asyncio.Future[Any]] = {closed, changed}
            await asyncio.wait(pending, timeout=interval, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(changed)
