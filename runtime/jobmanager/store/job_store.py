"""What the next leader has to know of jobs: submissions, attempts, cancellations, results.

After Flink's ``JobGraphStore`` and ``JobResultStore``. Bulky content is written to the storage directory, under a name
that was never used before; what counts is a pointer. At every instant a job is in exactly one of these conditions:

1. no pointer: nothing of it is in the storage;
2. pointer ``jobs/<id>`` without a submission: it is being accepted, or its acceptance is being undone. For the next
   leader it was never accepted, and what is in the storage of it goes;
3. pointer ``jobs/<id>`` to a submission, no result: it was accepted, and whoever leads has to run it;
4. *dirty* result ``results/<id>``: it is globally terminal, and never runs again; what is left of it has to go;
5. clean result: nothing of it is left but the result.

Nothing is removed because a pointer is missing. What is in the storage without one had one that somebody has removed,
so it is told, and left where it is (ADR 82).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from sluice.runtime.ha import (
    MAX_POINTERS,
    EntryDamaged,
    EntryMissing,
    HaStorage,
    LeadershipLost,
    OutcomeUnknown,
    PointerConflict,
    PointerExists,
    PointerStore,
    StoredEntry,
)
from sluice.runtime.jobmanager.views import JobRecord, JobSummary
from sluice.runtime.messages import BlobRef, JobSubmission

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T", bound=msgspec.Struct)

CHANGE_TRIES = 5
NAMED_AT_MOST = 5
"""Jobs that are named when pointers to them are missing."""
TOKEN_BYTES = 16
"""Of the fencing token of an attempt."""
_OF_A_JOB = ("attempts", "checkpoints", "history", "jobs")
"""Folders of pointers that go when a job is over, the one that says that it is there last."""


class _JobPointer(msgspec.Struct, frozen=True, kw_only=True):
    """Enough to name the job when its submission cannot be read."""

    submission: StoredEntry | None
    name: str
    owner: str
    accepted_at: int
    cancelled: bool = False


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """The latest attempt of a job.

    Attributes:
        number: from 1.
        epoch: of the leadership that began it.
        origin: of the home of that leader.
        token: the fencing token of its JobMasters, in hexadecimal: under a later leader it is the same.
        taskmanager: where its driver was about to be launched; empty: it never was.
        running: until its driver is known to be gone.
    """

    number: int
    epoch: int
    origin: str
    token: str = ""
    taskmanager: str = ""
    running: bool = True

    @property
    def fencing_token(self) -> bytes:
        """The token as it goes on the wire."""
        return bytes.fromhex(self.token)

    def __repr__(self) -> str:
        return f"<Attempt {self.number} on {self.taskmanager or 'no TaskManager'}>"  # never the token


class _ResultPointer(msgspec.Struct, frozen=True, kw_only=True):
    """Enough to show the job in a list when its record cannot be read."""

    summary: JobSummary
    record: StoredEntry
    dirty: bool


@dataclass(frozen=True, slots=True)
class AcceptedJob:
    """A job that has no result: ``submission`` is None when it cannot be read, and ``damage`` says why."""

    job_id: str
    name: str
    owner: str
    accepted_at: int
    cancelled: bool
    submission: JobSubmission | None
    attempt: Attempt | None
    damage: str = ""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has a result: ``record`` is None when it cannot be read."""

    summary: JobSummary
    record: JobRecord | None
    dirty: bool


@dataclass(frozen=True, slots=True)
class Recovered:
    """Everything there is, the earliest first.

    ``damaged`` tells of pointers that nobody can read, and of what no pointer names; both are left alone.
    """

    accepted: tuple[AcceptedJob, ...]
    ended: tuple[EndedJob, ...]
    damaged: tuple[str, ...] = ()


def _submission_folder(job_id: str) -> str:
    return f"jobs/{job_id}"


def _blob_name(job_id: str, ref: BlobRef) -> str:
    return f"jobs/{job_id}/blobs/{ref.sha256}"


class JobStore:
    """Writes jobs and their results durably. Writes need leadership: ``pointers`` belong to one term."""

    def __init__(self, pointers: PointerStore, storage: HaStorage, *, epoch: int, origin: str) -> None:
        self._pointers = pointers
        self._storage = storage
        self._epoch = epoch
        self.origin = origin

    # --- accepting ----------------------------------------------------------------------------------------

    async def accept(
        self, job_id: str, submission: JobSubmission, accepted_at: int, blob: Callable[[str], Path]
    ) -> None:
        """Make a job durable: it is accepted when this returns.

        When it raises ``OutcomeUnknown``, nobody knows; with any other ``LeadershipLost`` it is not. After all other
        errors :meth:`reject` has to make sure. ``blob`` says where a blob of the job is, by its digest.
        """
        intent = _JobPointer(submission=None, name=submission.name, owner=submission.owner, accepted_at=accepted_at)
        try:
            await self._pointers.create("jobs", job_id, msgspec.json.encode(intent))
        except OutcomeUnknown as error:
            raise LeadershipLost(f"job {job_id} was not accepted: {error.what}", "submit it again") from error
        for ref in submission.blobs:
            await asyncio.to_thread(self._storage.put_file, _blob_name(job_id, ref), blob(ref.sha256))
        entry = await self._write(f"{_submission_folder(job_id)}/submission-{_new()}.json", submission)
        accepted = msgspec.structs.replace(intent, submission=entry)
        await self._pointers.replace("jobs", job_id, msgspec.json.encode(accepted), 0)

    async def reject(self, job_id: str) -> None:
        """Undo an acceptance, complete or not; durably not accepted when this returns. Safe to repeat."""
        await self._change("jobs", job_id, _JobPointer, lambda job: msgspec.structs.replace(job, submission=None))

    async def withdraw(self, job_id: str) -> None:
        """Remove everything of a job that was not accepted, after :meth:`reject`. Safe to repeat."""
        await self.reject(job_id)
        await asyncio.to_thread(self._storage.remove, _submission_folder(job_id))
        await self._pointers.remove("jobs", job_id)

    def blob_chunks(self, job_id: str, ref: BlobRef) -> Iterator[bytes]:
        """The content of a blob of an accepted job, not checked here; raises ``EntryMissing``. Blocks."""
        return self._storage.chunks(_blob_name(job_id, ref))

    async def cancel(self, job_id: str) -> None:
        """Note that the job is to be cancelled: no later leader starts it again."""
        await self._change("jobs", job_id, _JobPointer, lambda job: msgspec.structs.replace(job, cancelled=True))

    # --- attempts -----------------------------------------------------------------------------------------

    async def begin_attempt(self, job_id: str) -> Attempt:
        """A new attempt, numbered from 1; noted before its driver starts, so that no two have the same number."""
        present = await self._pointers.get("attempts", job_id)
        number = 1 if present is None else _decode(f"attempts/{job_id}", present.value, Attempt).number + 1
        token = secrets.token_hex(TOKEN_BYTES)
        attempt = Attempt(number=number, epoch=self._epoch, origin=self.origin, token=token)
        if present is None:
            await self._pointers.create("attempts", job_id, msgspec.json.encode(attempt))
        else:
            await self._pointers.replace("attempts", job_id, msgspec.json.encode(attempt), present.version)
        return attempt

    async def place_attempt(self, job_id: str, taskmanager: str) -> None:
        """Note where the driver of the latest attempt is about to be launched: the next leader looks for it there."""
        await self._change(
            "attempts", job_id, Attempt, lambda attempt: msgspec.structs.replace(attempt, taskmanager=taskmanager)
        )

    async def end_attempt(self, job_id: str) -> None:
        """Note that the driver of the latest attempt is gone: whoever leads next need not wait for it."""
        await self._change("attempts", job_id, Attempt, lambda attempt: msgspec.structs.replace(attempt, running=False))

    # --- results ------------------------------------------------------------------------------------------

    async def put_result(self, record: JobRecord) -> None:
        """The job is globally terminal: its result is dirty until :meth:`clean` is done. A second one changes nothing.

        Raises whatever the stores raise; then it can be tried again.
        """
        job_id = record.detail.id
        entry = await self._write(f"results/{job_id}-{_new()}.json", record)
        pointer = _ResultPointer(summary=record.detail.summary(), record=entry, dirty=True)
        try:
            await self._pointers.create("results", job_id, msgspec.json.encode(pointer))
        except PointerExists:
            _LOG.info("job %s has a result already", job_id)
            await asyncio.to_thread(self._storage.remove, entry.name)

    async def clean(self, job_id: str) -> None:
        """Remove everything of a job but its result, then mark the result clean; safe to repeat after a crash."""
        await asyncio.to_thread(self._storage.remove, _submission_folder(job_id))
        for folder in _OF_A_JOB:
            await self._pointers.remove(folder, job_id)
        await self._change(
            "results", job_id, _ResultPointer, lambda result: msgspec.structs.replace(result, dirty=False)
        )

    async def forget(self, job_id: str) -> None:
        """Remove the clean result of a job, its pointer last: it is what says that the rest may go."""
        for name in await self._stored("results"):
            if name.startswith(job_id):
                await asyncio.to_thread(self._storage.remove, f"results/{name}")
        await asyncio.to_thread(self._storage.remove, _submission_folder(job_id))
        for folder in (*_OF_A_JOB, "results"):
            await self._pointers.remove(folder, job_id)

    # --- recovery -----------------------------------------------------------------------------------------

    async def recover(self) -> Recovered:
        """Read everything, and undo what was not accepted to the end; for a new leader, before it accepts anything.

        One damaged entry harms only its own job; a storage that cannot be read at all is ``StorageUnavailable``.
        """
        damaged: list[str] = []
        ended = {}
        for job_id in (await self._pointers.names("results"))[:MAX_POINTERS]:
            try:
                ended[job_id] = await self._ended(job_id)
            except EntryDamaged as error:
                damaged.append(str(error))
                ended[job_id] = None  # whatever it was, the job has ended: it must not run again
        accepted, unreadable = [], set()
        for job_id in (await self._pointers.names("jobs"))[:MAX_POINTERS]:
            if job_id in ended:
                continue  # its cleanup was interrupted
            try:
                job = await self._accepted(job_id)
            except EntryDamaged as error:
                damaged.append(str(error))
                unreadable.add(job_id)
                continue
            if job is None:
                _LOG.info("removing what is left of %s, which was never accepted", job_id)
                await self.withdraw(job_id)
            else:
                accepted.append(job)
        damaged += await self._without_pointer({job.job_id for job in accepted} | unreadable | set(ended))
        for text in damaged:
            _LOG.error("%s", text)
        return Recovered(
            accepted=tuple(sorted((job for job in accepted if job), key=lambda job: (job.accepted_at, job.job_id))),
            ended=tuple(
                sorted((job for job in ended.values() if job), key=lambda job: (job.summary.start_time, job.summary.id))
            ),
            damaged=tuple(damaged),
        )

    async def _ended(self, job_id: str) -> EndedJob | None:
        stored = await self._pointers.get("results", job_id)
        if stored is None:
            return None
        pointer = _decode(f"results/{job_id}", stored.value, _ResultPointer)
        try:
            record = await self._read(pointer.record, JobRecord)
        except (EntryDamaged, EntryMissing) as error:
            _LOG.error("the result of job %s cannot be read: %s", job_id, error)
            return EndedJob(pointer.summary, None, pointer.dirty)
        return EndedJob(pointer.summary, record, pointer.dirty)

    async def _accepted(self, job_id: str) -> AcceptedJob | None:
        """None: its acceptance did not come to its end."""
        stored = await self._pointers.get("jobs", job_id)
        if stored is None:
            raise EntryDamaged(f"the pointer jobs/{job_id} went away while it was read")
        pointer = _decode(f"jobs/{job_id}", stored.value, _JobPointer)
        if pointer.submission is None:
            return None
        submission, damage = None, ""
        try:
            submission = await self._read(pointer.submission, JobSubmission)
        except (EntryDamaged, EntryMissing) as error:
            damage = str(error)
        present = await self._pointers.get("attempts", job_id)
        attempt = None if present is None else _decode(f"attempts/{job_id}", present.value, Attempt)
        return AcceptedJob(
            job_id=job_id,
            name=pointer.name,
            owner=pointer.owner,
            accepted_at=pointer.accepted_at,
            cancelled=pointer.cancelled,
            submission=submission,
            attempt=attempt,
            damage=damage,
        )

    async def _without_pointer(self, known: set[str]) -> list[str]:
        """Tell of jobs and results that were written, and that no pointer names any more."""
        jobs = {job_id for job_id in await self._stored("jobs") if job_id not in known}
        for folder in _OF_A_JOB:
            jobs |= {job_id for job_id in await self._pointers.names(folder) if job_id not in known}
        results = {name.partition("-")[0] for name in await self._stored("results")} - known
        return [
            f"{len(lost)} {what} without a pointer, which somebody must have removed: {_some(lost)}. Nothing is done "
            "with them: restore the pointers, or remove what the storage has of them"
            for what, lost in (("jobs", jobs), ("results", results))
            if lost
        ]

    async def _stored(self, folder: str) -> list[str]:
        names = await asyncio.to_thread(self._storage.names, folder)
        return [name for name in names if not name.startswith(".")]

    # --- inside -------------------------------------------------------------------------------------------

    async def _write(self, name: str, value: msgspec.Struct) -> StoredEntry:
        data = msgspec.json.encode(value)
        await asyncio.to_thread(self._storage.write, name, data)
        return StoredEntry.of(name, data)

    async def _read(self, entry: StoredEntry, kind: type[_T]) -> _T:
        data = await asyncio.to_thread(self._storage.read, entry.name)
        return _decode(entry.name, entry.check(data), kind)

    async def _change(self, folder: str, name: str, kind: type[_T], change: Callable[[_T], _T]) -> None:
        """Read, change and replace a pointer; no pointer is left alone."""
        for _ in range(CHANGE_TRIES):
            present = await self._pointers.get(folder, name)
            if present is None:
                return
            value = msgspec.json.encode(change(_decode(f"{folder}/{name}", present.value, kind)))
            if value == present.value:
                return
            try:
                await self._pointers.replace(folder, name, value, present.version)
            except PointerConflict:
                continue
            return
        raise PointerConflict(f"the pointer {folder}/{name} changes all the time")


def _new() -> str:
    return secrets.token_hex(8)


def _some(job_ids: set[str]) -> str:
    named = ", ".join(sorted(job_ids)[:NAMED_AT_MOST])
    return named if len(job_ids) <= NAMED_AT_MOST else f"{named}, …"


def _decode(name: str, data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EntryDamaged(f"the entry {name} cannot be read: {error}", "restore it, or remove it") from error
