"""The Dispatcher: accepts submissions, starts a JobMaster for each attempt of a job, and keeps the results.

It translates between the world and its state machine (:mod:`sluice.runtime.jobmanager.dispatcher.state_machine`):
calls become events, and the actions that these cause are carried out by an
:class:`~sluice.runtime.jobmanager.dispatcher.action_runner.ActionRunner`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from sluice.core import SluiceError
from sluice.runtime.blob import BlobStore
from sluice.runtime.checkpoint import Savepoint
from sluice.runtime.ha import Leadership, LeadershipLost
from sluice.runtime.jobmanager.attempt import JobServices
from sluice.runtime.jobmanager.dispatcher.action_runner import ActionRunner
from sluice.runtime.jobmanager.dispatcher.durable_writes import retry_while_unavailable
from sluice.runtime.jobmanager.dispatcher.ended_job_uis import EndedJobUis
from sluice.runtime.jobmanager.dispatcher.job_archiving import JobArchiver
from sluice.runtime.jobmanager.dispatcher.job_feed import JobFeed
from sluice.runtime.jobmanager.dispatcher.job_logs import JobLogs
from sluice.runtime.jobmanager.dispatcher.job_queries import JobQueries
from sluice.runtime.jobmanager.dispatcher.job_queue import JobLimits
from sluice.runtime.jobmanager.dispatcher.job_records import (
    accepted_detail,
    ended_record,
    interrupted_record,
    resumed_record,
)
from sluice.runtime.jobmanager.dispatcher.orphaned_drivers import may_run
from sluice.runtime.jobmanager.dispatcher.queue_access import assign_queue
from sluice.runtime.jobmanager.dispatcher.registered_job import RegisteredJob, RegisteredJobs
from sluice.runtime.jobmanager.dispatcher.state_machine import DispatcherStateMachine
from sluice.runtime.jobmanager.dispatcher.submission_checks import check_submission
from sluice.runtime.jobmanager.errors import JobAlreadyTerminal
from sluice.runtime.jobmanager.gateways import (
    DISPATCHER,
    ConnectAddress,
    DispatcherGateway,
    HistoryPage,
    JobOrigin,
    ResourceManagerInternalGateway,
)
from sluice.runtime.jobmanager.history import JobArchive
from sluice.runtime.jobmanager.restart_strategies import NoRestart, RestartBackoff, restart_backoff
from sluice.runtime.jobmanager.store import AcceptedJob, HistoryKeeper, HistoryStore, JobHistory, JobStore
from sluice.runtime.jobmanager.views import JobBlob, JobDetail, JobRecord, JobSummary, SparkUiView
from sluice.runtime.messages import Evidence, JobKind, JobSubmission, LogChunk, UiPage, UiRequest
from sluice.runtime.restart_config import RestartConfig, effective_restart_config
from sluice.runtime.rpc import RpcEndpoint
from sluice.runtime.scheduling_config import SchedulingConfig

_LOG = logging.getLogger(__name__)

TRIM_SECONDS = 3600.0
"""Seconds between two removals of jobs that are too old from the history."""


class Dispatcher(RpcEndpoint):
    """The endpoint to which jobs are submitted. It exists while its process leads.

    Args:
        store: where jobs are stored.
        history: the history of unfinished jobs.
        archive: the history of ended jobs.
        blobs: whose job folders are removed when a job is over.
        resource_manager: for the logs of drivers and executors.
        services: given to JobMasters; ``services.dispatcher`` must be a proxy of this endpoint.
        finished_jobs_kept: how many ended jobs are kept.
        lease: of drivers, in seconds (see :mod:`sluice.runtime.jobmanager.dispatcher.orphaned_drivers`).
        limits: how many jobs run and wait.
        feed: told of every change of a job.
        blob_quota: bytes that the files of one owner's unfinished jobs may have together; 0: any number.
        allow_conf: Spark settings that the operator allows jobs in addition.
        scheduling: the queues that jobs may be submitted to.
        restart: the restart strategy of jobs that name none.
        chance: random numbers from -1 to 1, for delays before restarts.
    """

    def __init__(
        self,
        *,
        store: JobStore,
        history: HistoryStore,
        archive: JobArchive,
        term: Leadership,
        blobs: BlobStore,
        resource_manager: ResourceManagerInternalGateway,
        services: JobServices,
        finished_jobs_kept: int,
        lease: float,
        restart: RestartConfig,
        limits: JobLimits | None = None,
        feed: JobFeed | None = None,
        blob_quota: int = 0,
        allow_conf: Sequence[str] = (),
        scheduling: SchedulingConfig | None = None,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = lambda: random.uniform(-1, 1),  # noqa: S311  # spreads load, guards nothing
    ) -> None:
        super().__init__(DISPATCHER, DispatcherGateway)
        self._jobs = RegisteredJobs()
        self._machine = DispatcherStateMachine(limits or JobLimits(), kept=finished_jobs_kept, blob_quota=blob_quota)
        self._feed = feed or JobFeed()
        self._store = store
        self._histories = history
        self._keeper = HistoryKeeper(history)
        self._term = term
        self._allow_conf = allow_conf
        self._scheduling = scheduling or SchedulingConfig()
        self._restart = restart
        self._chance = chance
        self._blobs = blobs
        self._clock = clock
        self._resource_manager = resource_manager
        self._archive = archive
        logs = JobLogs(resource_manager)
        self._archiver = JobArchiver(archive, self._jobs, logs, time.monotonic)
        self._queries = JobQueries(
            self,
            self._jobs,
            pending_reason=self._machine.pending_reason,
            logs=logs,
            archive=archive,
            ended_uis=EndedJobUis(archive, resource_manager, time.monotonic),
            savepoints=lambda: services.places.savepoints,
            clock=clock,
        )
        self._runner = ActionRunner(
            self,
            self._machine,
            self._jobs,
            store=self._store,
            keeper=self._keeper,
            archiver=self._archiver,
            term=self._term,
            blobs=self._blobs,
            resource_manager=resource_manager,
            services=services,
            lease=lease,
            feed=self._feed,
            clock=self._clock,
        )

    async def on_start(self) -> None:
        """Read the store: unfinished jobs of an earlier leader continue, or start again when nothing of them runs."""
        await self._archive.load()
        recovered = await self._store.recover()
        histories = {each.job_id: await self._histories.get(each.job_id) for each in recovered.accepted}
        for ended in recovered.ended:
            job_id = ended.summary.id
            self._jobs[job_id] = RegisteredJob(ended_record(ended))
            self._machine.recovered_result(job_id, ended.summary.owner, clean=not ended.dirty)
        self._runner.run_actions()
        await asyncio.to_thread(self._remove_blobs)
        await self._recover(recovered.accepted, histories)
        self._runner.run_actions()
        self._machine.trim()
        self._runner.run_actions()
        self._trim_history()

    def _trim_history(self) -> None:
        self.hand_off(self._archiver.trim(), failed=self._history_not_trimmed)
        self.call_later(TRIM_SECONDS, self._trim_history)

    def _history_not_trimmed(self, error: BaseException) -> None:
        if not isinstance(error, LeadershipLost):
            self.note_failure(error)

    async def _recover(self, jobs: Sequence[AcceptedJob], histories: Mapping[str, JobHistory]) -> None:
        """Recover a job: it fetches its files again. Jobs whose drivers may run come first: they are past the queue."""
        running = {each.job_id for each in jobs if may_run(each, histories[each.job_id])}
        if running:  # before any TaskManager can register
            await self._resource_manager.expect_held_slots(tuple(running))
        for accepted in jobs:
            job_id, history = accepted.job_id, histories[accepted.job_id]
            _LOG.info("recovering job %s (%s) of %s", job_id, accepted.name, accepted.owner)
            record = (resumed_record if job_id in running else interrupted_record)(accepted, history)
            self._jobs[job_id] = RegisteredJob(record, history=history, attempt=accepted.attempt)
            self._runner.recover(accepted)
        for accepted in sorted(jobs, key=lambda each: each.job_id not in running):
            job_id = accepted.job_id
            job = self._jobs[job_id]
            self._machine.recovered(
                job_id,
                accepted.owner,
                _files(job.record.submission),
                self._restarts(job),
                cancelled=accepted.cancelled,
                resumed=accepted.attempt.number if job_id in running and accepted.attempt is not None else 0,
            )

    def _remove_blobs(self) -> None:
        for job_id in self._blobs.jobs():
            self._blobs.remove_job(job_id)

    async def on_stop(self) -> None:
        """Leave all jobs to the next leader; their drivers run on until their leases end."""
        await self._runner.stop_launching()
        await self._runner.suspend_masters()

    # --- for REST -------------------------------------------------------------------------------------------

    async def submit_job(self, job_id: str, submission: JobSubmission) -> None:
        """Accept a job: it is durable when this returns; raises what ``DispatcherGateway`` says."""
        self._term.check()
        self._machine.check_unknown(job_id)
        checked = assign_queue(check_submission(submission, self._allow_conf), self._scheduling)
        job = RegisteredJob(
            JobRecord(submission=checked, detail=accepted_detail(job_id, checked, int(self._clock() * 1000)))
        )
        self._machine.submitted(job_id, checked.owner, _files(checked), self._restarts(job))
        self._jobs[job_id] = job
        self._feed.changed(job_id)
        self._runner.run_actions()
        return self.deferred(self._acceptance(job))

    async def _acceptance(self, job: RegisteredJob) -> None:
        """Wait for the decision about a submission; it is made once, even if the caller stops waiting."""
        if job.accepting is not None:
            await asyncio.shield(job.accepting)

    def _restarts(self, job: RegisteredJob) -> RestartBackoff:
        """The restart strategy of a job; Spark Connect sessions have none, because their clients start them again."""
        submission = job.record.submission
        if submission.kind is not JobKind.PIPELINE:
            return NoRestart()
        return restart_backoff(
            effective_restart_config(self._restart, submission.restart),
            checkpointed=lambda: job.record.detail.checkpoints > 0,
            chance=self._chance,
            memory=job.history.restarts,
        )

    async def cancel_job(self, job_id: str) -> None:
        """End a job; that is durable when this returns. Raises ``JobNotFound`` or ``JobAlreadyTerminal``."""
        if job_id in self._archive and job_id not in self._jobs:
            raise JobAlreadyTerminal(f"job {job_id} has ended")
        job = self._jobs[job_id]
        self._machine.check_cancellable(job_id, job.record.detail.state)
        return self.deferred(self._cancel(job_id, job))

    async def _cancel(self, job_id: str, job: RegisteredJob) -> None:
        """Make the cancellation durable first, so that the next leader does not start the job."""
        if job.accepting is not None:
            await asyncio.wait([job.accepting])
            self._jobs[job_id]  # it may not have been accepted
        await self._runner.write_cancellation(job_id)
        tell = self._machine.cancelled(job_id)
        self._runner.run_actions()
        if tell:
            await self._runner.cancel_master(job_id)

    async def jobs(self) -> tuple[JobSummary, ...]:
        """All jobs, the latest first."""
        return self._queries.summaries()

    async def blobs(self) -> tuple[JobBlob, ...]:
        """The files of all unfinished jobs."""
        return self._queries.blobs()

    async def history(self, before: tuple[int, str] | None, limit: int) -> HistoryPage:
        """Ended jobs that are kept."""
        return self.deferred(self._queries.history(before, limit))

    async def job(self, job_id: str) -> JobDetail:
        """One job as it is now, or was at its end."""
        if job_id in self._jobs:
            return self._queries.detail(job_id)
        return self.deferred(self._queries.archived(job_id))

    async def job_origin(self, job_id: str) -> JobOrigin:
        """The owner of a job."""
        return self._queries.origin(job_id)

    async def job_logs(self, job_id: str) -> tuple[str, ...]:
        """The names of the job's logs."""
        return self.deferred(self._queries.logs(job_id))

    async def read_job_log(self, job_id: str, source: str, offset: int, limit: int) -> LogChunk:
        """A piece of a log."""
        return self.deferred(self._queries.read_log(job_id, source, offset, limit))

    async def job_connections(self, job_id: str) -> Evidence:
        """Mutual TLS connections of the job's driver and executors."""
        return self.deferred(self._queries.connections(job_id))

    async def job_ui(self, job_id: str, request: UiRequest) -> UiPage:
        """A page of Spark's UI."""
        return self.deferred(self._queries.ui(job_id, request))

    async def job_ui_state(self, job_id: str) -> SparkUiView:
        """Whether there is such a UI."""
        return self.deferred(self._queries.ui_state(job_id))

    async def connect_address(self, job_id: str) -> ConnectAddress:
        """The address of a session's Spark Connect server."""
        return self.deferred(self._queries.connect_address(job_id))

    async def job_record(self, job_id: str) -> JobRecord:
        """All that is known of a job now, or was at its end."""
        return self.deferred(self._queries.record(job_id))

    async def trigger_savepoint(self, job_id: str, stop: bool) -> str:
        """Begin a savepoint; returns its id. With ``stop`` the job ends with it."""
        return self.deferred(self._queries.trigger_savepoint(job_id, stop=stop))

    async def savepoints(self) -> tuple[Savepoint, ...]:
        """All savepoints."""
        return self.deferred(self._queries.savepoints())

    async def savepoint(self, savepoint_id: str) -> Savepoint:
        """One savepoint."""
        return self.deferred(self._queries.savepoint(savepoint_id))

    async def dispose_savepoint(self, savepoint_id: str) -> None:
        """Remove a savepoint, unless a job is about to start from it."""
        return self.deferred(self._queries.dispose_savepoint(savepoint_id))

    # --- for JobMasters -------------------------------------------------------------------------------------

    async def job_updated(self, detail: JobDetail) -> None:
        """Show a running job as its JobMaster sees it."""
        job = self._jobs.get(detail.id)
        if job is not None and not job.record.detail.state.terminal:
            job.record = msgspec.structs.replace(job.record, detail=detail)
            self._feed.changed(detail.id)

    async def job_ended(self, record: JobRecord) -> None:
        """Record the result of a job; it is durable when this returns."""
        self._jobs[record.detail.id]  # raises for an unknown job
        return self.deferred(self._runner.end(record.detail.id, record))

    async def driver_placed(self, job_id: str, taskmanager: str) -> None:
        """Record where the driver of a job is about to be launched."""
        self._jobs[job_id]  # raises for an unknown job
        return self.deferred(self._runner.write_placement(job_id, taskmanager))

    async def attempt_failed(self, job_id: str) -> float | None:
        """Decide about the next attempt: seconds until it begins, None when there is none."""
        delay = self._machine.attempt_failed(job_id, self._clock())
        return None if delay is None else self.deferred(self._count_failure(job_id, delay))

    async def _count_failure(self, job_id: str, delay: float) -> float:
        """Count a failure; the count is durable before anything depends on it."""
        try:
            await retry_while_unavailable(lambda: self._keep_history(job_id), "its history", self._term.check)
        except LeadershipLost:
            raise
        except SluiceError as error:  # this leader keeps counting, and the next one starts from what is stored
            self._history_not_kept(job_id, error)
        return delay

    async def job_history(self, job_id: str, history: JobHistory) -> None:
        """Store the history of a job that has not ended."""
        job = self._jobs.get(job_id)
        if job is None or job.record.detail.state.terminal:
            return
        job.history = history
        self.hand_off(self._keep_history(job_id), failed=lambda error: self._history_not_kept(job_id, error))

    async def _keep_history(self, job_id: str) -> None:
        memory = self._machine.jobs[job_id].restarts.memory
        await self._keeper.keep(job_id, msgspec.structs.replace(self._jobs[job_id].history, restarts=memory))

    def _history_not_kept(self, job_id: str, error: BaseException) -> None:
        """Log that a history was not stored; the next change stores it again."""
        if isinstance(error, SluiceError):
            _LOG.warning("the history of job %s is not written down: %s", job_id, error)
        else:
            self.note_failure(error)

    async def job_restarting(self, record: JobRecord, delay: float) -> None:
        """Begin the next attempt in ``delay`` seconds; this one has given everything back."""
        job_id = record.detail.id
        self._jobs[job_id].record = record
        self._feed.changed(job_id)
        self._machine.restarting(job_id, delay)
        self._runner.run_actions()

    async def job_released(self, job_id: str) -> None:
        """Stop the JobMaster of a job that has ended and has given everything back, and clean up after it."""
        self._machine.released(job_id)
        self._runner.run_actions()


def _files(submission: JobSubmission) -> Mapping[str, int]:
    """Sizes by digest."""
    return {ref.sha256: ref.size for ref in submission.blobs}
