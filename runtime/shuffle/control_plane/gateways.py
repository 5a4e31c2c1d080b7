"""The typed interfaces of the shuffle service's control plane."""

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
    """Served by the ShuffleManager that leads, under :data:`SHUFFLE_MANAGER`, fenced by its term."""

    # --- workers

    @rpc(allow={Role.SHUFFLE_WORKER}, unfenced=True)
    async def register_worker(self, registration: WorkerRegistration) -> WorkerAccepted:
        """Introduce a worker; its certificate must carry the name it gives."""
        ...

    @rpc(allow={Role.SHUFFLE_WORKER})
    async def heartbeat(self, report: WorkerReport) -> None:
        """I am alive, and this is what I hold; raises ``WorkerUnknown``: register again."""
        ...

    # --- JobManagers

    @rpc(allow={Role.JOBMANAGER}, unfenced=True)
    async def connect_cluster(self, secret: bytes) -> ShuffleSession:
        """Introduce a JobManager, by the secret that all JobManagers of its cluster share.

        Jobs belong to the cluster that first allocated for them; who cannot show its secret cannot touch them.
        """
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=30.0)
    async def allocate(self, request: ShuffleRequest) -> ShuffleAllocation:
        """Workers for a shuffle, all of which know the job by now.

        Raises ``NoShuffleService``, ``ShuffleQuotaExceeded``, ``ForeignJob`` or ``NotConnected``.
        """
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def locate(self, job_id: str, shuffle_number: int, workers: tuple[str, ...]) -> tuple[OutputLocation, ...]:
        """Where what these workers kept of a shuffle is now, the best place of each first; raises ``ForeignJob``."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def release_shuffle(self, job_id: str, shuffle_number: int) -> None:
        """A shuffle is over: its data goes. One that is not known is no error."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def release_before(self, job_id: str, shuffle_number: int) -> None:
        """All shuffles of the job with lower numbers are over: they were of earlier attempts or SparkContexts."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=30.0)
    async def release_job(self, job_id: str) -> None:
        """The job is over: its data goes, and nobody reaches it any more. One that is not known is no error."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def renew_job_leases(self, job_ids: tuple[str, ...]) -> tuple[str, ...]:
        """These jobs still run; answers those of them that the service does not know."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def workers_lost(self, job_id: str, workers: tuple[str, ...]) -> None:
        """The job cannot reach these workers; a hint."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def drain(self, worker: str, wanted: bool) -> None:
        """Give ``worker`` nothing new until told otherwise, or it is started again; raises ``WorkerUnknown``."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def overview(self) -> ShuffleOverview:
        """All workers, and the jobs of the caller's cluster."""
        ...


class ShuffleWorkerGateway(Protocol):
    """Served by each worker under :data:`SHUFFLE_WORKER`, over the stream it opened to the manager."""

    @rpc(allow={Role.SHUFFLE_MANAGER})
    async def allow_job(self, job: LiveJob) -> None:
        """The driver and executors of this job may write and read from now on."""
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
        """This worker may hand over what it has of a job that you know."""
        ...

    @rpc(allow={Role.SHUFFLE_MANAGER})
    async def kept_shuffles(self, job_id: str) -> tuple[int, ...]:
        """The shuffles of a job that you have data of; none of a job that you do not know."""
        ...

    @rpc(allow={Role.SHUFFLE_MANAGER}, timeout=30.0)
    async def hand_over(self, order: HandOver) -> int:
        """Go on handing a shuffle over; answers at once how many maps are left. To be asked again until none is."""
        ...

    @rpc(allow={Role.SHUFFLE_MANAGER})
    async def drain(self, wanted: bool) -> None:
        """Take nothing new, and go on serving what is there; or take part again."""
        ...
