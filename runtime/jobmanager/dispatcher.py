"""The Dispatcher: accepts submissions, writes them down, starts one JobMaster each, remembers what became of them."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runtime.blob.errors import InvalidBlobName
from runtime.blob.store import BlobStore, check_file_name
from runtime.jobmanager.driver_attempt import LOG_FILES, attempt_directory, clean_attempt_directory
from runtime.jobmanager.errors import JobAlreadyTerminal, JobNotFound, LogNotFound, SubmissionRejected, TooManyJobs
from runtime.jobmanager.gateways import (
    DISPATCHER,
    DispatcherGateway,
    ExecutorLogRequest,
    JobMasterInternalGateway,
    ResourceManagerInternalGateway,
)
from runtime.jobmanager.job_master import JobMaster, JobServices
from runtime.jobmanager.job_records import JobRecords
from runtime.jobmanager.views import Failure, JobDetail, JobRecord, JobSummary
from runtime.log_files import read_log
from runtime.messages import ConnectionEvidence, JobProgress, JobState, JobSubmission, LogChunk
from runtime.rpc import RpcEndpoint
from runtime.spark.conf import check_job_conf

_LOG = logging.getLogger(__name__)

MAX_RUNNING_JOBS = 100
MAX_JOB_NAME_CHARACTERS = 200
MAX_ARGUMENTS = 1000
MAX_ARGUMENTS_CHARACTERS = 256 << 10
"""Longest sum of a pipeline's arguments."""
MAX_EXECUTORS = 1000

_EXECUTOR_LOG = re.compile(r"executor-([1-9][0-9]{0,8})\.(stdout|stderr)")


@dataclass(slots=True)
class _Job:
    record: JobRecord
    master: JobMaster | None = None


def check_submission(submission: JobSubmission) -> JobSubmission:
    """A vetted copy; raises :class:`SubmissionRejected` or ``ForbiddenSparkConf`` naming what is not acceptable."""
    name = submission.name
    if not name or len(name) > MAX_JOB_NAME_CHARACTERS or not name.isprintable():
        raise SubmissionRejected(
            f"{name[:80]!r} is not a job name", f"1 to {MAX_JOB_NAME_CHARACTERS} printable characters"
        )
    if not 1 <= submission.executors <= MAX_EXECUTORS:
        raise SubmissionRejected(f"{submission.executors} executors", f"ask for 1 to {MAX_EXECUTORS}")
    if len(submission.args) > MAX_ARGUMENTS or sum(map(len, submission.args)) > MAX_ARGUMENTS_CHARACTERS:
        raise SubmissionRejected(
            "too many arguments", f"at most {MAX_ARGUMENTS} with {MAX_ARGUMENTS_CHARACTERS} characters"
        )
    if any("\0" in argument for argument in submission.args):
        raise SubmissionRejected("an argument contains a zero character")
    try:
        names = [check_file_name(ref.name) for ref in (submission.pipeline, *submission.files)]
    except InvalidBlobName as error:
        raise SubmissionRejected(error.what, error.remedy) from error
    if len(set(names)) != len(names):
        raise SubmissionRejected("two files of the submission have the same name", "rename one of them")
    return msgspec.structs.replace(submission, spark_conf=check_job_conf(submission.spark_conf))


class Dispatcher(RpcEndpoint):
    """See the module's documentation.

    Args:
        records: where jobs are written down.
        blobs: whose job folders are removed when a job is over.
        jobs: directory with the working directories and logs of jobs.
        resource_manager: for the logs of executors.
        services: what JobMasters get; ``services.dispatcher`` must be a proxy of this endpoint.
        finished_jobs_kept: how many ended jobs, with their logs, are remembered.
    """

    def __init__(
        self,
        *,
        records: JobRecords,
        blobs: BlobStore,
        jobs: Path,
        resource_manager: ResourceManagerInternalGateway,
        services: JobServices,
        finished_jobs_kept: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(DISPATCHER, DispatcherGateway)
        self._records = records
        self._blobs = blobs
        self._directory = jobs
        self._resource_manager = resource_manager
        self._services = services
        self._kept = finished_jobs_kept
        self._clock = clock
        self._jobs: dict[str, _Job] = {}

    async def on_start(self) -> None:
        """Read the archive; jobs that an earlier JobManager left unfinished have failed with it."""
        for record in self._records.read_all():
            ended = record if record.detail.state.terminal else self._given_up(record)
            self._jobs[ended.detail.id] = _Job(ended)
        for job_id in self._blobs.jobs():
            self._blobs.remove_job(job_id)
        self._trim_archive()

    async def on_stop(self) -> None:
        """End all running jobs, at the same time."""
        masters = [job.master for job in self._jobs.values() if job.master is not None]
        stopping = [asyncio.ensure_future(self.service.stop(master)) for master in masters]
        if stopping:
            await asyncio.wait(stopping)

    def _given_up(self, record: JobRecord) -> JobRecord:
        now = self._now_ms()
        detail = msgspec.structs.replace(
            record.detail,
            state=JobState.FAILED,
            end_time=now,
            duration_ms=max(0, now - record.detail.start_time),
            failure=Failure(error=f"the JobManager ended while the job was {record.detail.state}; submit it again"),
            timestamps={**record.detail.timestamps, JobState.FAILED.value: now},
            pending_reason="",
        )
        ended = msgspec.structs.replace(record, detail=detail)
        clean_attempt_directory(attempt_directory(self._directory, detail.id, detail.attempt))
        self._records.write(ended)
        return ended

    # --- jobs -------------------------------------------------------------------------------------------

    async def submit_job(self, job_id: str, submission: JobSubmission) -> None:
        """See :class:`DispatcherGateway`."""
        if job_id in self._jobs:
            raise SubmissionRejected(f"there is a job {job_id} already")
        if sum(job.master is not None for job in self._jobs.values()) >= MAX_RUNNING_JOBS:
            raise TooManyJobs(f"{MAX_RUNNING_JOBS} jobs are running already", "try again when one has ended")
        checked = check_submission(submission)
        record = JobRecord(submission=checked, detail=self._accepted(job_id, checked))
        self._records.write(record)
        job = self._jobs[job_id] = _Job(record, JobMaster(job_id, checked, self._services))
        _LOG.info("accepted job %s (%s) of %s", job_id, checked.name, checked.owner)
        return self.deferred(self._start(job_id, job))

    async def _start(self, job_id: str, job: _Job) -> None:
        """Start the JobMaster; outside the main thread because the JobMaster reports to it."""
        if job.master is None:
            return
        try:
            await self.service.start(job.master)
        except Exception:
            self._jobs.pop(job_id, None)
            self._records.remove(job_id)
            raise

    def _accepted(self, job_id: str, submission: JobSubmission) -> JobDetail:
        now = self._now_ms()
        return JobDetail(
            id=job_id,
            name=submission.name,
            owner=submission.owner,
            kind=submission.kind,
            state=JobState.INITIALIZING,
            start_time=now,
            end_time=None,
            duration_ms=0,
            attempt=1,
            progress=JobProgress(),
            executors=(),
            timestamps={JobState.INITIALIZING.value: now},
            failure=None,
            pending_reason="",
        )

    async def cancel_job(self, job_id: str) -> None:
        """See :class:`DispatcherGateway`."""
        master = self._master(job_id)
        if master is None:
            raise JobAlreadyTerminal(f"job {job_id} is {self._job(job_id).record.detail.state}")
        return self.deferred(master.cancel())

    async def job_updated(self, detail: JobDetail) -> None:
        """See :class:`DispatcherGateway`."""
        job = self._jobs.get(detail.id)
        if job is None or job.record.detail.state.terminal:
            return
        changed = job.record.detail.state is not detail.state
        job.record = msgspec.structs.replace(job.record, detail=detail)
        if changed:
            self._records.write(job.record)

    async def job_ended(self, record: JobRecord) -> None:
        """See :class:`DispatcherGateway`."""
        job = self._job(record.detail.id)
        job.record = record
        self._records.write(record)
        self._blobs.remove_job(record.detail.id)

    async def job_released(self, job_id: str) -> None:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        master, job.master = job.master, None
        if master is not None:
            self.hand_off(self.service.stop(master))
        self._trim_archive()

    def _trim_archive(self) -> None:
        ended = [job_id for job_id, job in self._jobs.items() if job.master is None]
        for job_id in ended[: max(0, len(ended) - self._kept)]:
            del self._jobs[job_id]
            self._records.remove(job_id)

    # --- queries ------------------------------------------------------------------------------------------

    async def jobs(self) -> tuple[JobSummary, ...]:
        """See :class:`DispatcherGateway`."""
        return tuple(self._shown(job).summary() for job in reversed(self._jobs.values()))

    async def job(self, job_id: str) -> JobDetail:
        """See :class:`DispatcherGateway`."""
        return self._shown(self._job(job_id))

    async def job_logs(self, job_id: str) -> tuple[str, ...]:
        """See :class:`DispatcherGateway`."""
        detail = self._job(job_id).record.detail
        directory = attempt_directory(self._directory, job_id, detail.attempt)
        executors = [each.id for each in detail.executors if each.state != "LAUNCHING"]
        return (
            *(name for name, file in LOG_FILES.items() if (directory / file).is_file()),
            *(f"executor-{each}.{stream}" for each in executors for stream in ("stdout", "stderr")),
        )

    async def read_job_log(self, job_id: str, source: str, offset: int, limit: int) -> LogChunk:
        """See :class:`DispatcherGateway`."""
        detail = self._job(job_id).record.detail
        if source in LOG_FILES:
            path = attempt_directory(self._directory, job_id, detail.attempt) / LOG_FILES[source]
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

    async def job_connections(self, job_id: str) -> tuple[ConnectionEvidence, ...]:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        master = self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            return job.record.connections
        return self.deferred(master.connections())

    def _job(self, job_id: str) -> _Job:
        try:
            return self._jobs[job_id]
        except KeyError:
            raise JobNotFound(f"there is no job {job_id[:64]!r}", "see the list of jobs") from None

    def _master(self, job_id: str) -> JobMasterInternalGateway | None:
        master = self._job(job_id).master
        if master is None or not master.running:
            return None
        return self.service.local(JobMasterInternalGateway, master.name, token=master.token)

    def _shown(self, job: _Job) -> JobDetail:
        detail = job.record.detail
        if detail.end_time is not None:
            return detail
        return msgspec.structs.replace(detail, duration_ms=max(0, self._now_ms() - detail.start_time))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
