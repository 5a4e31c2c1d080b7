"""The history of a job for the next leader: attempts, exceptions, executors, and the counters of its restart strategy.

Each job has one entry in the HA storage and one pointer; both are replaced as a whole. The size is bounded because each
part is (``runtime.jobmanager.attempt.decisions.history_log``, ``runtime.jobmanager.exceptions``), and by
:data:`MAX_HISTORY_BYTES`. The history is informational: an unreadable one counts as empty, and does not fail the job.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict

import msgspec

from sluice.runtime.ha import EntryDamaged, EntryMissing, HaStorage, PointerStore, StoredEntry
from sluice.runtime.jobmanager.restart_strategies import RestartMemory
from sluice.runtime.jobmanager.views import AttemptView, ExceptionEntry, ExecutorView, ProcessIdentity
from sluice.runtime.messages import Message

_LOG = logging.getLogger(__name__)

HISTORY = "history"
"""The folder of pointers."""
MAX_HISTORY_BYTES = 1 << 20
"""Largest entry; beyond this size the tracebacks of the earliest exceptions are dropped."""


class JobHistory(Message, frozen=True):
    """The history of a job. The last of ``attempts`` is the current one; its ``outcome`` is empty."""

    attempts: tuple[AttemptView, ...] = ()
    exceptions: tuple[ExceptionEntry, ...] = ()
    executors: tuple[ExecutorView, ...] = ()
    restarts: RestartMemory = RestartMemory()
    processes: tuple[ProcessIdentity, ...] = ()
    processes_dropped: int = 0


class HistoryStore:
    """Histories in the HA storage. Only the leader can write: ``pointers`` belong to one term."""

    def __init__(self, pointers: PointerStore, storage: HaStorage) -> None:
        self._pointers = pointers
        self._storage = storage

    async def put(self, job_id: str, history: JobHistory) -> None:
        """Replace the history of a job; durable when this returns."""
        data = encoded(history)
        entry = StoredEntry.of(f"jobs/{job_id}/history-{secrets.token_hex(8)}.json", data)
        await asyncio.to_thread(self._storage.write, entry.name, data)
        present = await self._pointers.get(HISTORY, job_id)
        if present is None:
            await self._pointers.create(HISTORY, job_id, msgspec.json.encode(entry))
            return
        await self._pointers.replace(HISTORY, job_id, msgspec.json.encode(entry), present.version)
        try:
            earlier = msgspec.json.decode(present.value, type=StoredEntry)
        except msgspec.DecodeError:
            return
        await asyncio.to_thread(self._storage.remove, earlier.name)

    async def get(self, job_id: str) -> JobHistory:
        """The history of a job; an empty one when none can be read."""
        try:
            present = await self._pointers.get(HISTORY, job_id)
            if present is None:
                return JobHistory()
            entry = msgspec.json.decode(present.value, type=StoredEntry)
            data = await asyncio.to_thread(self._storage.read, entry.name)
            return msgspec.json.decode(entry.check(data), type=JobHistory)
        except (EntryDamaged, EntryMissing, msgspec.DecodeError, UnicodeDecodeError) as error:
            _LOG.error("the history of job %s cannot be read, and starts empty: %s", job_id, error)
            return JobHistory()


class HistoryKeeper:
    """Writes the latest history of each job. One write per job at a time; updates in the meantime become one write."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store
        self._waiting: dict[str, JobHistory] = {}
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._over: set[str] = set()

    async def keep(self, job_id: str, history: JobHistory) -> None:
        """Write a history. Returns when this or a later one is durable, and at once when the job is over."""
        if job_id in self._over:
            return
        self._waiting[job_id] = history
        async with self._locks[job_id]:
            latest = self._waiting.pop(job_id, None)
            if latest is not None and job_id not in self._over:
                await self._store.put(job_id, latest)

    async def close(self, job_id: str) -> None:
        """Write no more for a job that is over: its history is part of its result."""
        self._over.add(job_id)
        self._waiting.pop(job_id, None)
        async with self._locks[job_id]:
            pass

    def forget(self, job_id: str) -> None:
        """Forget a closed job."""
        self._over.discard(job_id)
        self._locks.pop(job_id, None)


def encoded(history: JobHistory) -> bytes:
    """Encode ``history`` in at most :data:`MAX_HISTORY_BYTES`; the earliest parts are dropped first."""
    data = msgspec.json.encode(history)
    exceptions = list(history.exceptions)
    for index, entry in enumerate(exceptions):
        if len(data) <= MAX_HISTORY_BYTES:
            break
        exceptions[index] = msgspec.structs.replace(entry, traceback="")
        data = msgspec.json.encode(msgspec.structs.replace(history, exceptions=tuple(exceptions)))
    if len(data) > MAX_HISTORY_BYTES:  # possible only with very long names
        data = msgspec.json.encode(
            JobHistory(
                attempts=history.attempts[-1:],
                restarts=history.restarts,
                processes_dropped=history.processes_dropped + len(history.processes),
            )
        )
    return data
