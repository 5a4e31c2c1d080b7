"""The connection of a worker process to the leader: it registers, sends heartbeats, and reconnects when it breaks.

TaskManagers keep such a link to the JobManager, shuffle workers to the ShuffleManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from sluice.core import SluiceError, end_tasks
from sluice.pki import SpiffeId
from sluice.runtime.rpc import RemotePeer, RpcError, RpcTimeout

_LOG = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 1.0
RETRY_FACTOR = 1.5


class Leader(Protocol):
    """Finds the current leader (:mod:`sluice.runtime.node.leader_finder`)."""

    async def dial(self) -> RemotePeer:
        """Connect to the leader."""
        ...

    async def superseded(self, peer: RemotePeer) -> bool:
        """Whether a process other than ``peer``, which does not answer, leads."""
        ...


class Accepted(Protocol):
    """The leader's answer to a registration; times are in seconds."""

    @property
    def fencing_token(self) -> bytes:
        """The token that heartbeats carry."""
        ...

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats."""
        ...

    @property
    def heartbeat_timeout(self) -> float:
        """Seconds without an answer after which the leader counts as gone."""
        ...


class Registrant(Protocol):
    """The process that registers."""

    async def register(self, peer: RemotePeer) -> Accepted:
        """Register the process with a leader; after an error the connection is closed and registration tried again."""
        ...

    async def heartbeat(self, peer: RemotePeer, token: bytes) -> None:
        """Send a report to the leader and wait for its answer."""
        ...

    async def disconnected(self) -> None:
        """Runs while there is no leader, and is cancelled when there is one. An error in it ends the link."""
        ...


class LeaderLink:
    """Registers this process with the leader, sends heartbeats, and reconnects until cancelled.

    Args:
        leader: connects to the current leader.
        registrant: this process.
        report_now: set it to send a report before the next interval.
        registered: called with the leader's identity after registration, and with None when the connection is gone.
    """

    def __init__(
        self,
        leader: Leader,
        registrant: Registrant,
        *,
        report_now: asyncio.Event | None = None,
        registered: Callable[[SpiffeId | None], None] = lambda _: None,
    ) -> None:
        self._leader = leader
        self._registrant = registrant
        self._report_now = report_now or asyncio.Event()
        self._registered = registered

    async def run(self) -> NoReturn:
        """Keep the link up until cancelled."""
        while True:
            peer, accepted = await self._establish_or_fail()
            self._registered(peer.identity)
            try:
                await self._send_heartbeats(peer, accepted)
            finally:
                self._registered(None)
                with contextlib.suppress(RpcError, OSError):
                    await peer.close()
            _LOG.warning("the connection to %s is gone", peer.identity)

    async def _establish_or_fail(self) -> tuple[RemotePeer, Accepted]:
        """Register with a leader while :meth:`Registrant.disconnected` runs; raises its errors."""
        disconnected = asyncio.create_task(self._registrant.disconnected())
        establishing = asyncio.create_task(self._establish())
        try:
            await asyncio.wait({disconnected, establishing}, return_when=asyncio.FIRST_COMPLETED)
            if disconnected.done():
                disconnected.result()
            return await establishing
        finally:
            await end_tasks(disconnected, establishing)

    async def _establish(self) -> tuple[RemotePeer, Accepted]:
        delay, logged = FIRST_RETRY_SECONDS, ""
        while True:
            try:
                return await self._register(await self._leader.dial())
            except (SluiceError, OSError) as error:
                if str(error) != logged:
                    logged = str(error)
                    _LOG.info("cannot register yet: %s", error)
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))  # noqa: S311  # spreads load only
            delay = min(delay * RETRY_FACTOR, LONGEST_RETRY_SECONDS)

    async def _register(self, peer: RemotePeer) -> tuple[RemotePeer, Accepted]:
        try:
            accepted = await self._registrant.register(peer)
        except BaseException:
            await peer.close()
            raise
        _LOG.info("registered at %s", peer.identity)
        return peer, accepted

    async def _send_heartbeats(self, peer: RemotePeer, accepted: Accepted) -> None:
        """Send heartbeats until the connection is gone, another process leads or the leader refuses this one."""
        closed = asyncio.ensure_future(peer.wait_closed())
        answered = time.monotonic()
        try:
            while not closed.done():
                self._report_now.clear()
                try:
                    await self._registrant.heartbeat(peer, accepted.fencing_token)
                    answered = time.monotonic()
                except RpcTimeout:
                    if time.monotonic() - answered > accepted.heartbeat_timeout:
                        return
                    if await self._leader.superseded(peer):
                        _LOG.warning("%s does not answer, and another process leads", peer.identity)
                        return
                except SluiceError as error:
                    _LOG.warning("%s refuses our heartbeat: %s", peer.identity, error)
                    return
                await self._pause(closed, accepted.heartbeat_interval)
        finally:
            await end_tasks(closed)

    async def _pause(self, closed: asyncio.Future[None], interval: float) -> None:
        """Wait until the interval is over, ``report_now`` is set, or the connection is gone."""
        wanted = asyncio.ensure_future(self._report_now.wait())
        try:
            pending: set[asyncio.Future[Any]] = {closed, wanted}
            await asyncio.wait(pending, timeout=interval, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(wanted)
