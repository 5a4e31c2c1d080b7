"""The latest completed checkpoints of a job, so that the next leader can continue from the last one.

Modelled on Flink's ``CompletedCheckpointStore``. The content of a checkpoint is written to the HA storage first. One
pointer per job lists the valid checkpoints, the earliest first. A checkpoint that leaves the list is then removed;
:meth:`~sluice.runtime.jobmanager.store.job_store.JobStore.clean` removes all checkpoints with the job.
"""

from __future__ import annotations

import asyncio
import secrets

import msgspec

from sluice.runtime.ha import EntryDamaged, EntryMissing, HaError, HaStorage, PointerStore, StoredEntry

KEPT = 3
"""How many checkpoints of a job are kept: the last one, and earlier ones in case the last one is damaged."""
MAX_CHECKPOINT_BYTES = 1 << 20


class _Completed(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    entry: StoredEntry


class _CheckpointsPointer(msgspec.Struct, frozen=True, kw_only=True):
    completed: tuple[_Completed, ...] = ()


class CheckpointStore:
    """Adds and reads completed checkpoints. Only the leader can write: ``pointers`` belong to one term."""

    def __init__(self, pointers: PointerStore, storage: HaStorage) -> None:
        self._pointers = pointers
        self._storage = storage

    async def add(self, job_id: str, number: int, content: bytes) -> None:
        """Record the completed checkpoint ``number``; durable when this returns. Numbers must increase.

        Raises:
            HaError: the content is too large, or the number is not higher than the last one.
        """
        if len(content) > MAX_CHECKPOINT_BYTES:
            raise HaError(f"a checkpoint has {len(content)} bytes", f"at most {MAX_CHECKPOINT_BYTES}")
        present = await self._pointers.get("checkpoints", job_id)
        before = () if present is None else _decode(job_id, present.value).completed
        if before and number <= before[-1].number:
            raise HaError(f"checkpoint {number} of job {job_id} is not after {before[-1].number}", "numbers go upwards")
        name = f"jobs/{job_id}/checkpoint-{number}-{secrets.token_hex(8)}"
        await asyncio.to_thread(self._storage.write, name, content)
        every = (*before, _Completed(number=number, entry=StoredEntry.of(name, content)))
        value = msgspec.json.encode(_CheckpointsPointer(completed=every[-KEPT:]))
        if present is None:
            await self._pointers.create("checkpoints", job_id, value)
        else:
            await self._pointers.replace("checkpoints", job_id, value, present.version)
        for dropped in every[:-KEPT]:
            await asyncio.to_thread(self._storage.remove, dropped.entry.name)

    async def latest(self, job_id: str) -> tuple[int, bytes] | None:
        """The number and content of the last readable checkpoint; None when there is none."""
        present = await self._pointers.get("checkpoints", job_id)
        if present is None:
            return None
        for each in reversed(_decode(job_id, present.value).completed):
            try:
                data = await asyncio.to_thread(self._storage.read, each.entry.name)
                return each.number, each.entry.check(data)
            except (EntryDamaged, EntryMissing):
                continue
        return None


def _decode(job_id: str, data: bytes) -> _CheckpointsPointer:
    try:
        return msgspec.json.decode(data, type=_CheckpointsPointer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EntryDamaged(f"the checkpoints of job {job_id} cannot be read: {error}", "restore the pointer") from error
