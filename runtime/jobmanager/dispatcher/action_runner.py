"""Carries out what the Dispatcher's state machine decides, and reports the outcomes to it as events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from sluice.core import TRACING, SluiceError, end_tasks
from sluice.runtime.blob import BlobError, BlobStore
from sluice.runtime.ha import EntryMissing, Leadership, LeadershipLost, OutcomeUnknown, PointersFull
from sluice.runtime.jobmanager.attempt import JobMaster, JobServices, Resumption
from sluice.runtime.jobmanager.dispatcher import actions
from sluice.runtime.jobmanager.dispatcher.durable_writes import retry_while_unavailable, unwritten_result_record
from sluice.runtime.jobmanager.dispatcher.job_archiving import JobArchiver
from sluice.runtime.jobmanager.dispatcher.job_feed import JobFeed
from sluice.runtime.jobmanager.dispatcher.orphaned_drivers import seconds_until_gone
from sluice.runtime.jobmanager.dispatcher.registered_job import RegisteredJobs
from sluice.runtime.jobmanager.dispatcher.state_machine import DispatcherStateMachine
from sluice.runtime.jobmanager.errors import SubmissionRejected
from sluice.runtime.jobmanager.gateways import ResourceManagerInternalGateway
from sluice.runtime.jobmanager.store import AcceptedJob, HistoryKeeper, JobStore
from sluice.runtime.jobmanager.views import Failure, JobRecord
from sluice.runtime.messages import BlobRef, JobState, JobSubmission
from sluice.runtime.rpc import RpcEndpoint

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class AttemptUnknown(SluiceError):
    """A JobMaster should start for an attempt that is not in the store."""


class FilesLost(SluiceError):
    """The files of a job that an earlier leader accepted are not in the HA storage."""


class ActionRunner:
    """The Dispatcher's hands: the store, the files of jobs, and their JobMasters.

    Args:
        machine: decides; it is told the outcomes.
        store: where jobs are written down.
        keeper: writes their past down.
        archiver: adds ended jobs to the history.
        blobs: whose job folders are removed when a job is over.
        resource_manager: knows which executors are too large.
        lease: of drivers, in seconds (see :mod:`sluice.runtime.jobmanager.dispatcher.orphaned_drivers`).
        feed: told of every change of a job.
        clock: epoch seconds.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        machine: DispatcherStateMachine,
        jobs: RegisteredJobs,
        *,
        store: JobStore,
        keeper: HistoryKeeper,
        archiver: JobArchiver,
        term: Leadership,
        blobs: BlobStore,
        resource_manager: ResourceManagerInternalGateway,
        services: JobServices,
        lease: float,
        feed: JobFeed,
        clock: Callable[[], float],
    ) -> None:
        self._endpoint = endpoint
        self._machine = machine
        self._jobs = jobs
        self._store = store
        self._keeper = keeper
        self._term = term
        self._blobs = blobs
        self._archiver = archiver
        self._resource_manager = resource_manager
        self._services = services
        self._lease = lease
        self._feed = feed
        self._clock = clock
        self._recovering: dict[str, AcceptedJob] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        """Files of running jobs, for their next attempts."""
        self._launching: set[asyncio.Task[None]] = set()
        self._stopping = False

    def run_actions(self) -> None:
        """Carry out the actions that the latest events have caused."""
        for action in self._machine.take_actions():
            self._run(action)

    def recover(self, job: AcceptedJob) -> None:
        """Remember what an earlier leader stored about a job that is about to be recovered."""
        self._recovering[job.job_id] = job

    async def stop_launching(self) -> None:
        """Start no more jobs."""
        self._stopping = True
        for task in self._launching:
            task.cancel()
        if self._launching:
            await asyncio.wait(self._launching)

    def _run(self, action: actions.Action) -> None:  # one case for each action
        job_id = action.job_id
        match action:
            case actions.Accept():
                self._jobs[job_id].accepting = self._endpoint.hand_off(
                    self._accept(job_id), failed=lambda error: self._not_accepted(job_id, error)
                )
            case actions.Recover():
                self._launch(job_id, self._recover(self._recovering.pop(job_id)))
            case actions.BeginAttempt():
                self._launch(job_id, self._begin_attempt(job_id))
            case actions.StartMaster():
                self._launch(job_id, self._start_master(job_id, resumed=action.resumed))
            case actions.EndAttempt():
                self._launch(job_id, self._end_attempt(job_id))
            case actions.StartDelay():
                self._endpoint.call_later(action.seconds, self._delay_over, job_id)
            case actions.CancelMaster():
                self._hand_off(self.cancel_master(job_id))
            case actions.Conclude():
                self._hand_off(self._conclude(job_id, action.state, action.error))
            case actions.RemoveMaster():
                self._hand_off(self._remove_master(job_id))
            case actions.CleanUp():
                self._hand_off(self._clean_up(job_id))
            case actions.Forget():
                self._drop(job_id)
                self._hand_off(self._forget(job_id))

    def _hand_off(self, work: Coroutine[Any, Any, None]) -> None:
        self._endpoint.hand_off(work, failed=self._log_failure)

    def _log_failure(self, error: BaseException) -> None:
        if isinstance(error, LeadershipLost):
            _LOG.info("left to the next leader: %s", error)
        else:
            self._endpoint.note_failure(error)

    # --- acceptance -----------------------------------------------------------------------------------------

    async def _accept(self, job_id: str) -> None:
        """Make the job durable; not on the main thread, which would block meanwhile."""
        job = self._jobs[job_id]
        submission, accepted_at = job.record.submission, job.record.detail.start_time
        try:
            await self._check_size(submission)
            with TRACING.span("dispatcher accept", submission.trace, job=job_id):
                await self._store.accept(
                    job_id, submission, accepted_at, lambda digest: self._blobs.path(job_id, digest)
                )
        except LeadershipLost:
            self._dropped(job_id)
            raise
        except Exception:
            await self._reject(job_id)
            raise
        job.accepting = None
        _LOG.info("accepted job %s (%s) of %s", job_id, submission.name, submission.owner)
        self._machine.accepted(job_id)
        self.run_actions()

    def _not_accepted(self, job_id: str, error: BaseException) -> None:
        if isinstance(error, SluiceError):
            _LOG.info("job %s was not accepted: %s", job_id, error)
        else:
            self._endpoint.note_failure(error)

    async def _check_size(self, submission: JobSubmission) -> None:
        """Raise :class:`SubmissionRejected` when its executors would fit nowhere; without TaskManagers it waits."""
        why = await self._resource_manager.too_large(self._services.drivers.executor_size(submission))
        if why:
            raise SubmissionRejected(
                f"its executors are too large: {why}", "lower --executor-memory or --executor-cores, or the defaults"
            )

    async def _reject(self, job_id: str) -> None:
        """Reject a job; report that once no later leader can run it."""
        try:
            await self._persistently(lambda: self._store.reject(job_id), "undoing its acceptance")
        except SluiceError as error:
            raise OutcomeUnknown(
                f"job {job_id} was not accepted, and that could not be written down: {error}",
                "look whether it is in the list of jobs before it is submitted again",
            ) from error
        finally:
            self._dropped(job_id)
        self._hand_off(self._withdraw(job_id))

    def _dropped(self, job_id: str) -> None:
        self._drop(job_id)
        self._machine.dropped(job_id)
        self.run_actions()

    async def _withdraw(self, job_id: str) -> None:
        await asyncio.to_thread(self._blobs.remove_job, job_id)
        await self._persistently(lambda: self._store.withdraw(job_id), "removing what was not accepted")

    # --- attempts -------------------------------------------------------------------------------------------

    def _launch(self, job_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Take one step towards the next attempt of ``job_id``; if that fails, so does the job.

        Unless the job is another leader's by now.
        """

        def failed(error: BaseException) -> None:
            if isinstance(error, LeadershipLost):
                _LOG.info("job %s is left to the next leader: %s", job_id, error)
                return
            if isinstance(error, SluiceError):
                why = f"it cannot be started: {error}"
            else:
                self._endpoint.note_failure(error)
                why = f"internal error of the JobManager: {type(error).__name__}"
            self._give_up(job_id, why)

        if self._stopping:
            work.close()
            return
        task = self._endpoint.hand_off(work, failed=failed)
        self._launching.add(task)
        task.add_done_callback(self._launching.discard)

    def _give_up(self, job_id: str, why: str) -> None:
        self._machine.failed_to_start(job_id, why)
        self.run_actions()

    async def _recover(self, accepted: AcceptedJob) -> None:
        """Start a job of an earlier leader again."""
        job_id = accepted.job_id
        if accepted.submission is None:
            self._give_up(job_id, accepted.damage)
            return
        await self._fetch_all(accepted)
        self._machine.ready(job_id)
        self.run_actions()

    async def _fetch_all(self, accepted: AcceptedJob) -> None:
        """Copy the files of a job of an earlier leader; raises :class:`FilesLost`."""
        job_id, submission = accepted.job_id, accepted.submission
        try:
            for ref in submission.blobs if submission is not None else ():
                await self._persistently(lambda ref=ref: self._fetch(job_id, ref), "its files")  # type: ignore[misc]
        except (BlobError, EntryMissing) as error:
            raise FilesLost(f"its files in the HA storage cannot be read any more: {error}") from error

    async def _fetch(self, job_id: str, ref: BlobRef) -> None:
        def copy() -> None:
            with self._blobs.writer(job_id, ref.name) as writer:
                for chunk in self._store.blob_chunks(job_id, ref):
                    writer.write(chunk)
                writer.commit(ref.sha256)

        await asyncio.to_thread(copy)

    async def _begin_attempt(self, job_id: str) -> None:
        fetching = self._fetching.pop(job_id, None)
        if fetching is not None:  # its last attempt continued under this leader
            await fetching
        attempt = await self._persistently(lambda: self._store.begin_attempt(job_id), "its attempt")
        self._jobs[job_id].attempt = attempt
        self._machine.attempt_begun(job_id, attempt.number)
        self.run_actions()

    async def _start_master(self, job_id: str, *, resumed: bool) -> None:
        job = self._jobs[job_id]
        attempt = job.attempt
        if attempt is None:
            raise AttemptUnknown(f"no attempt of job {job_id} has begun")
        self._term.check()
        resumption = None
        if resumed:
            self._fetching[job_id] = self._endpoint.hand_off(
                self._fetch_all(self._recovering.pop(job_id)),
                failed=lambda error: _LOG.warning("job %s could not start again: %s", job_id, error),
            )
            seconds = seconds_until_gone(granted_at=self._term.granted_at, lease=self._lease, now=time.monotonic())
            resumption = Resumption(attempt.taskmanager, seconds)
        master = job.master = JobMaster(
            job.record,
            self._services,
            attempt=attempt.number,
            token=attempt.fencing_token,
            resumption=resumption,
        )
        try:
            await self._endpoint.service.start(master)
        except SluiceError:
            job.master = None
            raise
        self._machine.master_started(job_id)
        self.run_actions()

    async def cancel_master(self, job_id: str) -> None:
        """Tell the JobMaster of a job, when one runs, that the job is cancelled."""
        master = self._jobs[job_id].master_gateway(self._endpoint.service)
        if master is not None:
            await master.cancel()

    async def _end_attempt(self, job_id: str) -> None:
        """End an attempt; the next one begins when nothing of it runs any more, however long that takes."""
        await self._stop_master(job_id)
        await self._persistently(lambda: self._store.end_attempt(job_id), "the end of its attempt")
        self._machine.attempt_over(job_id)
        self.run_actions()

    async def _stop_master(self, job_id: str) -> None:
        job = self._jobs[job_id]
        master, job.master = job.master, None
        if master is not None:
            await self._endpoint.service.stop(master)

    def _delay_over(self, job_id: str) -> None:
        self._machine.delay_over(job_id)
        self.run_actions()

    async def suspend_masters(self) -> None:
        """Leave all running jobs to the next leader."""
        masters = [job.master for job in self._jobs.values() if job.master is not None]
        await asyncio.gather(*(self._endpoint.service.stop(master) for master in masters))

    async def write_placement(self, job_id: str, taskmanager: str) -> None:
        """Make it durable where a driver is about to be launched."""
        await self._persistently(lambda: self._store.place_attempt(job_id, taskmanager), "where its driver runs")

    async def write_cancellation(self, job_id: str) -> None:
        """Make it durable that a job is to end: the next leader does not start it."""
        await self._persistently(lambda: self._store.cancel(job_id), "its cancellation")

    # --- the end --------------------------------------------------------------------------------------------

    async def _conclude(self, job_id: str, state: JobState, error: str) -> None:
        """End a job that has no JobMaster."""
        if error:
            _LOG.error("job %s cannot be run: %s", job_id, error)
        record, now = self._jobs[job_id].record, int(self._clock() * 1000)
        ended = msgspec.structs.replace(
            record.detail,
            state=state,
            end_time=now,
            duration_ms=max(0, now - record.detail.start_time),
            failure=Failure(error=error) if error else None,
            timestamps={**record.detail.timestamps, state.value: now},
            pending_reason="",
        )
        await self.end(job_id, msgspec.structs.replace(record, detail=ended))

    async def end(self, job_id: str, record: JobRecord) -> None:
        """End a job: it is terminal as soon as its result is durable, and not before.

        If the store refuses the result for good, the job has failed for this leader, and gives everything back.
        """
        job = self._jobs[job_id]
        try:
            await self._put_result(record)
        except LeadershipLost:
            raise
        except SluiceError as error:
            _LOG.error("the end of job %s cannot be written down: %s", job_id, error)
            record = unwritten_result_record(record, error, int(self._clock() * 1000))
        job.record = record
        self._machine.ended(job_id)
        self._feed.changed(job_id)
        self.run_actions()
        fetching = self._fetching.pop(job_id, None)
        if fetching is not None:
            await end_tasks(fetching)
        await asyncio.to_thread(self._blobs.remove_job, job_id)

    async def _put_result(self, record: JobRecord) -> None:
        while True:
            try:
                await self._persistently(lambda: self._store.put_result(record), "its result")
            except PointersFull:
                oldest = self._machine.make_room()
                if oldest is None:
                    raise
                _LOG.warning("job %s is forgotten, to make room for the result of %s", oldest, record.detail.id)
                self._drop(oldest)
                await self._forget(oldest)
            else:
                return

    async def _remove_master(self, job_id: str) -> None:
        await self._stop_master(job_id)
        await self._archiver.keep(job_id)
        await self._clean(job_id)

    async def _clean_up(self, job_id: str) -> None:
        if self._services.shuffle is not None:
            await self._services.shuffle.release_job(job_id)
        await self._archiver.keep(job_id, recovered=True)
        await self._clean(job_id)

    async def _clean(self, job_id: str) -> None:
        checkpoints = self._services.places.checkpoints
        await self._persistently(lambda: asyncio.to_thread(checkpoints.remove, job_id), "its checkpoints")
        await self._keeper.close(job_id)
        await self._persistently(lambda: self._store.clean(job_id), "its cleanup")
        self._machine.cleaned(job_id)
        self.run_actions()

    def _drop(self, job_id: str) -> None:
        del self._jobs[job_id]
        self._feed.changed(job_id)

    async def _forget(self, job_id: str) -> None:
        self._keeper.forget(job_id)
        await self._persistently(lambda: self._store.forget(job_id), "its removal")

    async def _persistently(self, work: Callable[[], Awaitable[_T]], what: str) -> _T:
        return await retry_while_unavailable(work, what, self._term.check)
