"""What the next ShuffleManager has to know: which jobs are live, whose they are, and their keys."""

from __future__ import annotations

import logging

import msgspec

from runtime.ha.errors import EntryDamaged, PointerExists
from runtime.ha.pointers import MAX_POINTERS, PointerStore
from runtime.shuffle.manager.jobs import Job

_LOG = logging.getLogger(__name__)
_FOLDER = "jobs"


class _JobPointer(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    integrity_key: bytes


class ShuffleJobStore:
    """Live jobs as pointers; writes need the leadership that ``pointers`` belong to."""

    def __init__(self, pointers: PointerStore) -> None:
        self._pointers = pointers

    async def recover(self) -> list[Job]:
        """All live jobs. One whose pointer is damaged is not live: its data cannot be checked without its key."""
        found = []
        for job_id in (await self._pointers.names(_FOLDER))[:MAX_POINTERS]:
            try:
                pointer = await self._pointers.get(_FOLDER, job_id)
                if pointer is not None:
                    known = msgspec.json.decode(pointer.value, type=_JobPointer)
                    found.append(Job(job_id, known.owner, known.integrity_key))
            except (EntryDamaged, msgspec.DecodeError, UnicodeDecodeError) as error:
                _LOG.error("the shuffle data of job %s is given up: %s", job_id, error)
                await self._pointers.remove(_FOLDER, job_id)
        return found

    async def add(self, job: Job) -> None:
        """Before anything of the job is kept."""
        value = msgspec.json.encode(_JobPointer(owner=job.owner, integrity_key=job.integrity_key))
        try:
            await self._pointers.create(_FOLDER, job.job_id, value)
        except PointerExists:  # an answer got lost, or its removal is not done yet
            await self._pointers.remove(_FOLDER, job.job_id)
            await self._pointers.create(_FOLDER, job.job_id, value)

    async def remove(self, job_id: str) -> None:
        """After this, workers that return remove its data."""
        await self._pointers.remove(_FOLDER, job_id)
