"""The durable state of the ShuffleManager: the live jobs with their owners and keys, and the recorded hand-overs.

The next leader recovers it. Placements are not stored, because each worker reports what it keeps. Hand-overs must be
stored, because the worker that handed over its data may be gone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

import msgspec

from sluice.runtime.ha import MAX_POINTERS, EntryDamaged, PointerExists, PointerStore
from sluice.runtime.shuffle.manager.jobs import Job, Shuffle

_LOG = logging.getLogger(__name__)
_FOLDER = "jobs"
_SHUFFLES = "shuffles"


class _JobPointer(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    integrity_key: bytes


class _ShufflePointer(msgspec.Struct, frozen=True, kw_only=True):
    """A shuffle with a hand-over, stored as ``shuffles/<job>-<number>``."""

    partitions: int
    workers: tuple[str, ...]
    successors: dict[str, str]


class ShuffleJobStore:
    """Stores live jobs as pointers. Writes require the leadership that ``pointers`` belongs to."""

    def __init__(self, pointers: PointerStore) -> None:
        self._pointers = pointers
        self._noted: dict[str, set[int]] = {}

    async def recover(self) -> list[Job]:
        """Return all live jobs. A job with a damaged pointer is removed: its data cannot be checked without its key."""
        found: dict[str, Job] = {}
        for job_id in (await self._pointers.names(_FOLDER))[:MAX_POINTERS]:
            try:
                pointer = await self._pointers.get(_FOLDER, job_id)
                if pointer is not None:
                    known = msgspec.json.decode(pointer.value, type=_JobPointer)
                    found[job_id] = Job(job_id, known.owner, known.integrity_key)
            except (EntryDamaged, msgspec.DecodeError, UnicodeDecodeError) as error:
                _LOG.error("the record of job %s is damaged, its shuffle data is given up: %s", job_id, error)
                await self._pointers.remove(_FOLDER, job_id)
        for name in (await self._pointers.names(_SHUFFLES))[:MAX_POINTERS]:
            await self._recover_shuffle(name, found)
        return list(found.values())

    async def _recover_shuffle(self, name: str, jobs: dict[str, Job]) -> None:
        """Recover the hand-overs of one shuffle. The record is removed if it is damaged or its job is not live."""
        job_id, _, number = name.rpartition("-")
        job = jobs.get(job_id)
        if job is not None and number.isdecimal():
            try:
                pointer = await self._pointers.get(_SHUFFLES, name)
                if pointer is not None:
                    known = msgspec.json.decode(pointer.value, type=_ShufflePointer)
                    job.shuffles[int(number)] = Shuffle(known.partitions, known.workers, dict(known.successors))
                    self._noted.setdefault(job_id, set()).add(int(number))
                    return
            except (EntryDamaged, msgspec.DecodeError, UnicodeDecodeError) as error:
                _LOG.error("the hand-overs of shuffle %s of job %s are lost: %s", number, job_id, error)
        await self._pointers.remove(_SHUFFLES, name)

    async def add(self, job: Job) -> None:
        """Store a job. Call this before workers keep any of its data."""
        value = msgspec.json.encode(_JobPointer(owner=job.owner, integrity_key=job.integrity_key))
        try:
            await self._pointers.create(_FOLDER, job.job_id, value)
        except PointerExists:  # an earlier answer was lost, or an earlier removal has not finished
            await self._pointers.remove(_FOLDER, job.job_id)
            await self._pointers.create(_FOLDER, job.job_id, value)

    def has_noted(self, job_id: str, number: int) -> bool:
        """Whether hand-overs of a shuffle are stored."""
        return number in self._noted.get(job_id, ())

    async def note(self, job_id: str, number: int, shuffle: Shuffle) -> None:
        """Store the hand-overs of a live job's shuffle; the record is removed if there are none."""
        self._noted.setdefault(job_id, set()).add(number)
        name = _name(job_id, number)
        if not shuffle.successors:
            await self._forget(job_id, (number,))
            return
        known = _ShufflePointer(partitions=shuffle.partitions, workers=shuffle.workers, successors=shuffle.successors)
        value = msgspec.json.encode(known)
        present = await self._pointers.get(_SHUFFLES, name)
        if present is None:
            await self._pointers.create(_SHUFFLES, name, value)
        else:
            await self._pointers.replace(_SHUFFLES, name, value, present.version)

    async def forget(self, job_id: str, number: int) -> None:
        """Remove the hand-overs of a shuffle that has ended."""
        if self.has_noted(job_id, number):
            await self._forget(job_id, (number,))

    async def _forget(self, job_id: str, numbers: Iterable[int]) -> None:
        for number in tuple(numbers):
            await self._pointers.remove(_SHUFFLES, _name(job_id, number))
            with contextlib.suppress(KeyError):
                self._noted[job_id].discard(number)

    async def remove(self, job_id: str) -> None:
        """Remove a job. Workers that register later then remove its data."""
        await self._pointers.remove(_FOLDER, job_id)
        await self._forget(job_id, self._noted.get(job_id, ()))
        self._noted.pop(job_id, None)


def _name(job_id: str, number: int) -> str:
    return f"{job_id}-{number}"
