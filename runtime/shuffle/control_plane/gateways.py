"""The typed RPC interfaces of the shuffle service's control plane."""

from __future__ import annotations

from typing import Protocol

from sluice.pki import Role
from sluice.runtime.messages import OutputLocation, ShuffleAllocation
from sluice.runtime.rpc import rpc
from sluice.runtime.shuffle.control_plane.messages import (
    HandOver,
    LiveJob,
    ShuffleOverview,
    ShuffleRequest,
    ShuffleSession,
    WorkerAccepted,
    WorkerRegistration,
    WorkerReport,
)

SHUFFLE_MANAGER = "shufflemanager"
SHUFFLE_WORKER = "shuffleworker"


class ShuffleManagerGateway(Protocol):
    """Served by the leading ShuffleManager under :data:`SHUFFLE_MANAGER`, and fenced by its term."""

    # --- workers

    @rpc(allow={Role.SHUFFLE_WORKER}, unfenced=True)
    async def register_worker(self, registration: WorkerRegistration) -> WorkerAccepted:
        """Register a worker. The name must be that in its certificate."""
        ...

    @rpc(allow={Role.SHUFFLE_WORKER})
    async def heartbeat(self, report: WorkerReport) -> None:
        """Report that the worker is alive and what it holds; raises ``WorkerUnknown`` if it must register again."""
        ...

    # --- JobManagers

    @rpc(allow={Role.JOBMANAGER}, unfenced=True)
    async def connect_cluster(self, secret: bytes) -> ShuffleSession:
        """Identify the cluster of a JobManager by the secret that all JobManagers of the cluster share.

        A job belongs to the cluster that first allocated a shuffle for it. Callers without that cluster's secret cannot
        access the job.
        """
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=30.0)
    async def allocate(self, request: ShuffleRequest) -> ShuffleAllocation:
        """Allocate workers for a shuffle. All of them know the job when the call returns.

        Raises ``NoShuffleService``, ``ShuffleQuotaExceeded``, ``ForeignJob`` or ``NotConnected``.
        """
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def locate(self, job_id: str, shuffle_number: int, workers: tuple[str, ...]) -> tuple[OutputLocation, ...]:
        """Return where the data that these workers kept of a shuffle is now, the best place of each worker first.

        Raises ``ForeignJob``.
        """
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def release_shuffle(self, job_id: str, shuffle_number: int) -> None:
        """Remove the data of a shuffle that has ended. An unknown shuffle is no error."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def release_before(self, job_id: str, shuffle_number: int) -> None:
        """Release all shuffles of the job with lower numbers: they belong to earlier attempts or SparkContexts."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=30.0)
    async def release_job(self, job_id: str) -> None:
        """Remove the data of a job that has ended, and end access to it. An unknown job is no error."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def renew_job_leases(self, job_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Renew the leases of jobs that still run. Returns those that the service does not know."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def workers_lost(self, job_id: str, workers: tuple[str, ...]) -> None:
        """Report that the job cannot reach these workers. The service treats this as a hint."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def drain(self, worker: str, wanted: bool) -> None:
        """Drain ``worker``, or end draining. A restart of the worker ends draining too. Raises ``WorkerUnknown``."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def overview(self) -> ShuffleOverview:
        """Return all workers, and the jobs of the caller's cluster."""
        ...


class ShuffleWorkerGateway(Protocol):
    """Served by each worker under :data:`SHUFFLE_WORKER`, over the connection that it opened to the manager."""

    @rpc(allow={Role.SHUFFLE_MANAGER})
    async def allow_job(self, job: LiveJob) -> None:
        """Let the driver and the executors of this job write and read."""
        ...

    @rpc(allow={Role.SHUFFLE_MANAGER}, timeout=30.0)
    async def release_job(self, job_id: str) -> None:
        """Refuse the job from now on and remove its data."""
        ...

    @rpc(allow={Role.SHUFFLE_MANAGER}, timeout=30.0)
    async def release_shuffle(self, job_id: str, shuffle_number: int) -> None:
        """Remove the data of one shuffle."""
        ...

    @rpc(allow={Role.SHUFFLE_MANAGER})
    async def expect(self, job_id: str, worker: str) -> None:
        """Let the worker named ``worker`` hand over its data of a job that this worker knows."""
        ...

    @rpc(allow={Role.SHUFFLE_MANAGER})
    async def kept_shuffles(self, job_id: str) -> tuple[int, ...]:
        """Return the numbers of the job's shuffles that this worker has data of. Of an unknown job it has none."""
        ...

    @rpc(allow={Role.SHUFFLE_MANAGER}, timeout=30.0)
    async def hand_over(self, order: HandOver) -> int:
        """Continue to hand over a shuffle in the background. Returns at once how many maps are left.

        The manager calls this again until none is left.
        """
        ...

    @rpc(allow={Role.SHUFFLE_MANAGER})
    async def drain(self, wanted: bool) -> None:
        """Accept nothing new but continue to serve the data that is there, or accept new shuffles again."""
        ...
