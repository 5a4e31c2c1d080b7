"""Adds ended jobs to the history, with their logs and Spark's event log.

What cannot be kept is logged and delays nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from prometheus_client import Counter

from sluice.core import REGISTRY, SluiceError
from sluice.runtime.ha import LeadershipLost
from sluice.runtime.jobmanager.dispatcher.job_logs import JobLogs
from sluice.runtime.jobmanager.dispatcher.registered_job import RegisteredJobs
from sluice.runtime.jobmanager.errors import LogNotFound
from sluice.runtime.jobmanager.history import JobArchive
from sluice.runtime.jobmanager.views import JobDetail
from sluice.runtime.messages import EventLogChunk, LogChunk

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)

LOST = Counter(
    "sluice_history_jobs_lost_total",
    "Ended jobs that could not be put into the history: the HA storage was full or away.",
    registry=REGISTRY,
)
RETURN_SECONDS = 10.0
"""Seconds for TaskManagers to register at a new leader, so that it can read their logs."""
RETRY_SECONDS = 0.5
MAX_AT_ONCE = 8
"""Most jobs whose logs are collected at a time: each needs some MiB of memory."""


class JobArchiver:
    """Adds jobs of the Dispatcher to the history.

    Args:
        monotonic: a monotonic clock, in seconds.
    """

    def __init__(
        self, archive: JobArchive, jobs: RegisteredJobs, logs: JobLogs, monotonic: Callable[[], float]
    ) -> None:
        self._archive = archive
        self._jobs = jobs
        self._logs = logs
        self._monotonic = monotonic
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)

    async def keep(self, job_id: str, *, recovered: bool = False) -> None:
        """Add an ended job to the history, and trim that; raises ``LeadershipLost``.

        Args:
            recovered: whether it ended under an earlier leader: its TaskManagers may not have registered at this one
                yet.
        """
        job = self._jobs.get(job_id)
        if job is None:
            return
        until = self._monotonic() + (RETURN_SECONDS if recovered else 0.0)
        logs = _LogsOf(job.record.detail, self._logs, until, self._monotonic)
        try:
            async with self._turns:
                await self._archive.put(job.record, logs, logs.read_events)
        except LeadershipLost:
            raise
        except SluiceError as error:
            LOST.inc()
            _LOG.error("job %s is not in the history: %s", job_id, error)
        await self.trim()

    async def trim(self) -> None:
        """Remove jobs that are too old or too many; errors are retried with the next job, or in an hour."""
        try:
            await self._archive.trim()
        except LeadershipLost:
            raise
        except SluiceError as error:
            _LOG.warning("the history is not shortened now: %s", error)


class _LogsOf:
    """The logs of one job. Until the time ``until`` a missing TaskManager may still register."""

    def __init__(self, detail: JobDetail, logs: JobLogs, until: float, monotonic: Callable[[], float]) -> None:
        self._detail = detail
        self._logs = logs
        self._until = until
        self._monotonic = monotonic

    async def names(self) -> Sequence[str]:
        """The names of logs: of the latest driver, of executors, of earlier drivers."""
        return await self._logs.names(self._detail)

    async def read(self, name: str, offset: int, limit: int) -> LogChunk:
        """A piece of a log."""
        return await self._patiently(lambda: self._logs.read(self._detail, name, offset, limit))

    async def read_events(self, offset: int) -> EventLogChunk:
        """A piece of Spark's event log."""
        return await self._patiently(lambda: self._logs.read_events(self._detail, offset))

    async def _patiently(self, read: Callable[[], Awaitable[_T]]) -> _T:
        while True:
            try:
                return await read()
            except LogNotFound:
                if self._monotonic() >= self._until:
                    raise
            await asyncio.sleep(RETRY_SECONDS)
