"""The link of a leading JobManager to the leading ShuffleManager. It renews the leases of the JobManager's jobs.

All jobs share one session. The link opens a new one when the connection breaks or the ShuffleManager loses leadership,
and retries calls in the meantime. All calls are idempotent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeVar

from sluice.core import SluiceError
from sluice.runtime.messages import OutputLocation, ShuffleAllocation
from sluice.runtime.rpc import (
    EndpointNotFound,
    EndpointStopped,
    FencingTokenMismatch,
    MailboxFull,
    PeerUnreachable,
    RemotePeer,
    RpcTimeout,
)
from sluice.runtime.shuffle.control_plane.errors import NoShuffleService, NotConnected
from sluice.runtime.shuffle.control_plane.gateways import SHUFFLE_MANAGER, ShuffleManagerGateway
from sluice.runtime.shuffle.control_plane.messages import ShuffleOverview, ShuffleRequest

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

RETRY_SECONDS = 0.25
RELEASE_SECONDS = 10.0
"""How long a release waits for the ShuffleManager. If it fails, the data is removed when the job's lease expires."""
QUERY_SECONDS = 3.0
HINT_SECONDS = 5.0
FIRST_RENEWAL_SECONDS = 1.0
RENEWALS_PER_LEASE = 5
_SESSION_ENDED = (EndpointNotFound, EndpointStopped, FencingTokenMismatch, NotConnected, PeerUnreachable)


class Leader(Protocol):
    """Finds the leading ShuffleManager."""

    async def dial(self) -> RemotePeer:
        """Connect to the ShuffleManager that leads now."""
        ...


@dataclass(frozen=True, slots=True)
class _Session:
    peer: RemotePeer
    gateway: ShuffleManagerGateway
    job_lease: float


class ShuffleManagerLink:
    """A JobManager's session with the leading ShuffleManager, for all of its jobs.

    Args:
        leader: connects to the leading ShuffleManager.
        secret: the cluster's secret, which all of its JobManagers share.
        replicas: how many workers keep each map output.
        allocation_timeout: how long the allocation of a shuffle may wait for the service, in seconds.
    """

    def __init__(self, leader: Leader, secret: bytes, *, replicas: int, allocation_timeout: float) -> None:
        self._leader = leader
        self._secret = secret
        self.replicas = replicas
        self._allocation_timeout = allocation_timeout
        self._session: _Session | None = None
        self._connecting = asyncio.Lock()
        self._jobs: set[str] = set()
        self._known: set[str] = set()

    async def run(self) -> NoReturn:
        """Renew the leases of all jobs until cancelled."""
        pause = FIRST_RENEWAL_SECONDS
        while True:
            await asyncio.sleep(pause)
            jobs = tuple(sorted(self._jobs))
            if not jobs:
                continue
            try:
                await self._renew(jobs)
            except (SluiceError, OSError) as error:
                _LOG.warning("the leases of %d jobs could not be renewed: %s", len(jobs), error)
                pause = FIRST_RENEWAL_SECONDS
            except Exception:  # noqa: BLE001  # the loop must go on: the jobs lose their data if leases are not renewed
                _LOG.exception("the leases of %d jobs could not be renewed", len(jobs))
                pause = FIRST_RENEWAL_SECONDS
            else:
                session = self._session
                pause = session.job_lease / RENEWALS_PER_LEASE if session is not None else FIRST_RENEWAL_SECONDS

    async def _renew(self, jobs: tuple[str, ...]) -> None:
        for job_id in await self._call(lambda manager: manager.renew_job_leases(jobs), QUERY_SECONDS):
            if job_id in self._known:  # otherwise its first shuffle is still being allocated
                self._known.discard(job_id)
                _LOG.error("the shuffle service no longer has the data of job %s", job_id)

    async def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            await session.peer.close()

    async def allocate(self, job_id: str, shuffle_number: int, partitions: int) -> ShuffleAllocation:
        """Allocate workers for a shuffle; waits until the service has enough of them.

        Raises:
            NoShuffleService: the service did not have enough workers within the allocation timeout.
            ShuffleQuotaExceeded: the job or the cluster exceeds its quota.
        """
        request = ShuffleRequest(
            job_id=job_id,
            shuffle_number=shuffle_number,
            partitions=partitions,
            replicas=self.replicas,
        )
        self._jobs.add(job_id)
        allocation = await self._call(
            lambda manager: manager.allocate(request), self._allocation_timeout, retried=(NoShuffleService,)
        )
        self._known.add(job_id)
        return allocation

    def keep(self, job_id: str) -> None:
        """Renew the lease of a job whose shuffles were allocated under an earlier leader."""
        self._jobs.add(job_id)
        self._known.add(job_id)

    async def release_shuffle(self, job_id: str, shuffle_number: int) -> None:
        """Release a shuffle that has ended. If this fails, its data is removed with its job."""
        await self._call(lambda manager: manager.release_shuffle(job_id, shuffle_number), RELEASE_SECONDS)

    async def release_before(self, job_id: str, shuffle_number: int) -> None:
        """Release all shuffles of the job with lower numbers."""
        await self._call(lambda manager: manager.release_before(job_id, shuffle_number), RELEASE_SECONDS)

    async def release_job(self, job_id: str) -> None:
        """Release a job that has ended. If this fails, its data is removed when its lease expires."""
        self._jobs.discard(job_id)
        self._known.discard(job_id)
        try:
            await self._call(lambda manager: manager.release_job(job_id), RELEASE_SECONDS)
        except (SluiceError, OSError) as error:
            _LOG.warning("job %s is not released; its shuffles are removed when its lease expires: %s", job_id, error)

    async def locate(self, job_id: str, shuffle_number: int, workers: Collection[str]) -> tuple[OutputLocation, ...]:
        """Return where the data that these workers kept of a shuffle is now."""
        return await self._call(lambda manager: manager.locate(job_id, shuffle_number, tuple(workers)), QUERY_SECONDS)

    async def workers_lost(self, job_id: str, workers: Collection[str]) -> None:
        """Report that a job cannot reach these workers."""
        await self._call(lambda manager: manager.workers_lost(job_id, tuple(workers)), HINT_SECONDS)

    async def drain(self, worker: str, *, wanted: bool = True) -> None:
        """Drain ``worker``, or end draining; raises ``WorkerUnknown``."""
        await self._call(lambda manager: manager.drain(worker, wanted), QUERY_SECONDS)

    async def overview(self) -> ShuffleOverview:
        """Return the current state of the service; raises ``NoShuffleService`` if no ShuffleManager answers."""
        return await self._call(lambda manager: manager.overview(), QUERY_SECONDS)

    async def _call(
        self,
        call: Callable[[ShuffleManagerGateway], Awaitable[_T]],
        patience: float,
        *,
        retried: tuple[type[SluiceError], ...] = (),
    ) -> _T:
        """Call the leader. Retry for ``patience`` seconds while there is none or it raises one of ``retried``."""
        deadline = time.monotonic() + patience
        while True:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    session = await self._connected()
            except (SluiceError, OSError, TimeoutError) as error:
                reason: Exception = error
            else:
                try:
                    return await call(session.gateway)
                except _SESSION_ENDED as error:
                    await self._drop(session)
                    reason = error
                except SluiceError as error:
                    if not isinstance(error, (RpcTimeout, MailboxFull, *retried)):
                        raise
                    reason = error
            if time.monotonic() + RETRY_SECONDS >= deadline:
                if isinstance(reason, NoShuffleService):
                    raise reason
                raise NoShuffleService(
                    f"no ShuffleManager answers ({type(reason).__name__}: {reason})", "check that one is running"
                ) from reason
            await asyncio.sleep(RETRY_SECONDS)

    async def _connected(self) -> _Session:
        async with self._connecting:
            if self._session is not None and not self._session.peer.closed:
                return self._session
            peer = await self._leader.dial()
            try:
                accepted = await peer.gateway(ShuffleManagerGateway, SHUFFLE_MANAGER).connect_cluster(self._secret)
            except BaseException:
                await peer.close()
                raise
            gateway = peer.gateway(ShuffleManagerGateway, SHUFFLE_MANAGER, token=accepted.fencing_token)
            self._session = _Session(peer, gateway, accepted.job_lease)
            _LOG.info("the shuffle service is managed by %s", peer.identity)
            return self._session

    async def _drop(self, session: _Session) -> None:
        if self._session is session:
            self._session = None
            await session.peer.close()
