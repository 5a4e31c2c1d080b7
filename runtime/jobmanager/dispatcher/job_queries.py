"""What may be asked about jobs: answered by their JobMasters while they run, from their records otherwise."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from sluice.core import EgressJob
from sluice.runtime.checkpoint import Savepoint, SavepointFailed, Savepoints, new_savepoint_id
from sluice.runtime.jobmanager.dispatcher.registered_job import RegisteredJob, RegisteredJobs
from sluice.runtime.jobmanager.errors import LogNotFound, UiNotFound
from sluice.runtime.jobmanager.exceptions import with_outcomes
from sluice.runtime.jobmanager.gateways import (
    ConnectAddress,
    DriverLogRequest,
    ExecutorLogRequest,
    JobMasterInternalGateway,
    JobOrigin,
    ResourceManagerInternalGateway,
)
from sluice.runtime.jobmanager.views import JobBlob, JobDetail, JobRecord, JobSummary
from sluice.runtime.messages import DRIVER_LOGS, Evidence, LogChunk, UiPage, UiRequest
from sluice.runtime.rpc import EndpointNotFound, EndpointStopped, RpcEndpoint

_T = TypeVar("_T")
_EARLIER_LOG = re.compile(r"attempt-([1-9][0-9]{0,5})\.(driver\.[a-z]+)")
_EXECUTOR_LOG = re.compile(r"executor-([1-9][0-9]{0,8})\.(stdout|stderr)")


class JobQueries:
    """All raise ``JobNotFound`` for a job that is not known.

    Args:
        pending_reason: why a job waits for its turn; empty when it does not.
        resource_manager: reads logs of drivers and executors where they ran.
        savepoints: those that exist; asked for when they are needed.
        clock: epoch seconds.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        jobs: RegisteredJobs,
        *,
        pending_reason: Callable[[str], str],
        resource_manager: ResourceManagerInternalGateway,
        savepoints: Callable[[], Savepoints],
        clock: Callable[[], float],
    ) -> None:
        self._endpoint = endpoint
        self._jobs = jobs
        self._pending_reason = pending_reason
        self._resource_manager = resource_manager
        self._savepoints = savepoints
        self._clock = clock

    def summaries(self) -> tuple[JobSummary, ...]:
        """All jobs, the latest first."""
        return tuple(self._shown(job).summary() for job in reversed(self._jobs.values()))

    def blobs(self) -> tuple[JobBlob, ...]:
        """The files of all unfinished jobs."""
        return tuple(
            JobBlob(
                job_id=record.detail.id,
                owner=record.submission.owner,
                submitted_at=record.detail.start_time,
                name=ref.name,
                sha256=ref.sha256,
                size=ref.size,
            )
            for record in (job.record for job in self._jobs.values() if not job.terminal)
            for ref in record.submission.blobs
        )

    def detail(self, job_id: str) -> JobDetail:
        """One job as it is now."""
        return self._shown(self._jobs[job_id])

    def origin(self, job_id: str) -> JobOrigin:
        """The owner of a job."""
        submission = self._jobs[job_id].record.submission
        return JobOrigin(
            job=EgressJob(
                id=job_id,
                name=submission.name,
                owner=submission.owner,
                roles=submission.owner_roles,
                groups=submission.owner_groups,
            ),
            trace=submission.trace,
        )

    def _shown(self, job: RegisteredJob) -> JobDetail:
        detail = job.record.detail
        if detail.end_time is not None:
            return detail
        return msgspec.structs.replace(
            detail,
            duration_ms=max(0, int(self._clock() * 1000) - detail.start_time),
            pending_reason=self._pending_reason(detail.id) or detail.pending_reason,
        )

    async def logs(self, job_id: str) -> tuple[str, ...]:
        """The names of the job's logs."""
        detail = self._jobs[job_id].record.detail
        executors = [each.id for each in detail.executors if each.state != "LAUNCHING"]
        earlier = [each.number for each in detail.attempts if each.number != detail.attempt]
        latest, *others = await asyncio.gather(
            self._driver_logs(detail, detail.attempt), *(self._driver_logs(detail, number) for number in earlier)
        )
        return (
            *latest,
            *(f"executor-{each}.{stream}" for each in executors for stream in ("stdout", "stderr")),
            *(f"attempt-{number}.{name}" for number, names in zip(earlier, others, strict=True) for name in names),
        )

    async def _driver_logs(self, detail: JobDetail, attempt: int) -> tuple[str, ...]:
        taskmanager = _driver_on(detail, attempt)
        return await self._resource_manager.driver_logs(taskmanager, detail.id, attempt) if taskmanager else ()

    async def read_log(self, job_id: str, source: str, offset: int, limit: int) -> LogChunk:
        """A piece of one of :meth:`logs`; raises ``LogNotFound``."""
        detail = self._jobs[job_id].record.detail
        earlier = _EARLIER_LOG.fullmatch(source)
        attempt, name = (int(earlier[1]), earlier[2]) if earlier else (detail.attempt, source)
        if name in DRIVER_LOGS:
            taskmanager = _driver_on(detail, attempt)
            if not taskmanager:  # it waits for a slot, or never had one: nothing was written yet
                return LogChunk(data="", offset=offset, next_offset=offset, end=True)
            wanted = DriverLogRequest(
                taskmanager=taskmanager, job_id=job_id, attempt=attempt, name=name, offset=offset, limit=limit
            )
            return await self._resource_manager.read_driver_log(wanted)
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
        return await self._resource_manager.read_executor_log(request)

    async def connections(self, job_id: str) -> Evidence:
        """Mutual TLS connections of the job's driver and executors."""
        job, master = self._running(job_id)
        if master is None:
            return job.record.evidence
        return await answer_or_record(master.connections(), lambda: job.record.evidence)

    async def ui(self, job_id: str, request: UiRequest) -> UiPage:
        """A page of Spark's UI; raises ``UiNotFound`` for a job that does not run."""
        _, master = self._running(job_id)
        if master is not None:
            try:
                return await master.ui(request)
            except (EndpointNotFound, EndpointStopped):
                pass
        raise UiNotFound(f"job {job_id} does not run", "its UI is there while it runs")

    async def connect_address(self, job_id: str) -> ConnectAddress:
        """The address of a session's Spark Connect server; port 0 while there is none."""
        _, master = self._running(job_id)
        none = ConnectAddress(host="", port=0)
        return none if master is None else await answer_or_record(master.connect_address(), lambda: none)

    async def record(self, job_id: str) -> JobRecord:
        """All that is known of a job now, or was at its end."""
        job, master = self._running(job_id)
        record = job.record if master is None else await answer_or_record(master.record(), lambda: job.record)
        exceptions = with_outcomes(record.exceptions, record.detail.attempts, record.detail.state)
        return msgspec.structs.replace(record, exceptions=exceptions)

    async def trigger_savepoint(self, job_id: str, *, stop: bool) -> str:
        """Begin a savepoint, with ``stop`` the job ends with it; its id. Raises ``SavepointFailed``."""
        job, master = self._running(job_id)
        if master is not None:
            savepoint_id = new_savepoint_id(job_id)
            try:
                await master.trigger_savepoint(savepoint_id, stop)
            except (EndpointNotFound, EndpointStopped):
                pass
            else:
                return savepoint_id
        raise SavepointFailed(f"job {job_id} is {job.record.detail.state}", "savepoints are taken of running jobs")

    async def savepoints(self) -> tuple[Savepoint, ...]:
        """All savepoints."""
        return await asyncio.to_thread(self._savepoints().list)

    async def savepoint(self, savepoint_id: str) -> Savepoint:
        """One savepoint; raises ``SavepointNotFound``."""
        return await asyncio.to_thread(self._savepoints().get, savepoint_id)

    async def dispose_savepoint(self, savepoint_id: str) -> None:
        """Remove a savepoint; raises ``SavepointFailed`` while a job is about to go on from it."""
        used = [
            job.record.detail
            for job in self._jobs.values()
            if job.record.submission.savepoint == savepoint_id and not job.terminal
        ]
        if used and not any(detail.checkpoints for detail in used):
            raise SavepointFailed(f"job {used[0].id} is about to go on from it", "wait until it runs, or cancel it")
        await asyncio.to_thread(self._savepoints().dispose, savepoint_id)

    def _running(self, job_id: str) -> tuple[RegisteredJob, JobMasterInternalGateway | None]:
        """A job and its JobMaster, None when that does not run."""
        job = self._jobs[job_id]
        return job, None if job.terminal else job.master_gateway(self._endpoint.service)


def _driver_on(detail: JobDetail, attempt: int) -> str:
    """The TaskManager on which the driver of an attempt ran; empty when it never had a slot, or nobody knows."""
    return next((each.taskmanager for each in detail.attempts if each.number == attempt), "")


async def answer_or_record(question: Awaitable[_T], otherwise: Callable[[], _T]) -> _T:
    """What the JobMaster answers to ``question``; ``otherwise`` when its attempt ended before it did."""
    try:
        return await question
    except (EndpointNotFound, EndpointStopped):
        return otherwise()
