"""The jobs that a leader knows, and what may be asked about them."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from sluice.core.errors import SluiceError
from sluice.core.untrusted_files import is_regular_file
from sluice.runtime.blob.store import BlobStore
from sluice.runtime.checkpoint.errors import SavepointFailed
from sluice.runtime.checkpoint.savepoints import Savepoint, new_savepoint_id
from sluice.runtime.ha.leadership import Leadership
from sluice.runtime.jobmanager.attempt.job_master import JobMaster
from sluice.runtime.jobmanager.attempt.local_driver import LOG_FILES, attempt_directory
from sluice.runtime.jobmanager.attempt.services import JobServices
from sluice.runtime.jobmanager.dispatcher.job_feed import JobFeed
from sluice.runtime.jobmanager.dispatcher.job_queue import JobLimits
from sluice.runtime.jobmanager.dispatcher.state_machine import DispatcherStateMachine
from sluice.runtime.jobmanager.errors import JobNotFound, LogNotFound, UiNotFound
from sluice.runtime.jobmanager.exceptions import with_outcomes
from sluice.runtime.jobmanager.gateways import (
    DISPATCHER,
    DispatcherGateway,
    ExecutorLogRequest,
    JobMasterInternalGateway,
    ResourceManagerInternalGateway,
)
from sluice.runtime.jobmanager.store.job_history import HistoryKeeper, HistoryStore, JobHistory
from sluice.runtime.jobmanager.store.job_store import JobStore
from sluice.runtime.jobmanager.views import (
    JobBlob,
    JobDetail,
    JobRecord,
    JobSummary,
)
from sluice.runtime.messages import (
    Evidence,
    LogChunk,
    UiPage,
    UiRequest,
)
from sluice.runtime.node.log_files import read_log
from sluice.runtime.restart_config import RestartConfig
from sluice.runtime.rpc import EndpointNotFound, EndpointStopped, RpcEndpoint

_T = TypeVar("_T")
_EARLIER_LOG = re.compile(r"attempt-([1-9][0-9]{0,5})\.(driver\.[a-z]+)")
_EXECUTOR_LOG = re.compile(r"executor-([1-9][0-9]{0,8})\.(stdout|stderr)")


@dataclass(slots=True)
class RegisteredJob:
    """What is known of a job; ``accepting`` is what makes it durable, None once it is."""

    record: JobRecord
    master: JobMaster | None = None
    history: JobHistory = field(default_factory=JobHistory)
    accepting: asyncio.Task[None] | None = None


class JobRegister(RpcEndpoint):
    """All jobs, in the order in which they came; questions are answered by their JobMasters while they run.

    Args:
        store: where jobs are written down.
        history: where their past is.
        term: the leadership under which it works.
        blobs: whose job folders are removed when a job is over.
        jobs: directory with the working directories and logs of jobs.
        resource_manager: for the logs of executors.
        services: what JobMasters get; ``services.dispatcher`` must be a proxy of this endpoint.
        finished_jobs_kept: how many ended jobs, with their logs, are remembered.
        lease: of drivers, in seconds (see :mod:`sluice.runtime.jobmanager.dispatcher.orphan_cleanup`).
        limits: how many jobs run and wait.
        feed: told of every change of a job.
        blob_quota: bytes that the files of one owner's unfinished jobs may have together; 0: any number.
        restart: what happens to jobs that fail, where they do not say it themselves.
        chance: random numbers from -1 to 1, for delays before restarts.
    """

    def __init__(
        self,
        *,
        store: JobStore,
        history: HistoryStore,
        term: Leadership,
        blobs: BlobStore,
        jobs: Path,
        resource_manager: ResourceManagerInternalGateway,
        services: JobServices,
        finished_jobs_kept: int,
        lease: float,
        restart: RestartConfig,
        limits: JobLimits | None = None,
        feed: JobFeed | None = None,
        blob_quota: int = 0,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = lambda: random.uniform(-1, 1),  # noqa: S311  # spreads load, guards nothing
    ) -> None:
        super().__init__(DISPATCHER, DispatcherGateway)
        self._store = store
        self._histories = history
        self._keeper = HistoryKeeper(history)
        self._term = term
        self._lease = lease
        self._restart = restart
        self._chance = chance
        self._blobs = blobs
        self._directory = jobs
        self._resource_manager = resource_manager
        self._services = services
        self._kept = finished_jobs_kept
        self._clock = clock
        self._machine = DispatcherStateMachine(limits or JobLimits(), kept=finished_jobs_kept, blob_quota=blob_quota)
        self._feed = feed or JobFeed()
        self._jobs: dict[str, RegisteredJob] = {}

    async def jobs(self) -> tuple[JobSummary, ...]:
        """See :class:`DispatcherGateway`."""
        return tuple(self._shown(job).summary() for job in reversed(self._jobs.values()))

    async def blobs(self) -> tuple[JobBlob, ...]:
        """See :class:`DispatcherGateway`."""
        records = [job.record for job in self._jobs.values() if not job.record.detail.state.terminal]
        return tuple(
            JobBlob(
                job_id=record.detail.id,
                owner=record.submission.owner,
                submitted_at=record.detail.start_time,
                name=ref.name,
                sha256=ref.sha256,
                size=ref.size,
            )
            for record in records
            for ref in record.submission.blobs
        )

    async def job(self, job_id: str) -> JobDetail:
        """See :class:`DispatcherGateway`."""
        return self._shown(self._job(job_id))

    async def job_logs(self, job_id: str) -> tuple[str, ...]:
        """See :class:`DispatcherGateway`."""
        detail = self._job(job_id).record.detail
        executors = [each.id for each in detail.executors if each.state != "LAUNCHING"]
        earlier = [each.number for each in detail.attempts if each.number != detail.attempt]
        return (
            *self._driver_logs(job_id, detail.attempt),
            *(f"executor-{each}.{stream}" for each in executors for stream in ("stdout", "stderr")),
            *(f"attempt-{number}.{name}" for number in earlier for name in self._driver_logs(job_id, number)),
        )

    def _driver_logs(self, job_id: str, attempt: int) -> list[str]:
        directory = attempt_directory(self._directory, job_id, attempt)
        return [name for name, file in LOG_FILES.items() if is_regular_file(directory, file)]

    async def read_job_log(self, job_id: str, source: str, offset: int, limit: int) -> LogChunk:
        """See :class:`DispatcherGateway`."""
        detail = self._job(job_id).record.detail
        earlier = _EARLIER_LOG.fullmatch(source)
        attempt, name = (int(earlier[1]), earlier[2]) if earlier else (detail.attempt, source)
        if name in LOG_FILES:
            path = attempt_directory(self._directory, job_id, attempt) / LOG_FILES[name]
            return self.deferred(asyncio.to_thread(read_log, path, offset, limit))
        match = _EXECUTOR_LOG.fullmatch(source)
        executor = next((each for each in detail.executors if match and each.id == int(match[1])), None)
        if match is None or executor is None:
            raise LogNotFound(f"job {job_id} has no log {source[:80]!r}", "see the list of logs")
        request = ExecutorLogRequest(
            taskmanager=executor.taskmanager,
            job_id=job_id,
            executor_id=executor.id,
            stream=match[2],
            offset=offset,
            limit=limit,
        )
        return self.deferred(self._resource_manager.read_executor_log(request))

    async def job_connections(self, job_id: str) -> Evidence:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        master = self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            return job.record.evidence
        return self.deferred(answer_or_record(master.connections(), lambda: job.record.evidence))

    async def job_ui(self, job_id: str, request: UiRequest) -> UiPage:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        master = self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            raise _no_ui(job_id)
        return self.deferred(answer_or_record(master.ui(request), lambda: _raise(_no_ui(job_id))))

    async def job_record(self, job_id: str) -> JobRecord:
        """All that is known of a job now, or was at its end; raises ``JobNotFound``."""
        job, master = self._job(job_id), self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            return _judged(job.record)

        async def ask() -> JobRecord:
            return _judged(await answer_or_record(master.record(), lambda: job.record))

        return self.deferred(ask())

    async def trigger_savepoint(self, job_id: str, stop: bool) -> str:
        """See :class:`DispatcherGateway`."""
        job, master = self._job(job_id), self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            raise _no_savepoint(job)
        savepoint_id = new_savepoint_id(job_id)

        async def ask() -> str:
            await answer_or_record(master.trigger_savepoint(savepoint_id, stop), lambda: _raise(_no_savepoint(job)))
            return savepoint_id

        return self.deferred(ask())

    async def savepoints(self) -> tuple[Savepoint, ...]:
        """See :class:`DispatcherGateway`."""
        return self.deferred(asyncio.to_thread(self._services.places.savepoints.list))

    async def savepoint(self, savepoint_id: str) -> Savepoint:
        """See :class:`DispatcherGateway`."""
        return self.deferred(asyncio.to_thread(self._services.places.savepoints.get, savepoint_id))

    async def dispose_savepoint(self, savepoint_id: str) -> None:
        """See :class:`DispatcherGateway`."""
        used = [
            job.record.detail.id
            for job in self._jobs.values()
            if job.record.submission.savepoint == savepoint_id and not job.record.detail.state.terminal
        ]
        if used and not any(self._jobs[job_id].record.detail.checkpoints for job_id in used):
            raise SavepointFailed(f"job {used[0]} is about to go on from it", "wait until it runs, or cancel it")
        return self.deferred(asyncio.to_thread(self._services.places.savepoints.dispose, savepoint_id))

    def _job(self, job_id: str) -> RegisteredJob:
        try:
            return self._jobs[job_id]
        except KeyError:
            raise JobNotFound(f"there is no job {job_id[:64]!r}", "see the list of jobs") from None

    def _master(self, job_id: str) -> JobMasterInternalGateway | None:
        master = self._job(job_id).master
        if master is None or not master.running:
            return None
        return self.service.local(JobMasterInternalGateway, master.name, token=master.token)

    def _shown(self, job: RegisteredJob) -> JobDetail:
        detail = job.record.detail
        if detail.end_time is not None:
            return detail
        return msgspec.structs.replace(
            detail,
            duration_ms=max(0, self._now_ms() - detail.start_time),
            pending_reason=self._machine.pending_reason(detail.id) or detail.pending_reason,
        )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


async def answer_or_record(question: Awaitable[_T], otherwise: Callable[[], _T]) -> _T:
    """What the JobMaster answers to ``question``; ``otherwise`` when its attempt ended before it did."""
    try:
        return await question
    except (EndpointNotFound, EndpointStopped):
        return otherwise()


def _judged(record: JobRecord) -> JobRecord:
    """``record`` with what became of each exception."""
    exceptions = with_outcomes(record.exceptions, record.detail.attempts, record.detail.state)
    return msgspec.structs.replace(record, exceptions=exceptions)


def _raise(error: SluiceError) -> NoReturn:
    raise error


def _no_ui(job_id: str) -> UiNotFound:
    return UiNotFound(f"job {job_id} does not run", "its UI is there while it runs")


def _no_savepoint(job: RegisteredJob) -> SavepointFailed:
    detail = job.record.detail
    return SavepointFailed(f"job {detail.id} is {detail.state}", "a savepoint is made of a running job")
