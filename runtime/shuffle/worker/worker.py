"""A shuffle worker: its listener and its store behind one object, for use on an event loop.

The data plane runs in its own threads, and so do calls that may block for long.
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
    """The data plane of one worker process. Several processes with their own directories use the cores of a host.

    Args:
        config: the limits and directories.
        identity: an identity of role shuffle-worker. The worker has its name.
    """

    def __init__(self, config: WorkerConfig, identity: TlsIdentity) -> None:
        self._store = ShuffleStore(config)
        self._server = DataServer(identity, self._store)
        self._hand_overs = HandOvers(identity, self._store)
        self.name = identity.spiffe_id.name

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Recover the data on disk, and listen (port 0: any free port); returns the bound address.

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
        """Close all connections. Committed maps stay on disk for the next start."""
        await self._hand_overs.close()
        self._store.pool.stop()
        await asyncio.to_thread(self._server.stop)
        await asyncio.to_thread(self._store.stop)

    def allow_job(self, job_id: str, integrity_key: bytes) -> None:
        """Serve a job from now on, including its recovered data. Repeating the call with the same key is harmless.

        Args:
            job_id: 32 lower-case hexadecimal digits.
            integrity_key: 8 bytes.

        Raises:
            ShuffleError: the id or the key is malformed, or the job is served with another key.
        """
        self._store.allow_job(job_id, integrity_key)

    async def release_job(self, job_id: str) -> None:
        """Close the job's connections and remove all its data. An unknown job is no error."""
        await asyncio.to_thread(self._store.release_job, job_id)
        self._server.end_sessions(job_id)
        self._hand_overs.forget(job_id)

    async def release_shuffle(self, job_id: str, shuffle: int) -> None:
        """Remove the data of one shuffle. An unknown shuffle is no error."""
        for job in self._store.jobs():
            if job.job_id == job_id:
                await asyncio.to_thread(job.release_shuffle, shuffle)
        self._hand_overs.forget(job_id, shuffle)

    def jobs(self) -> tuple[str, ...]:
        """The jobs that are served, and recovered jobs that the caller must allow or release."""
        return tuple(job.job_id for job in self._store.jobs())

    def kept_shuffles(self, job_id: str) -> tuple[int, ...]:
        """The numbers of the job's shuffles that there is data of; empty for an unknown job."""
        return next((job.kept() for job in self._store.jobs() if job.job_id == job_id), ())

    def expect(self, job_id: str, worker: str) -> None:
        """Let ``worker`` hand over its data of a job that is served here; raises :class:`JobNotAllowed`."""
        self._store.job(job_id).expect(worker)

    def hand_over(self, job_id: str, shuffle: int, to: WorkerAddress) -> int:
        """Hand over the data of a shuffle to another worker; see :meth:`HandOvers.hand_over`."""
        return self._hand_overs.hand_over(job_id, shuffle, to)

    @property
    def draining(self) -> bool:
        """Whether the worker accepts no new maps."""
        return self._store.draining

    def drain(self, wanted: bool) -> None:
        """Accept no new maps, or accept them again. A draining worker completes open maps and serves readers."""
        self._store.draining = wanted
        _LOG.info("%s accepts %s maps", self.name, "no new" if wanted else "new")

    def report(self) -> WorkerReport:
        """The current state of the worker. It asks the file systems, which may block for long."""
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
