"""The JobMaster: one attempt of a job, from its beginning to its end or to the decision to try again.

It carries out what :class:`~sluice.runtime.jobmanager.attempt.executor_pool.ExecutorPool` and
:mod:`~sluice.runtime.jobmanager.job_state` decide: starts the driver, asks for slots, has executors launched in them,
replaces those that end, cancels, and judges the end. Permanently fenced: its token lives as long as the attempt, so
that nothing of an earlier attempt reaches a later one (ADR 39).

This module has its course: beginning, end, and what follows. Its other sides, each on top of the one before, are
:mod:`~sluice.runtime.jobmanager.attempt.state`, :mod:`~sluice.runtime.jobmanager.attempt.driver`,
:mod:`~sluice.runtime.jobmanager.attempt.executors` and :mod:`~sluice.runtime.jobmanager.attempt.streaming`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sluice.core.errors import PeerRefused, SluiceError
from sluice.core.tracing import TRACING
from sluice.runtime.checkpoint.errors import CheckpointLost, SavepointNotFound
from sluice.runtime.gateways import DRIVER, DriverGateway
from sluice.runtime.ha.errors import LeadershipLost
from sluice.runtime.jobmanager.attempt.driver_process import describe_end
from sluice.runtime.jobmanager.attempt.executor_pool import ExecutorState
from sluice.runtime.jobmanager.attempt.streaming import AttemptStreaming
from sluice.runtime.jobmanager.errors import JobAlreadyTerminal
from sluice.runtime.jobmanager.job_state import ENDING, Verdict, judge_attempt
from sluice.runtime.jobmanager.views import Failure, JobRecord
from sluice.runtime.messages import (
    DriverAssignment,
    DriverExit,
    Evidence,
    JobKind,
    JobState,
)
from sluice.runtime.node.child_process import ChildProcess, Exit
from sluice.runtime.node.evidence import merge
from sluice.runtime.rpc import (
    EndpointNotFound,
    EndpointStopped,
    MailboxFull,
    RpcTimeout,
)

_LOG = logging.getLogger(__name__)

_T = TypeVar("_T")

TOLD_AGAIN_SECONDS = 1.0
"""Before the Dispatcher or the ResourceManager is told again what it had no room for."""
DRIVER_EXIT_GRACE_SECONDS = 20.0
"""How long a driver agent may live on after it has reported the end of its work."""


class JobMaster(AttemptStreaming):
    """See the module's documentation."""

    async def on_start(self) -> None:
        """Start the driver, and ask for slots meanwhile."""
        self._life.to(JobState.CREATED, self._now_ms())
        self._chronicle.begin(self._attempt_number, self._now_ms())
        self._tell_history()
        self._span = TRACING.begin("job attempt", self._submission.trace, job=self.job_id, attempt=self._attempt_number)
        self._reconcile()
        self._repeat_requirement()
        self.hand_off(self._start_driver(), then=self._driver_started, failed=self._driver_not_started)

    def _trace_end(self) -> None:
        failed = self._failure is not None and self._life.state in {JobState.FAILED, JobState.RESTARTING}
        self._span.end("the attempt failed" if failed else "")

    async def on_stop(self) -> None:
        """The JobManager stops, or the job is over: nothing of it stays behind in this process."""
        if self._life.may(JobState.SUSPENDED):
            self._life.to(JobState.SUSPENDED, self._now_ms())
        self._shuffle.close()
        if self._child is not None and self._child.running:
            await self._child.stop(self._last_grace())
            await self._ask_taskmanagers(lambda gateway: gateway.release_job(self.job_id))
        await self._recorder.flush()
        await asyncio.to_thread(self._attempt.clean_up)

    def on_failure(self, error: BaseException) -> None:
        """An error of its own leaves nobody to do what was to be done: better the job fails than waits for ever."""
        super().on_failure(error)
        if not isinstance(error, SluiceError):  # else a call failed, as calls do, and heartbeats or retries follow
            self._fail(f"internal error of its JobMaster: {type(error).__name__}")

    async def _start_driver(self) -> ChildProcess:
        await self._recorder.restore(self._submission.savepoint)
        return await self._attempt.start()

    def _driver_started(self, child: ChildProcess) -> None:
        self._child = child
        self.hand_off(child.wait(), then=self._driver_ended)
        self.call_later(self._services.driver_start_timeout, self._check_registered)
        self._watch_driver_identity()
        if self._life.state in ENDING:
            self._stop_driver(self._services.cancel_grace)

    def _driver_not_started(self, error: BaseException) -> None:
        _LOG.error("job %s: the driver cannot be started: %s", self.job_id, error)
        self._hopeless = isinstance(error, CheckpointLost | SavepointNotFound)
        self._fail(f"the driver cannot be started: {error}")
        self._conclude_attempt("it was never started")

    def _driver_ended(self, ended: Exit) -> None:
        _LOG.info("job %s: the driver process ended: %s", self.job_id, ended)
        self._conclude_attempt(describe_end(ended))

    def _conclude_attempt(self, process_end: str) -> None:
        self._pool.close()
        self.hand_off(
            self._settle(),
            then=lambda evidence: self._conclude(process_end, evidence),
            failed=lambda error: self._unsettled(process_end, error),
        )

    def _unsettled(self, process_end: str, error: BaseException) -> None:
        """What the attempt leaves behind could not be gathered; it is over all the same."""
        _LOG.error("job %s: its last records are lost: %s", self.job_id, type(error).__name__, exc_info=error)
        self._conclude(process_end, Evidence())

    async def _settle(self) -> Evidence:
        await self._recorder.settle()
        if self._desk.stopping and self._life.state is JobState.RUNNING and self._result is not None:
            if self._idle_pipeline:  # it was ended by us, and that is no failure
                self._result = DriverExit(succeeded=True, exit_code=0)
            if self._result.succeeded:
                await self._take_savepoint()
        return await self._collect_connections()

    def _conclude(self, process_end: str, evidence: Evidence) -> None:
        self._desk.fail(f"the attempt ended: {process_end}")
        verdict = self._judge(process_end)
        if verdict.error and self._failure is None:
            self._failure = Failure(error=verdict.error, traceback=verdict.traceback)
        for executor in self._pool.executors:
            if executor.state is not ExecutorState.EXITED:
                executor.state, executor.exit_reason = ExecutorState.EXITED, "the attempt ended"
        if not verdict.failed:
            self._end(verdict.path, evidence)
            return
        failure = self._failure or Failure(error=process_end)
        self._chronicle.note(self._now_ms(), failure.error, failure.traceback, ended_attempt=True)
        self._chronicle.end(JobState.FAILED.value, self._now_ms(), failure.error)
        self._tell_history()  # durable before it is decided what follows
        for state in verdict.path[:-1]:
            self._life.to(state, self._now_ms())
        self._publish()
        if self._hopeless:
            self._go_on(None, evidence)
            return
        self.hand_off(
            self._told(lambda: self._services.dispatcher.attempt_failed(self.job_id)),
            then=lambda delay: self._go_on(delay, evidence),
            failed=lambda error: self._undecided(evidence, error),
        )

    def _undecided(self, evidence: Evidence, error: BaseException) -> None:
        """Nobody says whether there is to be another attempt, so there is none, unless another leader decides."""
        if isinstance(error, LeadershipLost | EndpointStopped | EndpointNotFound):
            _LOG.info("job %s is left to the next leader: %s", self.job_id, error)
            return
        _LOG.error("job %s: it was not decided whether it is restarted: %s", self.job_id, error)
        self._go_on(None, evidence)

    def _judge(self, process_end: str) -> Verdict:
        verdict = judge_attempt(self._life.state, self._result, process_end)
        if not self._desk.asked_to_stop or verdict.path != (JobState.FINISHED,):
            return verdict
        if self._desk.stopped:
            return verdict
        return Verdict((JobState.FAILING, JobState.FAILED), f"the savepoint failed: {self._desk.requests[-1].error}")

    def _go_on(self, delay: float | None, evidence: Evidence) -> None:
        """The attempt failed, and the restart strategy has decided; somebody may have cancelled the job meanwhile."""
        if self._life.state is JobState.CANCELLING:
            self._end((JobState.CANCELED,), evidence)
        elif delay is None:
            self._end((JobState.FAILED,), evidence)
        else:
            self._restart(delay, evidence)

    def _end(self, path: tuple[JobState, ...], evidence: Evidence) -> None:
        for state in path:
            self._life.to(state, self._now_ms())
        failed = self._life.state is JobState.FAILED and self._failure is not None
        error = self._failure.error if failed and self._failure is not None else ""
        self._chronicle.end(self._life.state.value, self._now_ms(), error)
        _LOG.info("job %s is %s", self.job_id, self._life.state)
        self._trace_end()
        self.hand_off(self._release(self._record(evidence)))

    def _restart(self, delay: float, evidence: Evidence) -> None:
        error = self._failure.error if self._failure is not None else "it failed"
        self._life.to(JobState.RESTARTING, self._now_ms())
        self._pending_reason = (
            f"attempt {self._attempt_number} failed, the next one starts after {round(delay, 1):g} s: {error}"
        )
        _LOG.warning("job %s: %s", self.job_id, self._pending_reason)
        self._trace_end()
        self._publish()
        self.hand_off(self._hand_on(self._record(evidence), delay))

    def _record(self, evidence: Evidence) -> JobRecord:
        seen = merge(self._earlier_connections, evidence)
        return JobRecord(
            submission=self._submission,
            detail=self._detail(),
            connections=seen.connections,
            connections_dropped=seen.dropped,
            exceptions=self._chronicle.exceptions,
            checkpoints=self._recorder.view,
            savepoints=self._desk.requests,
            stages=self._stages,
        )

    async def _hand_on(self, record: JobRecord, delay: float) -> None:
        """Give everything back, and leave the job to the JobMaster of the next attempt."""
        await self._give_back()
        await self._told(lambda: self._services.dispatcher.job_restarting(record, delay))

    async def _release(self, record: JobRecord) -> None:
        """Tell the result and give everything back, then go.

        Slots do not wait until the result is durable, which takes as long as the storage is away.
        """
        telling = asyncio.ensure_future(self._told(lambda: self._services.dispatcher.job_ended(record)))
        try:
            await self._give_back()
            await telling
        finally:
            telling.cancel()
        await self._shuffle.release()
        await self._told(lambda: self._services.dispatcher.job_released(self.job_id))

    async def _give_back(self) -> None:
        await self._ask_taskmanagers(lambda gateway: gateway.release_job(self.job_id))
        try:
            await self._told(lambda: self._services.resource_manager.release_job(self.job_id))
        except SluiceError as error:
            _LOG.warning("job %s: its slots could not be given back: %s", self.job_id, error)

    async def _told(self, tell: Callable[[], Awaitable[_T]]) -> _T:
        """What is answered; told again when the one who is told is busy, for as long as this process leads."""
        while True:
            try:
                return await tell()
            except (MailboxFull, RpcTimeout) as error:
                _LOG.warning("job %s: telling it again: %s", self.job_id, error)
            await asyncio.sleep(TOLD_AGAIN_SECONDS)
            self._services.check_leadership()

    async def cancel(self) -> None:
        """See :class:`~sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        if self._life.state.terminal:
            raise JobAlreadyTerminal(f"job {self.job_id} is {self._life.state}")
        if self._life.state in {JobState.CANCELLING, JobState.RESTARTING}:
            return  # the Dispatcher knows the wish, and starts no further attempt
        self._life.to(JobState.CANCELLING, self._now_ms())
        self._end_driver()
        self._publish()

    async def register_driver(self, attempt: int, pid: int) -> DriverAssignment:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        self._services.check_leadership()
        peer = self.caller.peer
        if peer is None or attempt != self._attempt_number or self._life.state.terminal:
            raise PeerRefused(f"attempt {attempt} of job {self.job_id} is not the current one", "it must end")
        _LOG.info("job %s: driver attempt %d registered, pid %d", self.job_id, attempt, pid)
        self._driver_peer, self._driver = peer, peer.gateway(DriverGateway, DRIVER)
        if self._life.state is JobState.CREATED:
            self._life.to(JobState.RUNNING, self._now_ms())
        self._publish()
        return DriverAssignment(
            pipeline=self._submission.pipeline,
            files=self._submission.files,
            py_files=self._submission.py_files,
            archives=self._submission.archives,
            python=self._submission.python,
            args=self._submission.args,
            spark_conf={**self._services.spark_defaults, **self._submission.spark_conf},
            spark_auth_secret=self._spark_auth_secret,
            blob_host=self._services.blob_address[0],
            blob_port=self._services.blob_address[1],
            kind=self._submission.kind,
            shuffle=self._shuffle.enabled,
            checkpoints=self._recorder.location if self._submission.kind is JobKind.PIPELINE else "",
        )

    async def renew_lease(self, attempt: int) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        self._services.check_leadership()
        if attempt != self._attempt_number or self._life.state.terminal:
            raise PeerRefused(f"attempt {attempt} of job {self.job_id} is not the current one", "it must end")

    async def driver_finished(self, result: DriverExit) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        if self._result is None:
            self._result = result
            self.call_later(DRIVER_EXIT_GRACE_SECONDS, self._kill_driver)
