"""The Dispatcher: accepts submissions, writes them down, starts one JobMaster each, remembers what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pki.errors import SluiceError
from pki.tracing import TRACING
from runtime.blob.errors import BlobError, InvalidBlobName
from runtime.blob.store import BlobStore, check_file_name
from runtime.checkpoint.errors import CheckpointsUnavailable, SavepointFailed
from runtime.checkpoint.ledger import CheckpointsView
from runtime.checkpoint.savepoints import Savepoint, new_savepoint_id
from runtime.ha.errors import EntryMissing, LeadershipLost, StorageUnavailable
from runtime.ha.leadership import Leadership
from runtime.jobmanager.driver_attempt import LOG_FILES, attempt_directory
from runtime.jobmanager.errors import (
    JobAlreadyTerminal,
    JobNotFound,
    LogNotFound,
    QuotaExceeded,
    SubmissionRejected,
    UiNotFound,
)
from runtime.jobmanager.gateways import (
    DISPATCHER,
    DispatcherGateway,
    ExecutorLogRequest,
    JobMasterInternalGateway,
    ResourceManagerInternalGateway,
)
from runtime.jobmanager.history import HistoryKeeper, HistoryStore, JobHistory
from runtime.jobmanager.job_feed import JobFeed
from runtime.jobmanager.job_master import JobMaster, JobServices
from runtime.jobmanager.job_queue import JobLimits, JobQueue
from runtime.jobmanager.job_store import AcceptedJob, JobStore
from runtime.jobmanager.records import accepted_detail, ended_record, interrupted_record
from runtime.jobmanager.remains import end_remains, end_remains_of, wait_for
from runtime.jobmanager.restart import NoRestart, Restarts, restarts
from runtime.jobmanager.views import ExceptionEntry, Failure, JobDetail, JobRecord, JobSummary, SavepointRequest
from runtime.log_files import read_log
from runtime.messages import (
    BlobRef,
    ConnectionEvidence,
    JobKind,
    JobState,
    JobSubmission,
    LogChunk,
    StageTable,
    UiPage,
    UiRequest,
)
from runtime.restart_config import (
    RestartConfig,
    settle,
)
from runtime.rpc import RpcEndpoint
from runtime.spark.command import MINIMUM_EXECUTOR_MEMORY_MB
from runtime.spark.conf import check_job_conf
from runtime.spark.packages import check_packages

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

MAX_JOB_NAME_CHARACTERS = 200
MAX_ARGUMENTS = 1000
MAX_ARGUMENTS_CHARACTERS = 256 << 10
"""Longest sum of a pipeline's arguments."""
MAX_EXECUTORS = 1000
ATTEMPTS_WITH_LOGS = 5
"""Latest attempts of a job whose logs are kept: a streaming job may be restarted for ever."""
MAX_EXECUTOR_CORES = 1024
MAX_EXECUTOR_MEMORY_MB = 8 << 20
FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 5.0
"""Between tries while the HA storage is away."""

_EARLIER_LOG = re.compile(r"attempt-([1-9][0-9]{0,5})\.(driver\.[a-z]+)")
_EXECUTOR_LOG = re.compile(r"executor-([1-9][0-9]{0,8})\.(stdout|stderr)")


@dataclass(slots=True)
class _Job:
    """``cancelled``: somebody wants that (``woken`` is set then); ``clean``: nothing of it is left but its result."""

    record: JobRecord
    master: JobMaster | None = None
    cancelled: bool = False
    clean: bool = False
    restarts: Restarts = field(default_factory=NoRestart)
    history: JobHistory = field(default_factory=JobHistory)
    woken: asyncio.Event = field(default_factory=asyncio.Event)


def check_executor_size(cores: int, memory_mb: int) -> None:
    """Raise :class:`SubmissionRejected` when no executor could have this size; 0 is the cluster's default."""
    if not 0 <= cores <= MAX_EXECUTOR_CORES:
        raise SubmissionRejected(f"executors of {cores} cores", f"ask for 1 to {MAX_EXECUTOR_CORES}")
    if memory_mb and not MINIMUM_EXECUTOR_MEMORY_MB <= memory_mb <= MAX_EXECUTOR_MEMORY_MB:
        raise SubmissionRejected(
            f"executors of {memory_mb} MiB", f"ask for {MINIMUM_EXECUTOR_MEMORY_MB} to {MAX_EXECUTOR_MEMORY_MB}"
        )


def check_submission(submission: JobSubmission) -> JobSubmission:
    """A vetted copy; raises :class:`SubmissionRejected` or ``ForbiddenSparkConf`` naming what is not acceptable."""
    name = submission.name
    if not name or len(name) > MAX_JOB_NAME_CHARACTERS or not name.isprintable():
        raise SubmissionRejected(
            f"{name[:80]!r} is not a job name", f"1 to {MAX_JOB_NAME_CHARACTERS} printable characters"
        )
    if not 1 <= submission.executors <= MAX_EXECUTORS:
        raise SubmissionRejected(f"{submission.executors} executors", f"ask for 1 to {MAX_EXECUTORS}")
    check_executor_size(submission.executor_cores, submission.executor_memory_mb)
    if len(submission.args) > MAX_ARGUMENTS or sum(map(len, submission.args)) > MAX_ARGUMENTS_CHARACTERS:
        raise SubmissionRejected(
            "too many arguments", f"at most {MAX_ARGUMENTS} with {MAX_ARGUMENTS_CHARACTERS} characters"
        )
    if any("\0" in argument for argument in submission.args):
        raise SubmissionRejected("an argument contains a zero character")
    try:
        names = [check_file_name(ref.name) for ref in submission.blobs]
    except InvalidBlobName as error:
        raise SubmissionRejected(error.what, error.remedy) from error
    if len(set(names)) != len(names):
        raise SubmissionRejected("two files of the submission have the same name", "rename one of them")
    check_packages(submission)
    return msgspec.structs.replace(submission, spark_conf=check_job_conf(submission.spark_conf))


class Dispatcher(RpcEndpoint):
    """See the module's documentation. It exists while its process leads.

    Args:
        store: where jobs are written down.
        history: where their past is.
        term: the leadership under which it works.
        blobs: whose job folders are removed when a job is over.
        jobs: directory with the working directories and logs of jobs.
        resource_manager: for the logs of executors.
        services: what JobMasters get; ``services.dispatcher`` must be a proxy of this endpoint.
        finished_jobs_kept: how many ended jobs, with their logs, are remembered.
        lease: of drivers, in seconds (see :mod:`runtime.jobmanager.remains`).
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
        self._blob_quota = blob_quota
        self._chance = chance
        self._blobs = blobs
        self._directory = jobs
        self._resource_manager = resource_manager
        self._services = services
        self._kept = finished_jobs_kept
        self._clock = clock
        self._queue = JobQueue(limits or JobLimits())
        self._feed = feed or JobFeed()
        self._jobs: dict[str, _Job] = {}
        self._launching: set[asyncio.Task[None]] = set()

    async def on_start(self) -> None:
        """Read what there is; jobs that an earlier leader left unfinished start again when nothing of them runs."""
        recovered = await self._store.recover()
        await asyncio.to_thread(end_remains, self._directory)
        for ended in recovered.ended:
            self._jobs[ended.summary.id] = _Job(ended_record(ended), clean=not ended.dirty)
            if ended.dirty:
                self.hand_off(self._clean_up(ended.summary.id))
        for accepted in recovered.accepted:
            history = await self._histories.get(accepted.job_id)
            job = self._jobs[accepted.job_id] = self._new(interrupted_record(accepted, history), history)
            job.cancelled = accepted.cancelled
            if not accepted.cancelled:
                self._queue.enter_again(accepted.job_id, accepted.owner)
            _LOG.info("recovering job %s (%s) of %s", accepted.job_id, accepted.name, accepted.owner)
            self._launch(job, self._recover(accepted, job))
        for job_id in self._blobs.jobs():
            self._blobs.remove_job(job_id)
        self._trim_directories()
        self._trim_archive()

    async def on_stop(self) -> None:
        """End all running jobs, at the same time; whoever leads next goes on with them."""
        for task in self._launching:
            task.cancel()
        if self._launching:
            await asyncio.wait(self._launching)
        masters = {job_id: job.master for job_id, job in self._jobs.items() if job.master is not None}
        if masters:
            await asyncio.gather(*(self._suspend(job_id, master) for job_id, master in masters.items()))

    async def _suspend(self, job_id: str, master: JobMaster) -> None:
        await self.service.stop(master)
        try:
            await self._store.end_attempt(job_id)
        except SluiceError as error:
            _LOG.info("the next leader will wait for the driver of job %s: %s", job_id, error)

    # --- jobs -------------------------------------------------------------------------------------------

    async def submit_job(self, job_id: str, submission: JobSubmission) -> None:
        """See :class:`DispatcherGateway`."""
        self._term.check()
        if job_id in self._jobs:
            raise SubmissionRejected(f"there is a job {job_id} already")
        checked = check_submission(submission)
        self._check_quota(checked)
        self._queue.enter(job_id, checked.owner)
        detail = accepted_detail(job_id, checked, self._now_ms())
        job = self._jobs[job_id] = self._new(JobRecord(submission=checked, detail=detail))
        self._feed.changed(job_id)
        return self.deferred(self._accept(job_id, job))

    def _check_quota(self, submission: JobSubmission) -> None:
        """Raise :class:`QuotaExceeded` when the files of its owner's unfinished jobs would be too large together."""
        unfinished = [
            job.record.submission
            for job in self._jobs.values()
            if job.record.submission.owner == submission.owner and not job.record.detail.state.terminal
        ]
        size = sum({ref.sha256: ref.size for each in (*unfinished, submission) for ref in each.blobs}.values())
        if 0 < self._blob_quota < size:
            raise QuotaExceeded(
                f"the files of the unfinished jobs of {submission.owner} would have {size} bytes together",
                f"at most {self._blob_quota} (limits.max_blob_bytes_per_user): wait until one has ended",
            )

    def _new(self, record: JobRecord, history: JobHistory | None = None) -> _Job:
        """A job that is to be run; a Spark Connect session is its client's to start again."""
        job = _Job(record, history=history or JobHistory())
        if record.submission.kind is JobKind.PIPELINE:
            settings = settle(self._restart, record.submission.restart)
            job.restarts = restarts(
                settings,
                checkpointed=lambda: job.record.detail.checkpoints > 0,
                chance=self._chance,
                memory=job.history.restarts,
            )
        return job

    async def _accept(self, job_id: str, job: _Job) -> None:
        """Make the job durable, then start it; outside the main thread because its JobMaster reports to that."""
        submission, accepted_at = job.record.submission, job.record.detail.start_time
        try:
            with TRACING.span("dispatcher accept", submission.trace, job=job_id):
                await self._store.accept(
                    job_id, submission, accepted_at, lambda digest: self._blobs.path(job_id, digest)
                )
        except BaseException:
            del self._jobs[job_id]
            self._queue.leave(job_id)
            self._feed.changed(job_id)
            raise
        if job.cancelled:
            await self._store.cancel(job_id)
        _LOG.info("accepted job %s (%s) of %s", job_id, submission.name, submission.owner)
        self._launch(job, self._start(job_id, job))

    def _launch(self, job: _Job, work: Coroutine[Any, Any, None]) -> None:
        """Start ``job``; one that cannot be started has failed, unless it is another leader's by now."""

        def failed(error: BaseException) -> None:
            if isinstance(error, LeadershipLost):
                _LOG.info("job %s is left to the next leader: %s", job.record.detail.id, error)
            elif isinstance(error, SluiceError):
                self.hand_off(self._give_up(job, f"it cannot be started: {error}"))
            else:
                self.on_failure(error)

        task = self.hand_off(work, failed=failed)
        self._launching.add(task)
        task.add_done_callback(self._launching.discard)

    async def _recover(self, accepted: AcceptedJob, job: _Job) -> None:
        """Start a job of an earlier leader again, once its driver is gone."""
        await asyncio.sleep(
            wait_for(
                accepted.attempt,
                origin=self._store.origin,
                granted_at=self._term.granted_at,
                lease=self._lease,
                now=time.monotonic(),
            )
        )
        if accepted.submission is None:
            await self._give_up(job, accepted.damage)
            return
        try:
            for ref in accepted.submission.blobs:
                await self._persistently(lambda ref=ref: self._fetch(accepted.job_id, ref), "its files")  # type: ignore[misc]
        except (BlobError, EntryMissing) as error:
            await self._give_up(job, f"its files in the HA storage cannot be read any more: {error}")
            return
        await self._start(accepted.job_id, job)

    async def _fetch(self, job_id: str, ref: BlobRef) -> None:
        def copy() -> None:
            with self._blobs.writer(job_id, ref.name) as writer:
                for chunk in self._store.blob_chunks(job_id, ref):
                    writer.write(chunk)
                writer.commit(ref.sha256)

        await asyncio.to_thread(copy)

    async def _start(self, job_id: str, job: _Job) -> None:
        """Start the JobMaster with the next attempt, when it is the job's turn."""
        await self._queue.turn(job_id)
        if job.cancelled:
            await self._conclude(job, JobState.CANCELED)
            return
        attempt = await self._persistently(lambda: self._store.begin_attempt(job_id), "its attempt")
        if job.cancelled:
            await self._conclude(job, JobState.CANCELED)
            return
        forgotten = attempt_directory(self._directory, job_id, max(0, attempt - ATTEMPTS_WITH_LOGS))
        await asyncio.to_thread(shutil.rmtree, forgotten, ignore_errors=True)
        self._term.check()
        master = job.master = JobMaster(job.record, self._services, attempt=attempt)
        try:
            await self.service.start(master)
        except SluiceError:
            job.master = None
            raise
        if job.cancelled:
            await self._cancel_master(job_id)

    async def _give_up(self, job: _Job, why: str) -> None:
        _LOG.error("job %s cannot be run: %s", job.record.detail.id, why)
        await self._conclude(job, JobState.FAILED, Failure(error=why))

    async def _conclude(self, job: _Job, state: JobState, failure: Failure | None = None) -> None:
        """End a job that has no JobMaster."""
        now, detail = self._now_ms(), job.record.detail
        ended = msgspec.structs.replace(
            detail,
            state=state,
            end_time=now,
            duration_ms=max(0, now - detail.start_time),
            failure=failure,
            timestamps={**detail.timestamps, state.value: now},
            pending_reason="",
        )
        await self._end(job, msgspec.structs.replace(job.record, detail=ended))
        await self._clean_up(detail.id)

    async def cancel_job(self, job_id: str) -> None:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        if job.record.detail.state.terminal:
            raise JobAlreadyTerminal(f"job {job_id} is {job.record.detail.state}")
        return self.deferred(self._cancel(job_id, job))

    async def _cancel(self, job_id: str, job: _Job) -> None:
        """The wish is made durable first: a job that was cancelled is not started by the next leader."""
        await self._store.cancel(job_id)
        job.cancelled = True
        if job.master is None:
            self._queue.leave(job_id)  # it waits for a turn that it does not want any more
        job.woken.set()
        await self._cancel_master(job_id)

    async def _cancel_master(self, job_id: str) -> None:
        master = self._master(job_id)
        if master is not None:
            await master.cancel()

    async def job_updated(self, detail: JobDetail) -> None:
        """See :class:`DispatcherGateway`."""
        job = self._jobs.get(detail.id)
        if job is not None and not job.record.detail.state.terminal:
            job.record = msgspec.structs.replace(job.record, detail=detail)
            self._feed.changed(detail.id)

    async def job_ended(self, record: JobRecord) -> None:
        """See :class:`DispatcherGateway`."""
        return self.deferred(self._end(self._job(record.detail.id), record))

    async def _end(self, job: _Job, record: JobRecord) -> None:
        """The job is terminal for everybody as soon as its result is durable, and not before."""
        await self._persistently(lambda: self._store.put_result(record), "its result")
        job.record = record
        self._queue.leave(record.detail.id)
        self._feed.changed(record.detail.id)
        self._blobs.remove_job(record.detail.id)

    async def attempt_failed(self, job_id: str) -> float | None:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        return None if job.cancelled else self.deferred(self._decide(job_id, job))

    async def _decide(self, job_id: str, job: _Job) -> float | None:
        """What the strategy counts is durable before anything follows from it."""
        delay = job.restarts.failed(self._clock())
        if delay is not None:
            await self._persistently(lambda: self._keep_history(job_id, job), "its history")
        return delay

    async def job_history(self, job_id: str, history: JobHistory) -> None:
        """See :class:`DispatcherGateway`."""
        job = self._jobs.get(job_id)
        if job is None or job.record.detail.state.terminal:
            return
        job.history = history
        self.hand_off(self._keep_history(job_id, job), failed=lambda error: self._history_not_kept(job_id, error))

    async def _keep_history(self, job_id: str, job: _Job) -> None:
        await self._keeper.keep(job_id, msgspec.structs.replace(job.history, restarts=job.restarts.memory))

    def _history_not_kept(self, job_id: str, error: BaseException) -> None:
        """It comes again with the next change."""
        if isinstance(error, SluiceError):
            _LOG.warning("the history of job %s is not written down: %s", job_id, error)
        else:
            self.on_failure(error)

    async def job_restarting(self, record: JobRecord, delay: float) -> None:
        """See :class:`DispatcherGateway`."""
        job_id = record.detail.id
        job = self._job(job_id)
        job.record = record
        self._feed.changed(job_id)
        master, job.master = job.master, None
        if master is not None:
            self._launch(job, self._restart_later(job_id, job, master, delay))

    async def _restart_later(self, job_id: str, job: _Job, master: JobMaster, delay: float) -> None:
        """The next attempt begins when nothing of the last one runs, however long that takes."""
        await self.service.stop(master)
        await asyncio.to_thread(end_remains_of, self._directory / job_id)
        await self._persistently(lambda: self._store.end_attempt(job_id), "the end of its attempt")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(job.woken.wait(), delay)
        await self._start(job_id, job)

    async def job_exceptions(self, job_id: str) -> tuple[ExceptionEntry, ...]:
        """See :class:`DispatcherGateway`."""
        job, master = self._job(job_id), self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            return job.record.exceptions
        return self.deferred(master.exceptions())

    async def job_checkpoints(self, job_id: str) -> CheckpointsView:
        """See :class:`DispatcherGateway`."""
        job, master = self._job(job_id), self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            return job.record.checkpoints
        return self.deferred(master.checkpoints())

    async def job_savepoints(self, job_id: str) -> tuple[SavepointRequest, ...]:
        """See :class:`DispatcherGateway`."""
        job, master = self._job(job_id), self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            return job.record.savepoints
        return self.deferred(master.savepoints())

    async def trigger_savepoint(self, job_id: str, stop: bool) -> str:
        """See :class:`DispatcherGateway`."""
        job, master = self._job(job_id), self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            raise SavepointFailed(f"job {job_id} is {job.record.detail.state}", "a savepoint is made of a running job")
        savepoint_id = new_savepoint_id(job_id)

        async def ask() -> str:
            await master.trigger_savepoint(savepoint_id, stop)
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

    async def job_released(self, job_id: str) -> None:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        master, job.master = job.master, None
        if master is not None:
            self.hand_off(self._remove(job_id, master))

    async def _remove(self, job_id: str, master: JobMaster) -> None:
        await self.service.stop(master)
        await self._clean(job_id)

    async def _clean_up(self, job_id: str) -> None:
        """What a JobMaster gives back at its end, for a job that has none any more."""
        if self._services.shuffle is not None:
            await self._services.shuffle.release_job(job_id)
        await self._clean(job_id)

    async def _clean(self, job_id: str) -> None:
        checkpoints = self._services.places.checkpoints
        await self._persistently(lambda: asyncio.to_thread(checkpoints.remove, job_id), "its checkpoints")
        await self._keeper.close(job_id)
        await self._persistently(lambda: self._store.clean(job_id), "its cleanup")
        job = self._jobs.get(job_id)
        if job is not None:
            job.clean = True
        self._trim_archive()

    async def _persistently(self, work: Callable[[], Awaitable[_T]], what: str) -> _T:
        """Try again for as long as the storage is away and this process leads."""
        delay = FIRST_RETRY_SECONDS
        while True:
            try:
                return await work()
            except (StorageUnavailable, CheckpointsUnavailable) as error:
                _LOG.warning("a job waits for the storage with %s: %s", what, error)
            await asyncio.sleep(delay)
            self._term.check()
            delay = min(delay * 2, LONGEST_RETRY_SECONDS)

    def _trim_archive(self) -> None:
        ended = [job_id for job_id, job in self._jobs.items() if job.clean]
        for job_id in ended[: max(0, len(ended) - self._kept)]:
            del self._jobs[job_id]
            self._feed.changed(job_id)
            shutil.rmtree(self._directory / job_id, ignore_errors=True)
            self.hand_off(self._forget(job_id))

    async def _forget(self, job_id: str) -> None:
        self._keeper.forget(job_id)
        await self._persistently(lambda: self._store.forget(job_id), "its removal")

    def _trim_directories(self) -> None:
        """Of jobs that this home has run and nobody knows any more, keep no more logs than of those that are known."""
        unknown = [path for path in self._directory.iterdir() if path.is_dir() and path.name not in self._jobs]
        unknown.sort(key=lambda path: path.stat().st_mtime)
        for path in unknown[: max(0, len(unknown) - self._kept)]:
            shutil.rmtree(path, ignore_errors=True)

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
        executors = [each.id for each in detail.executors if each.state != "LAUNCHING"]
        earlier = [each.number for each in detail.attempts if each.number != detail.attempt]
        return (
            *self._driver_logs(job_id, detail.attempt),
            *(f"executor-{each}.{stream}" for each in executors for stream in ("stdout", "stderr")),
            *(f"attempt-{number}.{name}" for number in earlier for name in self._driver_logs(job_id, number)),
        )

    def _driver_logs(self, job_id: str, attempt: int) -> list[str]:
        directory = attempt_directory(self._directory, job_id, attempt)
        return [name for name, file in LOG_FILES.items() if (directory / file).is_file()]

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

    async def job_connections(self, job_id: str) -> tuple[ConnectionEvidence, ...]:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        master = self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            return job.record.connections
        return self.deferred(master.connections())

    async def job_stages(self, job_id: str) -> StageTable:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        master = self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            return job.record.stages
        return self.deferred(master.stages())

    async def job_ui(self, job_id: str, request: UiRequest) -> UiPage:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        master = self._master(job_id)
        if master is None or job.record.detail.state.terminal:
            raise UiNotFound(f"job {job_id} does not run", "its UI is there while it runs")
        return self.deferred(master.ui(request))

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
        return msgspec.structs.replace(
            detail,
            duration_ms=max(0, self._now_ms() - detail.start_time),
            pending_reason=self._queue.reason(detail.id) or detail.pending_reason,
        )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
