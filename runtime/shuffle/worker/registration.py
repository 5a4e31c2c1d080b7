"""Registers a shuffle worker at the leading ShuffleManager, and carries out the manager's calls.

A worker's data does not depend on the manager: without one, the worker continues to serve the jobs that it knows. When
it registers again, it learns which of them have ended in the meantime, and removes their data.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Protocol

from sluice.runtime.messages import WorkerAddress
from sluice.runtime.rpc import RemotePeer, RpcEndpoint
from sluice.runtime.shuffle.control_plane import (
    SHUFFLE_MANAGER,
    SHUFFLE_WORKER,
    HandOver,
    LiveJob,
    ShuffleManagerGateway,
    ShuffleWorkerGateway,
    WorkerAccepted,
    WorkerRegistration,
    WorkerReport,
)
from sluice.runtime.shuffle.data_plane import ShuffleError

_LOG = logging.getLogger(__name__)


class ServedWorker(Protocol):
    """The interface of a worker that the control plane uses. :class:`ShuffleWorker` implements it."""

    @property
    def draining(self) -> bool:
        """Whether the worker accepts nothing new."""
        ...

    def jobs(self) -> tuple[str, ...]:
        """The jobs that are served, and the jobs that were recovered from disk and are not served yet."""
        ...

    def kept_shuffles(self, job_id: str) -> tuple[int, ...]:
        """The numbers of the job's shuffles that the worker has data of."""
        ...

    def allow_job(self, job_id: str, integrity_key: bytes) -> None:
        """Serve the driver and the executors of this job from now on; idempotent.

        Raises:
            ShuffleError: the job is served with another key.
        """
        ...

    async def release_job(self, job_id: str) -> None:
        """Refuse the job from now on and remove its data. An unknown job is no error."""
        ...

    async def release_shuffle(self, job_id: str, shuffle: int) -> None:
        """Remove the data of one shuffle. An unknown shuffle is no error."""
        ...

    def expect(self, job_id: str, worker: str) -> None:
        """Let another worker hand over its data of a job."""
        ...

    def hand_over(self, job_id: str, shuffle: int, to: WorkerAddress) -> int:
        """Continue to hand over a shuffle to another worker; returns how many maps are left."""
        ...

    def drain(self, wanted: bool) -> None:
        """Accept nothing new, or accept new maps again."""
        ...

    def report(self) -> WorkerReport:
        """The current state of the worker. The call may block for long."""
        ...


class WorkerEndpoint(RpcEndpoint):
    """The RPC endpoint that carries out the manager's calls."""

    def __init__(self, worker: ServedWorker) -> None:
        super().__init__(SHUFFLE_WORKER, ShuffleWorkerGateway)
        self._worker = worker
        self._allowed_lately: set[str] = set()

    def jobs_to_ask_about(self) -> tuple[str, ...]:
        """Begin a registration: return all jobs that the worker knows."""
        self._allowed_lately.clear()
        return self._worker.jobs()

    async def allow_job(self, job: LiveJob) -> None:
        """Serve a job from now on; if it has a new key, the data under the old one is removed first."""
        self._allowed_lately.add(job.job_id)
        return self.deferred(self._allow(job))

    async def release_job(self, job_id: str) -> None:
        """Refuse a job from now on, and remove its data."""
        return self.deferred(self._worker.release_job(job_id))

    async def release_shuffle(self, job_id: str, shuffle_number: int) -> None:
        """Remove the data of one shuffle."""
        return self.deferred(self._worker.release_shuffle(job_id, shuffle_number))

    async def expect(self, job_id: str, worker: str) -> None:
        """Let another worker hand over its data of a job; raises ``JobNotAllowed`` for an unknown job."""
        self._worker.expect(job_id, worker)

    async def kept_shuffles(self, job_id: str) -> tuple[int, ...]:
        """Return the numbers of the job's shuffles that this worker has data of."""
        return self._worker.kept_shuffles(job_id)

    async def hand_over(self, order: HandOver) -> int:
        """Continue to hand over a shuffle; returns how many maps are left."""
        return self._worker.hand_over(order.job_id, order.shuffle_number, order.to)

    async def drain(self, wanted: bool) -> None:
        """Accept nothing new, or accept it again."""
        self._worker.drain(wanted)

    async def reconcile(self, asked: tuple[str, ...], live: tuple[LiveJob, ...]) -> None:
        """Serve the ``live`` jobs, and release those jobs that were ``asked`` about and are not live.

        A job that the manager allowed since the registration began is not released.
        """
        for job in live:
            self._allowed_lately.add(job.job_id)
            await self._allow(job)
        for job_id in sorted(set(asked) - self._allowed_lately):
            _LOG.info("job %s has ended: its data is removed", job_id)
            await self._worker.release_job(job_id)

    async def _allow(self, job: LiveJob) -> None:
        try:
            self._worker.allow_job(job.job_id, job.integrity_key)
        except ShuffleError:
            # The job's lease expired and it was added again with a new key: the data under the old key is unreadable.
            await self._worker.release_job(job.job_id)
            self._worker.allow_job(job.job_id, job.integrity_key)


class RegisteringWorker:
    """A shuffle worker as a :class:`sluice.runtime.node.leader_link.Registrant`.

    Args:
        endpoint: the worker's endpoint, started at the RPC service that the connection belongs to.
        worker: the worker that is registered.
        name, address, version: the contents of the registration.
    """

    def __init__(
        self, endpoint: WorkerEndpoint, worker: ServedWorker, *, name: str, address: tuple[str, int], version: str
    ) -> None:
        self._endpoint = endpoint
        self._worker = worker
        self._name = name
        self._address = address
        self._version = version
        self._instance = secrets.token_hex(8)

    async def register(self, peer: RemotePeer) -> WorkerAccepted:
        """Register, and remove the data of known jobs that have ended."""
        asked = self._endpoint.jobs_to_ask_about()
        accepted = await peer.gateway(ShuffleManagerGateway, SHUFFLE_MANAGER).register_worker(
            WorkerRegistration(
                name=self._name,
                host=self._address[0],
                port=self._address[1],
                instance=self._instance,
                jobs=asked,
                version=self._version,
                draining=self._worker.draining,
            )
        )
        await self._endpoint.reconcile(asked, accepted.live_jobs)
        return accepted

    async def heartbeat(self, peer: RemotePeer, token: bytes) -> None:
        """Report memory, disks and jobs."""
        gateway = peer.gateway(ShuffleManagerGateway, SHUFFLE_MANAGER, token=token)
        await gateway.heartbeat(await asyncio.to_thread(self._worker.report))

    async def disconnected(self) -> None:
        """Do nothing: the worker continues to serve its jobs."""
