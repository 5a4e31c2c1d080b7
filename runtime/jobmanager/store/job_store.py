"""The durable state of jobs, from which the next leader recovers: submissions, attempts, cancellations, results.

Modelled on Flink's ``JobGraphStore`` and ``JobResultStore``. Large content is written to the storage directory under a
new unique name; only content that a pointer names is valid. At any time a job is in exactly one of these states:

1. No pointer: the storage has nothing of the job.
2. Pointer ``jobs/<id>`` without a submission: the job is being accepted, or its acceptance is being undone. The next
   leader treats the job as not accepted, and removes its content from the storage.
3. Pointer ``jobs/<id>`` to a submission, no result: the job was accepted, and the leader has to run it.
4. *Dirty* result ``results/<id>``: the job is globally terminal and never runs again. The rest of it must be removed.
5. Clean result: only the result of the job is left.

Nothing is removed because its pointer is missing. Content without a pointer had one that somebody has removed, so it is
reported and left in place (ADR 82).
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
"""Most job ids that a report of missing pointers names."""
TOKEN_BYTES = 16
"""Size of the fencing token of an attempt."""
_JOB_FOLDERS = ("attempts", "checkpoints", "history", "jobs")
"""Folders of pointers that are removed when a job is over; ``jobs``, which says that the job exists, comes last."""


class _JobPointer(msgspec.Struct, frozen=True, kw_only=True):
    """The pointer of a job. It has enough to identify the job when its submission cannot be read."""

    submission: StoredEntry | None
    name: str
    owner: str
    accepted_at: int
    cancelled: bool = False


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """The latest attempt of a job.

    Attributes:
        number: from 1.
        epoch: the epoch of the leadership that began it.
        origin: the origin of the home of that leader.
        token: the fencing token of its JobMasters, in hexadecimal; a later leader uses the same one.
        taskmanager: the TaskManager where its driver was about to be launched; empty when it never was.
        running: True until its driver is known to be gone.
    """

    number: int
    epoch: int
    origin: str
    token: str = ""
    taskmanager: str = ""
    running: bool = True

    @property
    def fencing_token(self) -> bytes:
        """The fencing token as bytes, for the wire."""
        return bytes.fromhex(self.token)

    def __repr__(self) -> str:
        return f"<Attempt {self.number} on {self.taskmanager or 'no TaskManager'}>"  # without the token


class _ResultPointer(msgspec.Struct, frozen=True, kw_only=True):
    """The pointer of a result. It has enough to list the job when its record cannot be read."""

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
    """All stored jobs, the earliest first.

    ``damaged`` describes unreadable pointers, and content that no pointer names. Both are left in place.
    """

    accepted: tuple[AcceptedJob, ...]
    ended: tuple[EndedJob, ...]
    damaged: tuple[str, ...] = ()


def _submission_folder(job_id: str) -> str:
    return f"jobs/{job_id}"


def _blob_name(job_id: str, ref: BlobRef) -> str:
    return f"jobs/{job_id}/blobs/{ref.sha256}"


class JobStore:
    """Writes jobs and their results durably. Only the leader can write: ``pointers`` belong to one term."""

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

        After ``OutcomeUnknown`` the job may or may not be accepted. After any other ``LeadershipLost`` it is not
        accepted. After all other errors, call :meth:`reject`. ``blob`` maps the digest of a blob to its file.
        """
        intent = _JobPointer(submission=None, name=submission.name, owner=submission.owner, accepted_at=accepted_at)
        try:
            await self._pointers.create("jobs", job_id, msgspec.json.encode(intent))
        except OutcomeUnknown as error:
            raise LeadershipLost(f"job {job_id} was not accepted: {error.what}", "submit it again") from error
        for ref in submission.blobs:
            await asyncio.to_thread(self._storage.put_file, _blob_name(job_id, ref), blob(ref.sha256))
        entry = await self._write(f"{_submission_folder(job_id)}/submission-{_unique()}.json", submission)
        accepted = msgspec.structs.replace(intent, submission=entry)
        await self._pointers.replace("jobs", job_id, msgspec.json.encode(accepted), 0)

    async def reject(self, job_id: str) -> None:
        """Undo a complete or partial acceptance; durable when this returns. Idempotent."""
        await self._change("jobs", job_id, _JobPointer, lambda job: msgspec.structs.replace(job, submission=None))

    async def withdraw(self, job_id: str) -> None:
        """Reject a job, then remove everything of it. Idempotent."""
        await self.reject(job_id)
        await asyncio.to_thread(self._storage.remove, _submission_folder(job_id))
        await self._pointers.remove("jobs", job_id)

    def blob_chunks(self, job_id: str, ref: BlobRef) -> Iterator[bytes]:
        """The content of a blob of an accepted job; the digest is not checked. Blocking. Raises ``EntryMissing``."""
        return self._storage.chunks(_blob_name(job_id, ref))

    async def cancel(self, job_id: str) -> None:
        """Record that the job is cancelled: no later leader starts it again."""
        await self._change("jobs", job_id, _JobPointer, lambda job: msgspec.structs.replace(job, cancelled=True))

    # --- attempts -----------------------------------------------------------------------------------------

    async def begin_attempt(self, job_id: str) -> Attempt:
        """Record a new attempt, numbered from 1, before its driver starts, so that each attempt has its own number."""
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
        """Record where the driver of the latest attempt is about to be launched: the next leader looks for it there."""
        await self._change(
            "attempts", job_id, Attempt, lambda attempt: msgspec.structs.replace(attempt, taskmanager=taskmanager)
        )

    async def end_attempt(self, job_id: str) -> None:
        """Record that the driver of the latest attempt is gone: the next leader need not wait for it."""
        await self._change("attempts", job_id, Attempt, lambda attempt: msgspec.structs.replace(attempt, running=False))

    # --- results ------------------------------------------------------------------------------------------

    async def put_result(self, record: JobRecord) -> None:
        """Write the result of a globally terminal job; it is dirty until :meth:`clean` is done.

        A second result for the same job changes nothing. Raises what the stores raise; the call can be repeated.
        """
        job_id = record.detail.id
        entry = await self._write(f"results/{job_id}-{_unique()}.json", record)
        pointer = _ResultPointer(summary=record.detail.summary(), record=entry, dirty=True)
        try:
            await self._pointers.create("results", job_id, msgspec.json.encode(pointer))
        except PointerExists:
            _LOG.info("job %s has a result already", job_id)
            await asyncio.to_thread(self._storage.remove, entry.name)

    async def clean(self, job_id: str) -> None:
        """Remove everything of a job except its result, then mark the result clean. Idempotent."""
        await asyncio.to_thread(self._storage.remove, _submission_folder(job_id))
        for folder in _JOB_FOLDERS:
            await self._pointers.remove(folder, job_id)
        await self._change(
            "results", job_id, _ResultPointer, lambda result: msgspec.structs.replace(result, dirty=False)
        )

    async def forget(self, job_id: str) -> None:
        """Remove the clean result of a job. Its pointer goes last, because it says that the rest may be removed."""
        for name in await self._stored("results"):
            if name.startswith(job_id):
                await asyncio.to_thread(self._storage.remove, f"results/{name}")
        await asyncio.to_thread(self._storage.remove, _submission_folder(job_id))
        for folder in (*_JOB_FOLDERS, "results"):
            await self._pointers.remove(folder, job_id)

    # --- recovery -----------------------------------------------------------------------------------------

    async def recover(self) -> Recovered:
        """Read all jobs, and undo incomplete acceptances. A new leader calls this before it accepts jobs.

        A damaged entry affects only its own job. Raises ``StorageUnavailable`` when the storage cannot be read at all.
        """
        damaged: list[str] = []
        ended = {}
        for job_id in (await self._pointers.names("results"))[:MAX_POINTERS]:
            try:
                ended[job_id] = await self._ended(job_id)
            except EntryDamaged as error:
                damaged.append(str(error))
                ended[job_id] = None  # the job has ended, so it must not run again
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
                _LOG.info("removing the rest of job %s, whose acceptance was not completed", job_id)
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
        """Read an accepted job; None when its acceptance was not completed."""
        stored = await self._pointers.get("jobs", job_id)
        if stored is None:
            raise EntryDamaged(f"the pointer jobs/{job_id} was removed while it was read")
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
        """Describe stored jobs and results that no pointer names."""
        jobs = {job_id for job_id in await self._stored("jobs") if job_id not in known}
        for folder in _JOB_FOLDERS:
            jobs |= {job_id for job_id in await self._pointers.names(folder) if job_id not in known}
        results = {name.partition("-")[0] for name in await self._stored("results")} - known
        return [
            f"{len(lost)} {what} without a pointer, which somebody must have removed: {_named(lost)}. They are left in "
            "place: restore the pointers, or remove their files from the storage"
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
        """Read, change and replace a pointer; do nothing when there is none."""
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
        raise PointerConflict(f"the pointer {folder}/{name} keeps changing")


def _unique() -> str:
    return secrets.token_hex(8)


def _named(job_ids: set[str]) -> str:
    named = ", ".join(sorted(job_ids)[:NAMED_AT_MOST])
    return named if len(job_ids) <= NAMED_AT_MOST else f"{named}, …"


def _decode(name: str, data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EntryDamaged(f"the entry {name} cannot be read: {error}", "restore it, or remove it") from error
