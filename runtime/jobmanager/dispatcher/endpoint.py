"""The Dispatcher: accepts submissions, writes them down, starts one JobMaster each, remembers what became of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import msgspec

from sluice.core.errors import SluiceError
from sluice.core.tracing import TRACING
from sluice.core.untrusted_files import remove_untrusted
from sluice.runtime.blob.errors import BlobError
from sluice.runtime.ha.errors import (
    EntryMissing,
    LeadershipLost,
    OutcomeUnknown,
    PointersFull,
)
from sluice.runtime.jobmanager.attempt.job_master import JobMaster
from sluice.runtime.jobmanager.attempt.local_driver import attempt_directory
from sluice.runtime.jobmanager.dispatcher.durable_writes import persistently, unwritten
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail, ended_record, interrupted_record
from sluice.runtime.jobmanager.dispatcher.job_register import JobRegister, RegisteredJob
from sluice.runtime.jobmanager.dispatcher.orphan_cleanup import end_remains, end_remains_of, wait_for
from sluice.runtime.jobmanager.dispatcher.submission_checks import check_submission
from sluice.runtime.jobmanager.errors import JobAlreadyTerminal, QuotaExceeded, SubmissionRejected
from sluice.runtime.jobmanager.restart_strategies import restarts
from sluice.runtime.jobmanager.store.job_history import JobHistory
from sluice.runtime.jobmanager.store.job_store import AcceptedJob
from sluice.runtime.jobmanager.views import Failure, JobDetail, JobRecord
from sluice.runtime.messages import (
    BlobRef,
    JobKind,
    JobState,
    JobSubmission,
)
from sluice.runtime.restart_config import settle

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

ATTEMPTS_WITH_LOGS = 5
"""Latest attempts of a job whose logs are kept: a streaming job may be restarted for ever."""


class Dispatcher(JobRegister):
    """See the module's documentation. It exists while its process leads."""

    async def on_start(self) -> None:
        """Read what there is; jobs that an earlier leader left unfinished start again when nothing of them runs."""
        recovered = await self._store.recover()
        histories = {each.job_id: await self._histories.get(each.job_id) for each in recovered.accepted}
        await asyncio.to_thread(end_remains, self._directory)
        for ended in recovered.ended:
            self._jobs[ended.summary.id] = RegisteredJob(ended_record(ended), clean=not ended.dirty)
            if ended.dirty:
                self.hand_off(self._clean_up(ended.summary.id), failed=self.note_failure)
        await asyncio.to_thread(self._remove_blobs)
        for accepted in recovered.accepted:  # they fetch their files anew
            history = histories[accepted.job_id]
            job = self._jobs[accepted.job_id] = self._new(interrupted_record(accepted, history), history)
            job.cancelled = accepted.cancelled
            if not accepted.cancelled:
                self._queue.enter_again(accepted.job_id, accepted.owner)
            _LOG.info("recovering job %s (%s) of %s", accepted.job_id, accepted.name, accepted.owner)
            self._launch(job, self._recover(accepted, job))
        await asyncio.to_thread(self._trim_directories, frozenset(self._jobs))
        self._trim_archive()

    def _remove_blobs(self) -> None:
        for job_id in self._blobs.jobs():
            self._blobs.remove_job(job_id)

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
        # Whoever submits it may give up waiting; what becomes of the job is decided all the same, and once.
        accepting = job.accepting = self.hand_off(
            self._accept(job_id, job), failed=lambda error: self._not_accepted(job_id, error)
        )
        return self.deferred(asyncio.shield(accepting))

    def _not_accepted(self, job_id: str, error: BaseException) -> None:
        if isinstance(error, SluiceError):
            _LOG.info("job %s was not accepted: %s", job_id, error)
        else:
            self.note_failure(error)

    async def _check_size(self, submission: JobSubmission) -> None:
        """Raise :class:`SubmissionRejected` when its executors would fit nowhere; without TaskManagers it waits."""
        why = await self._resource_manager.too_large(self._services.driver_host.executor_size(submission))
        if why:
            raise SubmissionRejected(
                f"its executors are too large: {why}", "lower --executor-memory or --executor-cores, or the defaults"
            )

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

    def _new(self, record: JobRecord, history: JobHistory | None = None) -> RegisteredJob:
        """A job that is to be run; a Spark Connect session is its client's to start again."""
        job = RegisteredJob(record, history=history or JobHistory())
        if record.submission.kind is JobKind.PIPELINE:
            settings = settle(self._restart, record.submission.restart)
            job.restarts = restarts(
                settings,
                checkpointed=lambda: job.record.detail.checkpoints > 0,
                chance=self._chance,
                memory=job.history.restarts,
            )
        return job

    async def _accept(self, job_id: str, job: RegisteredJob) -> None:
        """Make the job durable, then start it; outside the main thread because its JobMaster reports to that."""
        submission, accepted_at = job.record.submission, job.record.detail.start_time
        try:
            await self._check_size(submission)
            with TRACING.span("dispatcher accept", submission.trace, job=job_id):
                await self._store.accept(
                    job_id, submission, accepted_at, lambda digest: self._blobs.path(job_id, digest)
                )
        except LeadershipLost:
            self._unregister(job_id)
            raise
        except Exception:
            await self._reject(job_id)
            raise
        job.accepting = None
        _LOG.info("accepted job %s (%s) of %s", job_id, submission.name, submission.owner)
        self._launch(job, self._start(job_id, job))

    async def _reject(self, job_id: str) -> None:
        """Nobody is told that a job was not accepted before no leader would run it."""
        try:
            await self._persistently(lambda: self._store.reject(job_id), "undoing its acceptance")
        except SluiceError as error:
            raise OutcomeUnknown(
                f"job {job_id} was not accepted, and that could not be written down: {error}",
                "look whether it is in the list of jobs before it is submitted again",
            ) from error
        finally:
            self._unregister(job_id)
        self.hand_off(self._withdraw(job_id), failed=self.note_failure)

    async def _withdraw(self, job_id: str) -> None:
        await asyncio.to_thread(self._blobs.remove_job, job_id)
        await self._persistently(lambda: self._store.withdraw(job_id), "removing what was not accepted")

    def _unregister(self, job_id: str) -> None:
        del self._jobs[job_id]
        self._queue.leave(job_id)
        self._feed.changed(job_id)

    def _launch(self, job: RegisteredJob, work: Coroutine[Any, Any, None]) -> None:
        """Start ``job``; one that cannot be started has failed, unless it is another leader's by now."""

        def failed(error: BaseException) -> None:
            if isinstance(error, LeadershipLost):
                _LOG.info("job %s is left to the next leader: %s", job.record.detail.id, error)
            elif isinstance(error, SluiceError):
                self.hand_off(self._give_up(job, f"it cannot be started: {error}"), failed=self.note_failure)
            else:
                self.note_failure(error)
                why = f"internal error of the JobManager: {type(error).__name__}"
                self.hand_off(self._give_up(job, why), failed=self.note_failure)

        task = self.hand_off(work, failed=failed)
        self._launching.add(task)
        task.add_done_callback(self._launching.discard)

    async def _recover(self, accepted: AcceptedJob, job: RegisteredJob) -> None:
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

    async def _start(self, job_id: str, job: RegisteredJob) -> None:
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
        await asyncio.to_thread(remove_untrusted, forgotten.parent, forgotten.name)
        self._term.check()
        master = job.master = JobMaster(job.record, self._services, attempt=attempt)
        try:
            await self.service.start(master)
        except SluiceError:
            job.master = None
            raise
        if job.cancelled:
            await self._cancel_master(job_id)

    async def _give_up(self, job: RegisteredJob, why: str) -> None:
        _LOG.error("job %s cannot be run: %s", job.record.detail.id, why)
        await self._conclude(job, JobState.FAILED, Failure(error=why))

    async def _conclude(self, job: RegisteredJob, state: JobState, failure: Failure | None = None) -> None:
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

    async def _cancel(self, job_id: str, job: RegisteredJob) -> None:
        """The wish is made durable first: a job that was cancelled is not started by the next leader."""
        if job.accepting is not None:
            await asyncio.wait([job.accepting])
            self._job(job_id)  # it may not have been accepted
        await self._persistently(lambda: self._store.cancel(job_id), "its cancellation")
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

    async def _end(self, job: RegisteredJob, record: JobRecord) -> None:
        """The job is terminal for everybody as soon as its result is durable, and not before.

        With a result that is refused for good it has failed for this leader, and gives everything back.
        """
        try:
            await self._put_result(record)
        except LeadershipLost:
            raise
        except SluiceError as error:
            _LOG.error("the end of job %s cannot be written down: %s", record.detail.id, error)
            record = unwritten(record, error, self._now_ms())
        job.record = record
        self._queue.leave(record.detail.id)
        self._feed.changed(record.detail.id)
        await asyncio.to_thread(self._blobs.remove_job, record.detail.id)

    async def _put_result(self, record: JobRecord) -> None:
        while True:
            try:
                await self._persistently(lambda: self._store.put_result(record), "its result")
            except PointersFull:
                oldest = next((job_id for job_id, job in self._jobs.items() if job.clean), None)
                if oldest is None:
                    raise
                _LOG.warning("job %s is forgotten, to make room for the result of %s", oldest, record.detail.id)
                self._drop(oldest)
                await self._forget(oldest)
            else:
                return

    async def attempt_failed(self, job_id: str) -> float | None:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        return None if job.cancelled else self.deferred(self._decide(job_id, job))

    async def _decide(self, job_id: str, job: RegisteredJob) -> float | None:
        """What the strategy counts is durable before anything follows from it."""
        delay = job.restarts.failed(self._clock())
        if delay is not None:
            try:
                await self._persistently(lambda: self._keep_history(job_id, job), "its history")
            except LeadershipLost:
                raise
            except SluiceError as error:  # this leader counts on, and the next one begins with what it finds
                self._history_not_kept(job_id, error)
        return delay

    async def job_history(self, job_id: str, history: JobHistory) -> None:
        """See :class:`DispatcherGateway`."""
        job = self._jobs.get(job_id)
        if job is None or job.record.detail.state.terminal:
            return
        job.history = history
        self.hand_off(self._keep_history(job_id, job), failed=lambda error: self._history_not_kept(job_id, error))

    async def _keep_history(self, job_id: str, job: RegisteredJob) -> None:
        await self._keeper.keep(job_id, msgspec.structs.replace(job.history, restarts=job.restarts.memory))

    def _history_not_kept(self, job_id: str, error: BaseException) -> None:
        """It comes again with the next change."""
        if isinstance(error, SluiceError):
            _LOG.warning("the history of job %s is not written down: %s", job_id, error)
        else:
            self.note_failure(error)

    async def job_restarting(self, record: JobRecord, delay: float) -> None:
        """See :class:`DispatcherGateway`."""
        job_id = record.detail.id
        job = self._job(job_id)
        job.record = record
        self._feed.changed(job_id)
        master, job.master = job.master, None
        if master is not None:
            self._launch(job, self._restart_later(job_id, job, master, delay))

    async def _restart_later(self, job_id: str, job: RegisteredJob, master: JobMaster, delay: float) -> None:
        """The next attempt begins when nothing of the last one runs, however long that takes."""
        await self.service.stop(master)
        await asyncio.to_thread(end_remains_of, self._directory / job_id)
        await self._persistently(lambda: self._store.end_attempt(job_id), "the end of its attempt")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(job.woken.wait(), delay)
        await self._start(job_id, job)

    async def job_released(self, job_id: str) -> None:
        """See :class:`DispatcherGateway`."""
        job = self._job(job_id)
        master, job.master = job.master, None
        if master is not None:
            self.hand_off(self._remove(job_id, master), failed=self.note_failure)

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
        return await persistently(work, what, self._term.check)

    def _trim_archive(self) -> None:
        ended = [job_id for job_id, job in self._jobs.items() if job.clean]
        for job_id in ended[: max(0, len(ended) - self._kept)]:
            self._drop(job_id)
            self.hand_off(self._forget(job_id), failed=self.note_failure)

    def _drop(self, job_id: str) -> None:
        del self._jobs[job_id]
        self._feed.changed(job_id)

    async def _forget(self, job_id: str) -> None:
        self._keeper.forget(job_id)
        await asyncio.to_thread(remove_untrusted, self._directory, job_id)
        await self._persistently(lambda: self._store.forget(job_id), "its removal")

    def _trim_directories(self, known: AbstractSet[str]) -> None:
        """Of jobs that this home has run and nobody knows any more, keep no more logs than of those that are known."""
        unknown = [path for path in self._directory.iterdir() if path.is_dir() and path.name not in known]
        unknown.sort(key=lambda path: path.stat().st_mtime)
        for path in unknown[: max(0, len(unknown) - self._kept)]:
            remove_untrusted(self._directory, path.name)
