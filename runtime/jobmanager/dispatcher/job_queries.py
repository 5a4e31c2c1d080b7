"""Queries about jobs: their JobMasters answer while they run; else their records do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from sluice.core import EgressJob, SluiceError
from sluice.runtime.checkpoint import Savepoint, SavepointFailed, Savepoints, new_savepoint_id
from sluice.runtime.jobmanager.dispatcher.ended_job_uis import EndedJobUis
from sluice.runtime.jobmanager.dispatcher.job_logs import JobLogs
from sluice.runtime.jobmanager.dispatcher.registered_job import RegisteredJob, RegisteredJobs
from sluice.runtime.jobmanager.errors import JobNotFound, LogNotFound, UiNotFound
from sluice.runtime.jobmanager.exceptions import with_outcomes
from sluice.runtime.jobmanager.gateways import ConnectAddress, HistoryPage, JobMasterInternalGateway, JobOrigin
from sluice.runtime.jobmanager.history import JobArchive
from sluice.runtime.jobmanager.views import JobBlob, JobDetail, JobRecord, JobSummary, SparkUiState, SparkUiView
from sluice.runtime.messages import Evidence, LogChunk, UiPage, UiRequest
from sluice.runtime.rpc import EndpointNotFound, EndpointStopped, RpcEndpoint

_T = TypeVar("_T")


class JobQueries:
    """All raise ``JobNotFound`` for a job that is not known.

    Args:
        pending_reason: why a job waits for its turn; empty when it does not.
        logs: reads logs of drivers and executors where they ran.
        ended_uis: shows Spark's UI of archived jobs.
        archive: has the jobs that the Dispatcher has forgotten.
        savepoints: makes the list of savepoints when needed.
        clock: epoch seconds.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        jobs: RegisteredJobs,
        *,
        pending_reason: Callable[[str], str],
        logs: JobLogs,
        archive: JobArchive,
        ended_uis: EndedJobUis,
        savepoints: Callable[[], Savepoints],
        clock: Callable[[], float],
    ) -> None:
        self._endpoint = endpoint
        self._jobs = jobs
        self._pending_reason = pending_reason
        self._logs = logs
        self._archive = archive
        self._ended_uis = ended_uis
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

    async def archived(self, job_id: str) -> JobDetail:
        """A job of the history, as it was at its end."""
        return (await self._archive.record(job_id)).detail

    async def history(self, before: tuple[int, str] | None, limit: int) -> HistoryPage:
        """Jobs of the history, those that ended last first."""
        jobs, more = self._archive.page(before, limit)
        following = (jobs[-1].ended_at, jobs[-1].job_id) if more else None
        return HistoryPage(jobs=await self._archive.summaries(jobs), following=following)

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
        job = self._jobs.get(job_id)
        return await self._archive.logs(job_id) if job is None else await self._logs.names(job.record.detail)

    async def read_log(self, job_id: str, source: str, offset: int, limit: int) -> LogChunk:
        """A piece of one of :meth:`logs`; raises ``LogNotFound``."""
        job = self._jobs.get(job_id)
        if job is None:
            return await self._archive.read_log(job_id, source, offset, limit)
        try:
            chunk = await self._logs.read(job.record.detail, source, offset, limit)
        except LogNotFound as lost:
            try:
                return await self._archive.read_log(job_id, source, offset, limit)
            except (JobNotFound, LogNotFound):
                raise lost from None
        if chunk.data or not job.terminal:
            return chunk
        try:  # a TaskManager of the same name may be a new one, without these logs
            return await self._archive.read_log(job_id, source, offset, limit)
        except (JobNotFound, LogNotFound):
            return chunk

    async def connections(self, job_id: str) -> Evidence:
        """Mutual TLS connections of the job's driver and executors."""
        if job_id not in self._jobs:
            return (await self._archive.record(job_id)).evidence
        job, master = self._running(job_id)
        if master is None:
            return job.record.evidence
        return await answer_or_record(master.connections(), lambda: job.record.evidence)

    async def ui(self, job_id: str, request: UiRequest) -> UiPage:
        """A page of Spark's UI; raises ``UiNotFound`` or ``UiNotReady``."""
        if job_id in self._archive:
            return await self._ended_uis.page(job_id, request)
        _, master = self._running(job_id)
        if master is not None:
            try:
                return await master.ui(request)
            except (EndpointNotFound, EndpointStopped):
                pass
        raise UiNotFound(f"job {job_id} does not run", "its UI is there while it runs, and when it is in the history")

    async def ui_state(self, job_id: str) -> SparkUiView:
        """Whether there is a UI."""
        path = f"/v1/jobs/{job_id}/ui"
        if job_id not in self._archive:
            job, master = self._running(job_id)
            if master is not None:
                return SparkUiView(state=SparkUiState.LIVE, path=path)
            why = "the job has not begun" if not job.terminal else "the job is not in the history"
            return SparkUiView(state=SparkUiState.NONE, reason=why)
        try:
            log = await self._archive.event_log(job_id)
        except SluiceError:
            if job_id not in self._jobs:
                raise
            return SparkUiView(state=SparkUiState.NONE, reason="the history cannot be read now")
        if not log.blocks:
            return SparkUiView(state=SparkUiState.NONE, reason="no event log of the job was kept")
        return SparkUiView(
            state=SparkUiState.CUT if log.cut else SparkUiState.KEPT,
            path=path,
            reason="events are missing, tasks first: the event log was too large, or its end was lost"
            if log.cut
            else "",
            size=log.size,
            kept_until=self._archive.kept_until(job_id),
        )

    async def connect_address(self, job_id: str) -> ConnectAddress:
        """The address of a session's Spark Connect server; port 0 while there is none."""
        _, master = self._running(job_id)
        none = ConnectAddress(host="", port=0)
        return none if master is None else await answer_or_record(master.connect_address(), lambda: none)

    async def record(self, job_id: str) -> JobRecord:
        """Everything known about a job, now or at its end."""
        if job_id in self._jobs:
            job, master = self._running(job_id)
            record = job.record if master is None else await answer_or_record(master.record(), lambda: job.record)
        else:
            record = await self._archive.record(job_id)
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
        """A job and its JobMaster, which is None when it does not run."""
        job = self._jobs[job_id]
        return job, None if job.terminal else job.master_gateway(self._endpoint.service)


async def answer_or_record(question: Awaitable[_T], otherwise: Callable[[], _T]) -> _T:
    """The JobMaster's answer to ``question``; ``otherwise`` when the attempt ends before it answers."""
    try:
        return await question
    except (EndpointNotFound, EndpointStopped):
        return otherwise()
