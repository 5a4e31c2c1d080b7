"""Writes the completed checkpoints of an attempt to the HA metadata, and restores the last one before it begins."""

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
"""Pause between retries while the HA storage is unavailable."""
LAST_WRITE_SECONDS = 5.0
"""How long the end of an attempt, or of the JobManager, waits for the last checkpoint to be written."""


class CheckpointRecorder:
    """The checkpoints of one job in the HA metadata.

    Of the checkpoints completed while another is being written, only the latest is written: it includes the earlier
    ones.
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
        """The location of the job's checkpoints, as Spark gets it."""
        return self._directory.location(self._job_id)

    async def restore(self, savepoint: str) -> Checkpoint | None:
        """The checkpoint from which the attempt continues: the last one, else that of ``savepoint``, if any.

        Raises:
            CheckpointLost: batches of the checkpoint are missing, and output would be written twice.
            SavepointNotFound: the savepoint does not exist any more.
            StorageUnavailable, CheckpointsUnavailable: the storage cannot be read at the moment.
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
        names = {each.name for each in restored.queries}
        committed = await asyncio.to_thread(self._directory.committed, self._job_id, names)
        missing = missing_batches(restored, committed)
        if missing:
            raise CheckpointLost(missing, f"restore {self.location}, or submit the job again from a savepoint")
        _LOG.info("job %s continues from checkpoint %d", self._job_id, restored.number)
        return restored

    async def take_savepoint(self, savepoint_id: str, description: Savepoint) -> Savepoint:
        """Copy the checkpoint to a savepoint; raises ``SavepointFailed`` or ``CheckpointsUnavailable``."""
        return await asyncio.to_thread(self._savepoints.take, savepoint_id, description)

    def add(self, checkpoint: Checkpoint) -> bool:
        """Queue a checkpoint. True when no write is in progress: then call :meth:`record` off the main thread."""
        self._pending = checkpoint
        return self._idle.is_set()

    async def record(self) -> None:
        """Write queued checkpoints. Retries while the storage is unavailable; raises all other errors of the stores."""
        self._idle.clear()
        try:
            while self._pending is not None:
                try:
                    await self._write()
                except StorageUnavailable as error:
                    _LOG.warning("a checkpoint of job %s cannot be written yet: %s", self._job_id, error)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._idle.set()

    async def flush(self) -> None:
        """Write the queued checkpoint once when the JobManager stops, after the write in progress."""
        with contextlib.suppress(SluiceError, TimeoutError):  # already written, no storage, or another leader
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                await self._write()

    async def _write(self) -> None:
        """Write the pending checkpoint. It stays pending when the storage is unavailable, or this is cancelled."""
        async with self._writing:
            checkpoint, self._pending = self._pending, None
            if checkpoint is None:
                return
            try:
                await self._store.add(self._job_id, checkpoint.number, encode(checkpoint))
            except (StorageUnavailable, asyncio.CancelledError):
                self._pending = self._pending or checkpoint
                raise

    async def wait_for_last_write(self) -> None:
        """Wait for the last checkpoint to be written, for a limited time."""
        try:
            await asyncio.wait_for(self._idle.wait(), LAST_WRITE_SECONDS)
        except TimeoutError:
            _LOG.warning("the last checkpoint of job %s was not written in time", self._job_id)
