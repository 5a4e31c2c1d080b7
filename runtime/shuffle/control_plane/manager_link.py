"""How a JobManager that leads reaches the ShuffleManager that leads, and keeps the leases of its jobs.

One session for all jobs; it is made again when it breaks or when the ShuffleManager does not lead any more. Calls that
may wait for that do; all of them can be repeated without harm.
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
"""How long an ended job waits for the ShuffleManager; if it is away for longer, the end of the lease does the same."""
QUERY_SECONDS = 3.0
HINT_SECONDS = 5.0
FIRST_RENEWAL_SECONDS = 1.0
RENEWALS_PER_LEASE = 5
_GONE = (EndpointNotFound, EndpointStopped, FencingTokenMismatch, NotConnected, PeerUnreachable)


class Leader(Protocol):
    """Whoever leads the ShuffleManagers now."""

    async def dial(self) -> RemotePeer:
        """Connect to it."""
        ...


@dataclass(frozen=True, slots=True)
class _Session:
    peer: RemotePeer
    gateway: ShuffleManagerGateway
    job_lease: float


class ShuffleManagerLink:
    """A JobManager's session with the leading ShuffleManager, for all of its jobs.

    Args:
        leader: connects to the ShuffleManager that leads.
        secret: of the cluster, the same for all of its JobManagers.
        replicas: on how many workers each map output is kept.
        allocation_timeout: how long a shuffle may wait for the service, in seconds.
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
            except Exception:  # noqa: BLE001  # leases that nobody renews are the end of the jobs' data
                _LOG.exception("the leases of %d jobs could not be renewed", len(jobs))
                pause = FIRST_RENEWAL_SECONDS
            else:
                session = self._session
                pause = session.job_lease / RENEWALS_PER_LEASE if session is not None else FIRST_RENEWAL_SECONDS

    async def _renew(self, jobs: tuple[str, ...]) -> None:
        for job_id in await self._call(lambda manager: manager.renew_job_leases(jobs), QUERY_SECONDS):
            if job_id in self._known:  # else its first shuffle is being allocated
                self._known.discard(job_id)
                _LOG.error("the shuffle service has given up the data of job %s", job_id)

    async def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            await session.peer.close()

    async def allocate(self, job_id: str, shuffle_number: int, partitions: int) -> ShuffleAllocation:
        """Workers for a shuffle; waits for the service to have enough.

        Raises:
            NoShuffleService: it had not for the whole of the allocation time-out.
            ShuffleQuotaExceeded: the job or the cluster keeps too much already.
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
        """A shuffle is over. What is not released goes with its job."""
        await self._call(lambda manager: manager.release_shuffle(job_id, shuffle_number), RELEASE_SECONDS)

    async def release_before(self, job_id: str, shuffle_number: int) -> None:
        """All shuffles of the job with lower numbers are over."""
        await self._call(lambda manager: manager.release_before(job_id, shuffle_number), RELEASE_SECONDS)

    async def release_job(self, job_id: str) -> None:
        """A job is over: its data goes now, or when its lease is over."""
        self._jobs.discard(job_id)
        self._known.discard(job_id)
        try:
            await self._call(lambda manager: manager.release_job(job_id), RELEASE_SECONDS)
        except (SluiceError, OSError) as error:
            _LOG.warning("the shuffles of job %s go when its lease is over: %s", job_id, error)

    async def locate(self, job_id: str, shuffle_number: int, workers: Collection[str]) -> tuple[OutputLocation, ...]:
        """Where what these workers kept of a shuffle is now."""
        return await self._call(lambda manager: manager.locate(job_id, shuffle_number, tuple(workers)), QUERY_SECONDS)

    async def workers_lost(self, job_id: str, workers: Collection[str]) -> None:
        """A job cannot reach these workers."""
        await self._call(lambda manager: manager.workers_lost(job_id, tuple(workers)), HINT_SECONDS)

    async def drain(self, worker: str, *, wanted: bool = True) -> None:
        """Nothing new for ``worker``, or as ever again; raises ``WorkerUnknown``."""
        await self._call(lambda manager: manager.drain(worker, wanted), QUERY_SECONDS)

    async def overview(self) -> ShuffleOverview:
        """The service as it is now; raises ``NoShuffleService`` when nobody answers."""
        return await self._call(lambda manager: manager.overview(), QUERY_SECONDS)

    async def _call(
        self,
        call: Callable[[ShuffleManagerGateway], Awaitable[_T]],
        patience: float,
        *,
        retried: tuple[type[SluiceError], ...] = (),
    ) -> _T:
        """Call whoever leads, and again while nobody does or the error is of ``retried``, for ``patience`` seconds."""
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
                except _GONE as error:
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
                    f"no ShuffleManager answers ({type(reason).__name__}: {reason})", "is one running?"
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
