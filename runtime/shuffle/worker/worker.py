"""A shuffle worker: its listener and what it keeps, behind one object for use on an event loop.

The data plane itself runs in threads of its own; what takes long here is done in another thread too.
"""

from __future__ import annotations

import asyncio
import logging

from sluice.pki.tls import TlsIdentity
from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.control_plane import WorkerReport
from sluice.runtime.shuffle.worker.config import WorkerConfig
from sluice.runtime.shuffle.worker.connections import DataServer
from sluice.runtime.shuffle.worker.hand_over import HandOvers
from sluice.runtime.shuffle.worker.storage import ShuffleStore

_LOG = logging.getLogger(__name__)


class ShuffleWorker:
    """One worker process's data plane; several on a host, each with directories of its own, scale over its cores.

    Args:
        config: limits and places.
        identity: of role shuffle-worker; its name is the worker's.
    """

    def __init__(self, config: WorkerConfig, identity: TlsIdentity) -> None:
        self._store = ShuffleStore(config)
        self._server = DataServer(identity, self._store)
        self._hand_overs = HandOvers(identity, self._store)
        self.name = identity.spiffe_id.name

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Recover what is on disk, and listen (port 0: any free port); returns the address bound.

        Raises:
            ShuffleError: the address is in use, or no directory can be used.
        """
        await asyncio.to_thread(self._store.start)
        try:
            return self._server.start(host, port)
        except BaseException:
            await asyncio.to_thread(self._store.stop)
            raise

    async def stop(self) -> None:
        """End all connections; committed maps stay on disk for the next start."""
        await self._hand_overs.close()
        self._store.pool.stop()
        await asyncio.to_thread(self._server.stop)
        await asyncio.to_thread(self._store.stop)

    def allow_job(self, job_id: str, integrity_key: bytes) -> None:
        """Serve a job from now on, also what was recovered of it; again with the same key is harmless.

        Args:
            job_id: 32 lower-case hexadecimal digits.
            integrity_key: 8 bytes.

        Raises:
            ShuffleError: not such, or the job is served with another key.
        """
        self._store.allow_job(job_id, integrity_key)

    async def release_job(self, job_id: str) -> None:
        """End the job's connections and remove all its data; unknown is no error."""
        await asyncio.to_thread(self._store.release_job, job_id)
        self._server.end_sessions(job_id)

    async def release_shuffle(self, job_id: str, shuffle: int) -> None:
        """Remove one shuffle's data; unknown is no error."""
        for job in self._store.jobs():
            if job.job_id == job_id:
                await asyncio.to_thread(job.release_shuffle, shuffle)

    def jobs(self) -> tuple[str, ...]:
        """The jobs that are served, and those that were recovered and are not asked for: allow or release these."""
        return tuple(job.job_id for job in self._store.jobs())

    def kept_shuffles(self, job_id: str) -> tuple[int, ...]:
        """The shuffles of a job that there is data of; none of a job that is not known."""
        return next((job.kept() for job in self._store.jobs() if job.job_id == job_id), ())

    def expect(self, job_id: str, worker: str) -> None:
        """Let ``worker`` hand over what it has of a job that is served here; raises :class:`JobNotAllowed`."""
        self._store.job(job_id).expect(worker)

    def hand_over(self, job_id: str, shuffle: int, to: WorkerAddress) -> int:
        """Give what is kept of a shuffle to another worker; see :meth:`HandOvers.hand_over`."""
        return self._hand_overs.hand_over(job_id, shuffle, to)

    @property
    def draining(self) -> bool:
        """Whether it takes no new maps."""
        return self._store.draining

    def drain(self, wanted: bool) -> None:
        """Take no new maps from now on (those that have begun may end, and readers are served), or take them again."""
        self._store.draining = wanted
        _LOG.info("%s takes %s maps", self.name, "no new" if wanted else "new")

    def report(self) -> WorkerReport:
        """The worker's state now. Asks the file systems, which may take long."""
        store, pool = self._store, self._store.pool
        return WorkerReport(
            memory_used=pool.used_bytes,
            memory_peak=pool.peak_bytes,
            memory_limit=pool.capacity_bytes,
            metadata_used=store.metadata.used + store.connections.used,
            metadata_limit=store.metadata.capacity + store.connections.capacity,
            disks=store.disks.reports(),
            jobs=tuple(job.report() for job in store.jobs()),
            connections=self._server.connections,
            refused_connections=self._server.refused,
            written_bytes=store.written_bytes,
            spilled_bytes=store.spilled_bytes,
            waits=pool.waits,
            waiting_seconds=pool.waited_seconds,
            draining=store.draining,
            policy=store.config.policy.value,
            followed=sum(data.announced.active for job in store.jobs() for data in job.shuffles()),
        )
