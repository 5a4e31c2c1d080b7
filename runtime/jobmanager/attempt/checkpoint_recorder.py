"""Writes the completed checkpoints of one attempt to the HA metadata, and restores the last one before it begins."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from sluice.core import SluiceError
from sluice.runtime.checkpoint import (
    Checkpoint,
    CheckpointLost,
    CheckpointPlaces,
    Savepoint,
    decode,
    encode,
    missing_batches,
)
from sluice.runtime.ha import EntryDamaged, StorageUnavailable
from sluice.runtime.jobmanager.store import CheckpointStore

_LOG = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Between tries while the HA storage is away."""
LAST_WRITE_SECONDS = 5.0
"""How long the end of an attempt, or of the JobManager, waits for the last checkpoint to be written."""


class CheckpointRecorder:
    """The checkpoints of one job in the HA metadata.

    Checkpoints that are completed while one is being written are written as one, the latest: it has all that the
    earlier ones had.
    """

    def __init__(self, job_id: str, store: CheckpointStore, places: CheckpointPlaces) -> None:
        self._job_id = job_id
        self._store = store
        self._directory = places.checkpoints
        self._savepoints = places.savepoints
        self._pending: Checkpoint | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._writing = asyncio.Lock()

    @property
    def location(self) -> str:
        """What Spark is told."""
        return self._directory.location(self._job_id)

    async def restore(self, savepoint: str) -> Checkpoint | None:
        """The checkpoint that the attempt goes on from: the last one, else that of ``savepoint``, if any.

        Raises:
            CheckpointLost: it is not, and the output would be written twice.
            SavepointNotFound: the savepoint is not there any more.
            StorageUnavailable, CheckpointsUnavailable: nobody can tell at the moment.
        """
        latest = await self._store.latest(self._job_id)
        if latest is not None:
            try:
                restored = decode(latest[1])
            except msgspec.DecodeError as error:
                raise EntryDamaged(f"the checkpoints of job {self._job_id} cannot be read: {error}") from error
        elif savepoint:
            restored = await asyncio.to_thread(self._savepoints.restore, savepoint, self._job_id)
        else:
            return None
        committed = await asyncio.to_thread(self._directory.committed, self._job_id)
        missing = missing_batches(restored, committed)
        if missing:
            raise CheckpointLost(missing, f"restore {self.location}, or submit the job again from a savepoint")
        _LOG.info("job %s goes on from checkpoint %d", self._job_id, restored.number)
        return restored

    async def take_savepoint(self, savepoint_id: str, description: Savepoint) -> Savepoint:
        """Copy the checkpoint; raises ``SavepointFailed`` or ``CheckpointsUnavailable``."""
        return await asyncio.to_thread(self._savepoints.take, savepoint_id, description)

    def add(self, checkpoint: Checkpoint) -> bool:
        """Queue a checkpoint; True: nothing is being written, so call :meth:`record` outside of the main thread."""
        self._pending = checkpoint
        return self._idle.is_set()

    async def record(self) -> None:
        """Write what is to be written; raises what the stores raise, but goes on while the storage is away."""
        self._idle.clear()
        try:
            while self._pending is not None:
                try:
                    await self._write()
                except StorageUnavailable as error:
                    _LOG.warning("a checkpoint of job %s waits: %s", self._job_id, error)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._idle.set()

    async def flush(self) -> None:
        """The JobManager stops: wait for what is being written, and write what is left, once, if it still may."""
        with contextlib.suppress(SluiceError, TimeoutError):  # written already, no storage, or another leader
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                await self._write()

    async def _write(self) -> None:
        """Write what is pending; it stays so when there is no storage, and when this is cancelled."""
        async with self._writing:
            checkpoint, self._pending = self._pending, None
            if checkpoint is None:
                return
            try:
                await self._store.add(self._job_id, checkpoint.number, encode(checkpoint))
            except (StorageUnavailable, asyncio.CancelledError):
                self._pending = self._pending or checkpoint
                raise

    async def settle(self) -> None:
        """Wait for the last checkpoint to be written, but not for ever."""
        try:
            await asyncio.wait_for(self._idle.wait(), LAST_WRITE_SECONDS)
        except TimeoutError:
            _LOG.warning("the last checkpoint of job %s is not written", self._job_id)
