"""What the next ShuffleManager has to know: which jobs are live, whose they are, their keys, and who took over what.

Placements are not here: a worker tells what it keeps. Who has taken over from a worker that may be gone by now nobody
else could tell.
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
    """A shuffle of which something was handed over: ``shuffles/<job>-<number>``."""

    partitions: int
    workers: tuple[str, ...]
    successors: dict[str, str]


class ShuffleJobStore:
    """Live jobs as pointers; writes need the leadership that ``pointers`` belong to."""

    def __init__(self, pointers: PointerStore) -> None:
        self._pointers = pointers
        self._noted: dict[str, set[int]] = {}

    async def recover(self) -> list[Job]:
        """All live jobs. One whose pointer is damaged is not live: its data cannot be checked without its key."""
        found: dict[str, Job] = {}
        for job_id in (await self._pointers.names(_FOLDER))[:MAX_POINTERS]:
            try:
                pointer = await self._pointers.get(_FOLDER, job_id)
                if pointer is not None:
                    known = msgspec.json.decode(pointer.value, type=_JobPointer)
                    found[job_id] = Job(job_id, known.owner, known.integrity_key)
            except (EntryDamaged, msgspec.DecodeError, UnicodeDecodeError) as error:
                _LOG.error("the shuffle data of job %s is given up: %s", job_id, error)
                await self._pointers.remove(_FOLDER, job_id)
        for name in (await self._pointers.names(_SHUFFLES))[:MAX_POINTERS]:
            await self._recover_shuffle(name, found)
        return list(found.values())

    async def _recover_shuffle(self, name: str, jobs: dict[str, Job]) -> None:
        """What was handed over of one; of a job that is over it is removed, and a damaged one counts as none."""
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
                _LOG.error("who took over shuffle %s of job %s is not known any more: %s", number, job_id, error)
        await self._pointers.remove(_SHUFFLES, name)

    async def add(self, job: Job) -> None:
        """Before anything of the job is kept."""
        value = msgspec.json.encode(_JobPointer(owner=job.owner, integrity_key=job.integrity_key))
        try:
            await self._pointers.create(_FOLDER, job.job_id, value)
        except PointerExists:  # an answer got lost, or its removal is not done yet
            await self._pointers.remove(_FOLDER, job.job_id)
            await self._pointers.create(_FOLDER, job.job_id, value)

    def has_noted(self, job_id: str, number: int) -> bool:
        """Whether there is a note of a shuffle."""
        return number in self._noted.get(job_id, ())

    async def note(self, job_id: str, number: int, shuffle: Shuffle) -> None:
        """Who has taken over what of a live job's shuffle; nothing is kept of one of which nobody has."""
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
        """A shuffle is over."""
        if self.has_noted(job_id, number):
            await self._forget(job_id, (number,))

    async def _forget(self, job_id: str, numbers: Iterable[int]) -> None:
        for number in tuple(numbers):
            await self._pointers.remove(_SHUFFLES, _name(job_id, number))
            with contextlib.suppress(KeyError):
                self._noted[job_id].discard(number)

    async def remove(self, job_id: str) -> None:
        """After this, workers that return remove its data."""
        await self._pointers.remove(_FOLDER, job_id)
        await self._forget(job_id, self._noted.get(job_id, ()))
        self._noted.pop(job_id, None)


def _name(job_id: str, number: int) -> str:
    return f"{job_id}-{number}"
