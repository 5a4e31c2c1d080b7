"""The history of ended jobs in the HA storage. Each job is written once, read on request, and removed when it expires.

``history/jobs/<job>/<folder>/`` holds the files of a job. ``history/index/`` holds one index entry for each complete
job. The entry lists the files with their sizes and digests. It is written after them, and removed after them. The name
of an entry contains the digest of its content. Only the list of these names is in memory, and grows with the history.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import zlib
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeVar

import msgspec

from sluice.core import SluiceError
from sluice.runtime.config import HistoryConfig
from sluice.runtime.ha import EntryDamaged, EntryMissing, HaStorage, StoredEntry
from sluice.runtime.jobmanager.errors import JobNotFound, LogNotFound
from sluice.runtime.jobmanager.history.entries import DAY_MS, ArchivedJob, jobs_to_remove, owner_mark
from sluice.runtime.jobmanager.history.event_log import EventLog, ReadEvents, keep_event_log
from sluice.runtime.jobmanager.history.log_blocks import MAX_BLOCK_BYTES, ArchivedLog, LogPacker, LogSource, unpacked
from sluice.runtime.jobmanager.views import JobRecord, JobSummary
from sluice.runtime.messages import LogChunk
from sluice.runtime.node import MAX_CHUNK_BYTES, log_chunk

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T", bound=msgspec.Struct)

INDEX = "history/index"
JOBS = "history/jobs"
COLLECT_SECONDS = 30.0
"""Most time for collecting the logs of one job, in seconds: its cleanup waits for them."""
MAX_RECORD_BYTES = 64 << 20
CACHED_BLOCKS = 2
CACHED_RECORDS = 4


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The index entry of a job: ``record``, ``blocks`` and ``events`` are files; ``logs`` are in the blocks."""

    summary: JobSummary
    record: StoredEntry
    blocks: tuple[StoredEntry, ...] = ()
    logs: tuple[ArchivedLog, ...] = ()
    events: tuple[StoredEntry, ...] = ()
    events_cut: bool = False


class JobArchive:
    """Reads and writes the history. Only the leader uses it.

    Args:
        check: raises ``LeadershipLost`` if another process leads; called before a job is added or removed.
        clock: epoch seconds.
    """

    def __init__(
        self, storage: HaStorage, settings: HistoryConfig, check: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._check = check
        self._clock = clock
        self._jobs: dict[str, ArchivedJob] = {}
        self._records: dict[str, JobRecord] = {}
        self._blocks: dict[str, bytes] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    # --- writing ------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the names of all index entries. A new leader calls this before it answers requests."""
        names = await asyncio.to_thread(self._storage.names, INDEX)
        found = sorted((job for name in names if (job := ArchivedJob.parse(name))), key=lambda job: job.job_id)
        for job_id, jobs in groupby(found, key=lambda job: job.job_id):
            self._jobs[job_id] = await self._complete_one(list(jobs))

    async def _complete_one(self, jobs: list[ArchivedJob]) -> ArchivedJob:
        """Choose the entry whose files exist: a leader that had lost its leadership may have written another one."""
        if len(jobs) == 1:
            return jobs[0]
        folders = await asyncio.to_thread(self._storage.names, f"{JOBS}/{jobs[0].job_id}")
        return max(jobs, key=lambda job: (job.folder in folders, job))

    async def put(self, record: JobRecord, logs: LogSource, events: ReadEvents | None = None) -> None:
        """Add an ended job. If this raises, the job is not in the history. A job that is there already does not change.

        Args:
            events: reads Spark's event log; None when there is none.

        Raises:
            LeadershipLost: another process leads.
            StorageUnavailable: the job cannot be written.
        """
        job_id, ended_at = record.detail.id, record.detail.end_time
        if job_id in self or self._settings.days == 0 or ended_at is None:
            return
        folder = f"{JOBS}/{job_id}/{secrets.token_hex(8)}"
        try:
            manifest = await self._write_files(folder, record, logs, events)
            content = msgspec.json.encode(manifest)
            files = (manifest.record, *manifest.blocks, *manifest.events)
            job = ArchivedJob(
                ended_at=ended_at,
                job_id=job_id,
                owner=owner_mark(record.detail.owner),
                folder=folder.rpartition("/")[2],
                digest=_digest(content),
                size=len(content) + sum(file.size for file in files),
            )
            self._check()
            await asyncio.to_thread(self._storage.write, f"{INDEX}/{job.name}", content)
        except SluiceError:
            await self._remove(folder)
            raise
        self._jobs[job_id] = job
        for name in await asyncio.to_thread(self._storage.names, f"{JOBS}/{job_id}"):
            if name != job.folder:  # left over from an interrupted attempt
                await self._remove(f"{JOBS}/{job_id}/{name}")

    async def _write_files(
        self, folder: str, record: JobRecord, logs: LogSource, events: ReadEvents | None
    ) -> _Manifest:
        packed = await asyncio.to_thread(lambda: zlib.compress(msgspec.json.encode(record)))
        of_record = await self._write(f"{folder}/record.json.z", packed)
        packer = LogPacker(
            lambda block: self._write(f"{folder}/logs-{secrets.token_hex(4)}.z", block), self._settings.max_job_bytes
        )
        try:
            async with asyncio.timeout(COLLECT_SECONDS):
                await packer.pack(logs)
        except TimeoutError:
            _LOG.warning("the logs of job %s are kept incompletely: a TaskManager is slow", record.detail.id)
        taken = await packer.close()
        kept = EventLog()
        if events is not None and self._settings.max_ui_bytes:
            kept = await keep_event_log(
                events,
                lambda block: self._write(f"{folder}/events-{secrets.token_hex(4)}.gz", block),
                self._settings.max_ui_bytes,
                COLLECT_SECONDS,
            )
        return _Manifest(
            summary=record.detail.summary(),
            record=of_record,
            blocks=tuple(packer.blocks),
            logs=taken,
            events=kept.blocks,
            events_cut=kept.cut,
        )

    async def _write(self, name: str, data: bytes) -> StoredEntry:
        await asyncio.to_thread(self._storage.write, name, data)
        return StoredEntry.of(name, data)

    async def _remove(self, name: str) -> None:
        try:
            await asyncio.to_thread(self._storage.remove, name)
        except SluiceError as error:
            _LOG.warning("cannot remove a file of the history: %s", error)

    async def trim(self) -> None:
        """Remove jobs that have expired, or that exceed the limits of the history.

        Raises:
            LeadershipLost: another process leads.
            StorageUnavailable: a job cannot be removed now.
        """
        for job in jobs_to_remove(self._jobs.values(), self._settings, int(self._clock() * 1000)):
            self._check()
            await asyncio.to_thread(self._storage.remove, f"{JOBS}/{job.job_id}")
            await asyncio.to_thread(self._storage.remove, f"{INDEX}/{job.name}")
            self._jobs.pop(job.job_id, None)
            self._records.pop(job.job_id, None)

    # --- reading ------------------------------------------------------------------------------------------

    def page(self, before: tuple[int, str] | None, limit: int) -> tuple[tuple[ArchivedJob, ...], bool]:
        """At most ``limit`` jobs, latest end first, and whether there are more.

        Args:
            before: an end time (epoch milliseconds) and an id; only jobs with a smaller pair of these.
        """
        ordered = sorted(self._jobs.values(), reverse=True)
        wanted = [job for job in ordered if before is None or (job.ended_at, job.job_id) < before]
        return tuple(wanted[:limit]), len(wanted) > limit

    async def summaries(self, jobs: Iterable[ArchivedJob]) -> tuple[JobSummary, ...]:
        """The summaries of these jobs, without those that cannot be read."""
        found = []
        for job in jobs:
            try:
                found.append((await self._manifest(job)).summary)
            except (EntryDamaged, EntryMissing) as error:
                _LOG.error("cannot read job %s from the history: %s", job.job_id, error)
        return tuple(found)

    async def record(self, job_id: str) -> JobRecord:
        """The record of a job at its end; raises ``JobNotFound``."""
        job = self._found(job_id)
        record = self._records.get(job_id)
        if record is None:
            try:
                entry = (await self._manifest(job)).record
                content = unpacked(await self._read(entry), MAX_RECORD_BYTES, entry.name)
                record = await asyncio.to_thread(_decode, entry.name, content, JobRecord)
            except (EntryDamaged, EntryMissing) as error:
                raise _unreadable(job_id, error) from error
            if job_id in self._jobs:  # else it has been removed since
                _remember(self._records, job_id, record, CACHED_RECORDS)
        return record

    async def logs(self, job_id: str) -> tuple[str, ...]:
        """The names of the kept logs of a job; raises ``JobNotFound``."""
        return tuple(log.name for log in (await self._readable(job_id)).logs)

    async def read_log(self, job_id: str, name: str, offset: int, limit: int) -> LogChunk:
        """A chunk of one of :meth:`logs`; raises ``JobNotFound`` or ``LogNotFound``."""
        manifest = await self._readable(job_id)
        log = next((log for log in manifest.logs if log.name == name), None)
        if log is None:
            raise LogNotFound(f"no log {name[:80]!r} of job {job_id} was kept", "see the list of logs")
        limit, data, position = max(1, min(limit, MAX_CHUNK_BYTES)), bytearray(), 0
        try:
            for segment in log.segments:
                first = max(offset + len(data) - position, 0)
                if first < segment.size and len(data) < limit:
                    block = await self._block(manifest.blocks[segment.block])
                    last = min(segment.size, first + limit - len(data))
                    data += block[segment.start + first : segment.start + last]
                position += segment.size
        except (EntryDamaged, EntryMissing, IndexError) as error:
            raise LogNotFound(f"the log {name} of job {job_id} cannot be read", "restore the HA storage") from error
        return log_chunk(bytes(data), offset, log.size)

    def kept_until(self, job_id: str) -> int:
        """When a job expires, in epoch milliseconds; raises ``JobNotFound``."""
        return self._found(job_id).ended_at + int(self._settings.days * DAY_MS)

    async def event_log(self, job_id: str) -> EventLog:
        """The blocks of the event log of a job, none if it has no event log; raises ``JobNotFound``."""
        manifest = await self._readable(job_id)
        return EventLog(manifest.events, cut=manifest.events_cut)

    async def read_events(self, block: StoredEntry) -> bytes:
        """A block of :meth:`event_log`; raises ``EntryDamaged``, ``EntryMissing`` or ``StorageUnavailable``."""
        return await self._read(block)

    def _found(self, job_id: str) -> ArchivedJob:
        try:
            return self._jobs[job_id]
        except KeyError:
            raise JobNotFound(f"there is no job {job_id[:64]!r}", "see the list of jobs") from None

    async def _readable(self, job_id: str) -> _Manifest:
        try:
            return await self._manifest(self._found(job_id))
        except (EntryDamaged, EntryMissing) as error:
            raise _unreadable(job_id, error) from error

    async def _manifest(self, job: ArchivedJob) -> _Manifest:
        name = f"{INDEX}/{job.name}"
        content = await asyncio.to_thread(self._storage.read, name)
        if _digest(content) != job.digest:
            raise EntryDamaged(f"the entry {name} does not match its digest")
        return _decode(name, content, _Manifest)

    async def _read(self, entry: StoredEntry) -> bytes:
        return entry.check(await asyncio.to_thread(self._storage.read, entry.name))

    async def _block(self, entry: StoredEntry) -> bytes:
        block = self._blocks.get(entry.name)
        if block is None:
            data = await self._read(entry)
            block = await asyncio.to_thread(unpacked, data, MAX_BLOCK_BYTES, entry.name)
            _remember(self._blocks, entry.name, block, CACHED_BLOCKS)
        return block


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _decode(name: str, content: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EntryDamaged(f"the entry {name} cannot be read: {error}") from error


def _unreadable(job_id: str, error: SluiceError) -> JobNotFound:
    _LOG.error("cannot read job %s from the history: %s", job_id, error)
    return JobNotFound(f"job {job_id} cannot be read from the history", "restore the HA storage")


_V = TypeVar("_V")


def _remember(cache: dict[str, _V], key: str, value: _V, most: int) -> None:
    """Add a value to ``cache``, which keeps the latest ``most`` values."""
    cache[key] = value
    while len(cache) > most:
        cache.pop(next(iter(cache)))
