"""The JobMaster: one attempt of a job, from its beginning to its end or to the decision to try again.

It carries out what :class:`~runtime.jobmanager.executors.ExecutorPool` and
:mod:`~runtime.jobmanager.job_state` decide: starts the driver, asks for slots, has executors launched in them,
replaces those that end, cancels, and judges the end. Permanently fenced: its token lives as long as the attempt, so
that nothing of an earlier attempt reaches a later one (ADR 39).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from pki.connections import ConnectionLog
from pki.errors import PeerRefused, SluiceError
from pki.identity import SpiffeId
from pki.tracing import TRACING, Span
from runtime.checkpoint.errors import CheckpointLost, SavepointNotFound
from runtime.checkpoint.ledger import CheckpointsView
from runtime.checkpoint.savepoints import CheckpointPlaces, Savepoint
from runtime.evidence import from_log, merge
from runtime.gateways import DRIVER, TASK_EXECUTOR, DriverGateway, TaskExecutorGateway, jobmaster_endpoint
from runtime.ha.errors import LeadershipLost
from runtime.identity_renewal import LOOK_SECONDS, RenewalWatch
from runtime.jobmanager.checkpoint_recorder import CheckpointRecorder
from runtime.jobmanager.checkpoint_store import CheckpointStore
from runtime.jobmanager.chronicle import MAX_EXECUTORS_KEPT, Chronicle
from runtime.jobmanager.driver_attempt import DriverAttempt, DriverHost, describe_end
from runtime.jobmanager.errors import (
    ExecutorUnknown,
    JobAlreadyTerminal,
    UiNotFound,
)
from runtime.jobmanager.executors import Executor, ExecutorPool, ExecutorState
from runtime.jobmanager.gateways import (
    DispatcherGateway,
    JobMasterInternalGateway,
    ResourceManagerInternalGateway,
    SlotRequirement,
)
from runtime.jobmanager.history import JobHistory
from runtime.jobmanager.job_state import ENDING, JobLifecycle, Verdict, judge_attempt
from runtime.jobmanager.savepoint_desk import SavepointDesk
from runtime.jobmanager.shuffle_relay import ShuffleRelay
from runtime.jobmanager.views import ExceptionEntry, ExecutorView, Failure, JobDetail, JobRecord, SavepointRequest
from runtime.messages import (
    ConnectionEvidence,
    CsrToSign,
    DriverAssignment,
    DriverExit,
    ExecutorExit,
    ExecutorLaunch,
    ExecutorTargets,
    JobKind,
    JobProgress,
    JobState,
    ShuffleAllocation,
    SignedIdentity,
    SlotCount,
    SlotOffer,
    SparkRegistration,
    StageTable,
    StreamingState,
    TaskFailure,
    UiPage,
    UiRequest,
)
from runtime.process import ChildProcess, Exit
from runtime.rpc import PeerUnreachable, PermanentlyFencedRpcEndpoint, RemotePeer
from runtime.shuffle.manager_link import ShuffleManagerLink

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

TOKEN_BYTES = 16
AUTH_SECRET_BYTES = 32
REQUIREMENT_REPEAT_SECONDS = 2.0
"""How often an unmet requirement is stated again, and the reason for it refreshed."""
DRIVER_EXIT_GRACE_SECONDS = 20.0
"""How long a driver agent may live on after it has reported the end of its work."""
CANCEL_MARGIN_SECONDS = 5.0
"""A driver that was told to end gets its grace and this, then it is killed."""
RENEWAL_RETRY_SECONDS = 30.0
HISTORY_DELAY_SECONDS = 1.0
"""How long what went wrong may wait to be written down for the next leader."""
STOP_SECONDS = 30.0
"""How long a pipeline may go on after its streaming queries were stopped for a savepoint."""
KILL_GRACE_SECONDS = 2.0
"""What a driver that had its time gets between SIGTERM and SIGKILL."""
COLLECT_TIMEOUT_SECONDS = 5.0
"""How long TaskManagers are waited for when the evidence of an ended job is collected, and when it is released."""


UNNAMED_CONSEQUENCE = "a later attempt begins it anew; name it with queryName()"


@dataclass(frozen=True, slots=True)
class JobServices:
    """What every JobMaster of a process uses."""

    driver_host: DriverHost
    resource_manager: ResourceManagerInternalGateway
    dispatcher: DispatcherGateway
    blob_address: tuple[str, int]
    connections: ConnectionLog
    spark_defaults: dict[str, str]
    failure_budget: int
    driver_start_timeout: float
    cancel_grace: float
    checkpoints: CheckpointStore
    places: CheckpointPlaces
    slot_idle_timeout: float = float("inf")
    """Seconds for which slots are held before there is a SparkContext."""
    drain_timeout: float = 300.0
    """Seconds that executors get to end in order when their TaskManager is drained."""
    clock: Callable[[], float] = time.time
    check_leadership: Callable[[], None] = lambda: None
    """Raises ``LeadershipLost`` when this process does not lead (any more)."""
    shuffle: ShuffleManagerLink | None = None
    """To the shuffle service, where shuffles go through it."""


class JobMaster(PermanentlyFencedRpcEndpoint):
    """See the module's documentation.

    Args:
        before: the job, and what its earlier attempts have left.
        services: of the process.
        attempt: the number of this attempt.
    """

    def __init__(self, before: JobRecord, services: JobServices, *, attempt: int) -> None:
        job_id, submission = before.detail.id, before.submission
        token = secrets.token_bytes(TOKEN_BYTES)
        super().__init__(jobmaster_endpoint(job_id), JobMasterInternalGateway, token, job_id=job_id)
        self.token = token
        self._submission = submission
        self._services = services
        self._clock = services.clock
        self._life = JobLifecycle.resume(before.detail.state, before.detail.timestamps)
        self._started_at = before.detail.start_time
        self._chronicle = Chronicle.of(before)
        self._earlier_connections = before.connections
        host = services.driver_host
        self._pool = ExecutorPool(
            initial=submission.executors,
            slot_profile=host.executor_size(submission),
            failure_budget=services.failure_budget,
            next_id=self._chronicle.next_executor,
            idle_timeout=services.slot_idle_timeout,
        )
        self._attempt_number = attempt
        self._attempt = DriverAttempt(host, job_id, self._attempt_number, submission, token)
        self._recorder = CheckpointRecorder(job_id, attempt, services.checkpoints, services.places)
        self._desk = SavepointDesk(before.savepoints)
        self._hopeless = False
        self._idle_pipeline = False
        self._child: ChildProcess | None = None
        self._driver: DriverGateway | None = None
        self._driver_peer: RemotePeer | None = None
        self._result: DriverExit | None = None
        self._failure: Failure | None = None
        self._progress = JobProgress()
        self._stages = StageTable()
        self._span = Span()
        self._spark_auth_secret = secrets.token_hex(AUTH_SECRET_BYTES)
        self._taskmanagers: dict[str, TaskExecutorGateway] = {}
        self._pending_reason = ""
        self._stated: SlotRequirement | None = None
        self._shuffle = ShuffleRelay(services.shuffle, job_id)
        self._history_due = False

    # --- start and end ------------------------------------------------------------------------------------

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

    def _last_grace(self) -> float:
        """What the driver gets to end in order: nothing when another leader may start the job at any moment."""
        try:
            self._services.check_leadership()
        except LeadershipLost:
            return 0.0
        return self._services.cancel_grace

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

    def _check_registered(self) -> None:
        if self._driver is None:
            self._fail(f"the driver did not register within {self._services.driver_start_timeout:g} s")

    def _watch_driver_identity(self) -> None:
        self.call_later(LOOK_SECONDS, self._look_at_driver_identity, self._attempt.renewal_watch())

    def _look_at_driver_identity(self, watch: RenewalWatch) -> None:
        if watch.is_due():
            self._renew_driver_identity()
        elif self._child is not None and self._child.running:
            self.call_later(LOOK_SECONDS, self._look_at_driver_identity, watch)

    def _renew_driver_identity(self) -> None:
        if self._child is None or not self._child.running:
            return

        def renewed(_: None) -> None:
            self._watch_driver_identity()

        def failed(error: BaseException) -> None:
            _LOG.error("job %s: cannot renew the driver's identity: %s", self.job_id, error)
            self.call_later(RENEWAL_RETRY_SECONDS, self._renew_driver_identity)

        self.hand_off(self._attempt.renew_identity(), then=renewed, failed=failed)

    def _driver_ended(self, ended: Exit) -> None:
        _LOG.info("job %s: the driver process ended: %s", self.job_id, ended)
        self._conclude_attempt(describe_end(ended))

    def _conclude_attempt(self, process_end: str) -> None:
        self._pool.close()
        self.hand_off(self._settle(), then=lambda evidence: self._conclude(process_end, evidence))

    async def _settle(self) -> tuple[ConnectionEvidence, ...]:
        await self._recorder.settle()
        if self._desk.stopping and self._life.state is JobState.RUNNING and self._result is not None:
            if self._idle_pipeline:  # it was ended by us, and that is no failure
                self._result = DriverExit(succeeded=True, exit_code=0)
            if self._result.succeeded:
                await self._take_savepoint()
        return await self._collect_connections()

    def _conclude(self, process_end: str, evidence: tuple[ConnectionEvidence, ...]) -> None:
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
        self._tell_history()
        for state in verdict.path[:-1]:
            self._life.to(state, self._now_ms())
        self._publish()
        if self._hopeless:
            self._go_on(None, evidence)
            return
        self.hand_off(
            self._services.dispatcher.attempt_failed(self.job_id), then=lambda delay: self._go_on(delay, evidence)
        )

    def _judge(self, process_end: str) -> Verdict:
        verdict = judge_attempt(self._life.state, self._result, process_end)
        if not self._desk.asked_to_stop or verdict.path != (JobState.FINISHED,):
            return verdict
        if self._desk.stopped:
            return verdict
        return Verdict((JobState.FAILING, JobState.FAILED), f"the savepoint failed: {self._desk.requests[-1].error}")

    def _go_on(self, delay: float | None, evidence: tuple[ConnectionEvidence, ...]) -> None:
        """The attempt failed, and the restart strategy has decided; somebody may have cancelled the job meanwhile."""
        if self._life.state is JobState.CANCELLING:
            self._end((JobState.CANCELED,), evidence)
        elif delay is None:
            self._end((JobState.FAILED,), evidence)
        else:
            self._restart(delay, evidence)

    def _end(self, path: tuple[JobState, ...], evidence: tuple[ConnectionEvidence, ...]) -> None:
        for state in path:
            self._life.to(state, self._now_ms())
        failed = self._life.state is JobState.FAILED and self._failure is not None
        error = self._failure.error if failed and self._failure is not None else ""
        self._chronicle.end(self._life.state.value, self._now_ms(), error)
        _LOG.info("job %s is %s", self.job_id, self._life.state)
        self._trace_end()
        self.hand_off(self._release(self._record(evidence)))

    def _restart(self, delay: float, evidence: tuple[ConnectionEvidence, ...]) -> None:
        error = self._failure.error if self._failure is not None else "it failed"
        self._life.to(JobState.RESTARTING, self._now_ms())
        self._chronicle.end(JobState.FAILED.value, self._now_ms(), error)
        self._tell_history()
        self._pending_reason = (
            f"attempt {self._attempt_number} failed, the next one starts after {round(delay, 1):g} s: {error}"
        )
        _LOG.warning("job %s: %s", self.job_id, self._pending_reason)
        self._trace_end()
        self._publish()
        self.hand_off(self._hand_on(self._record(evidence), delay))

    def _record(self, evidence: tuple[ConnectionEvidence, ...]) -> JobRecord:
        return JobRecord(
            submission=self._submission,
            detail=self._detail(),
            connections=merge(self._earlier_connections, evidence),
            exceptions=self._chronicle.exceptions,
            checkpoints=self._recorder.view,
            savepoints=self._desk.requests,
            stages=self._stages,
        )

    async def _hand_on(self, record: JobRecord, delay: float) -> None:
        """Give everything back, and leave the job to the JobMaster of the next attempt."""
        await self._ask_taskmanagers(lambda gateway: gateway.release_job(self.job_id))
        try:
            await self._services.resource_manager.release_job(self.job_id)
        except SluiceError as error:  # the next attempt states what it wants anew
            _LOG.warning("job %s: its slots could not be given back: %s", self.job_id, error)
        await self._services.dispatcher.job_restarting(record, delay)

    async def _release(self, record: JobRecord) -> None:
        """Tell the result, then give everything back, then go."""
        await self._services.dispatcher.job_ended(record)
        await self._ask_taskmanagers(lambda gateway: gateway.release_job(self.job_id))
        await self._services.resource_manager.release_job(self.job_id)
        await self._shuffle.release()
        await self._services.dispatcher.job_released(self.job_id)

    def _fail(self, error: str, traceback: str = "") -> None:
        if not self._life.may(JobState.FAILING) or self._life.state is JobState.RESTARTING:
            return
        _LOG.warning("job %s fails: %s", self.job_id, error)
        self._failure = Failure(error=error, traceback=traceback)
        self._life.to(JobState.FAILING, self._now_ms())
        self._end_driver()
        self._publish()

    async def cancel(self) -> None:
        """See :class:`~runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        if self._life.state.terminal:
            raise JobAlreadyTerminal(f"job {self.job_id} is {self._life.state}")
        if self._life.state in {JobState.CANCELLING, JobState.RESTARTING}:
            return  # the Dispatcher knows the wish, and starts no further attempt
        self._life.to(JobState.CANCELLING, self._now_ms())
        self._end_driver()
        self._publish()

    def _end_driver(self) -> None:
        """Ask the driver to end, and see to it that it does."""
        if self._child is None or not self._child.running:
            return  # `_driver_started` or `_driver_ended` is on its way and sees the state
        grace = self._services.cancel_grace
        if self._driver is None or self._driver_peer is None or self._driver_peer.closed:
            self._stop_driver(grace)
            return
        self.hand_off(self._driver.cancel(grace), failed=lambda _: self._stop_driver(grace))
        self.call_later(grace + CANCEL_MARGIN_SECONDS, self._kill_driver)

    def _stop_driver(self, grace: float) -> None:
        """SIGTERM (the agent then ends its JVM and Python in order), and SIGKILL after ``grace`` seconds."""
        if self._child is not None and self._child.running:
            self.hand_off(self._child.stop(grace))

    def _kill_driver(self) -> None:
        """It had its time."""
        self._stop_driver(KILL_GRACE_SECONDS)

    # --- the driver -----------------------------------------------------------------------------------------

    async def register_driver(self, attempt: int, pid: int) -> DriverAssignment:
        """See :class:`runtime.gateways.JobMasterGateway`."""
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
        """See :class:`runtime.gateways.JobMasterGateway`."""
        self._services.check_leadership()
        if attempt != self._attempt_number or self._life.state.terminal:
            raise PeerRefused(f"attempt {attempt} of job {self.job_id} is not the current one", "it must end")

    async def spark_started(self, registration: SparkRegistration) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        self._stop_executors(self._pool.spark_started(registration))
        over = self._shuffle.begin(self._attempt_number, registration.app_id)
        if over is not None:
            self.hand_off(over)
        self._reconcile()

    async def set_executor_targets(self, targets: ExecutorTargets) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        self._pool.set_targets(targets)
        self._reconcile()

    async def kill_executors(self, executor_ids: tuple[int, ...]) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        self._stop_executors(self._pool.stop(executor_ids))
        self._reconcile()

    async def report_progress(self, progress: JobProgress) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        self._progress = progress
        self._publish()

    async def register_shuffle(self, shuffle_id: int, partitions: int) -> ShuffleAllocation:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        self._services.check_leadership()
        return self.deferred(self._shuffle.register(shuffle_id, partitions))

    async def unregister_shuffle(self, shuffle_id: int) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        self.hand_off(self._shuffle.unregister(shuffle_id))

    async def shuffle_workers_lost(self, shuffle_id: int, workers: tuple[str, ...]) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        self.hand_off(self._shuffle.workers_lost(shuffle_id, workers), failed=self._note("telling of lost workers"))

    async def report_stages(self, stages: StageTable) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        self._stages = stages

    async def stages(self) -> StageTable:
        """See :class:`runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        return self._stages

    async def report_streaming(self, state: StreamingState) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        if self._recorder.told(state, self._now_ms()):
            self.hand_off(self._recorder.record(), failed=self._note("recording a checkpoint"))
        for query_id in self._recorder.unnamed():
            self._chronicle.note(self._now_ms(), f"the streaming query {query_id} has no name: {UNNAMED_CONSEQUENCE}")
            self._history_changed()
        if self._recorder.problem:
            self._hopeless = True
            self._fail(self._recorder.problem)
        self._publish()

    async def report_task_failure(self, failure: TaskFailure) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        executor = self._pool.get(failure.executor_id)
        self._chronicle.note(
            self._now_ms(),
            failure.error,
            failure.traceback,
            task=f"task {failure.partition} of stage {failure.stage}, try {failure.attempt}",
            executor=failure.executor_id,
            taskmanager=executor.slot.taskmanager if executor is not None else "",
        )
        self._history_changed()

    async def driver_finished(self, result: DriverExit) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        if self._result is None:
            self._result = result
            self.call_later(DRIVER_EXIT_GRACE_SECONDS, self._kill_driver)

    # --- savepoints -----------------------------------------------------------------------------------------

    async def savepoints(self) -> tuple[SavepointRequest, ...]:
        """See :class:`~runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        return self._desk.requests

    async def trigger_savepoint(self, savepoint_id: str, stop: bool) -> None:
        """See :class:`~runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        self._desk.ask(savepoint_id, self._life.state, self._recorder.view, self._now_ms(), stop=stop)
        if not stop:
            self.hand_off(self._take_savepoint())
        elif self._driver is not None:
            grace = self._services.cancel_grace
            self.hand_off(self._driver.stop_streaming(grace), failed=self._not_stopped)
            self.call_later(grace + STOP_SECONDS, self._end_stopping)

    async def _take_savepoint(self) -> None:
        request, checkpoint = self._desk.current, self._recorder.view.latest
        if request is None or checkpoint is None:
            return
        description = Savepoint(
            id=request.id,
            path="",
            job_id=self.job_id,
            job_name=self._submission.name,
            owner=self._submission.owner,
            created_at=self._now_ms(),
            stopped=request.stop,
            checkpoint=checkpoint,
            files=0,
            size=0,
        )
        try:
            savepoint = await self._recorder.take_savepoint(request.id, description)
        except SluiceError as error:
            _LOG.error("job %s: %s failed: %s", self.job_id, request.id, error)
            self._desk.fail(str(error))
            return
        _LOG.info("job %s: %s has %d bytes", self.job_id, savepoint.id, savepoint.size)
        self._desk.done(savepoint)

    def _not_stopped(self, error: BaseException) -> None:
        self._desk.fail(f"the driver could not be told to stop: {error}")

    def _end_stopping(self) -> None:
        """The queries have ended, but the pipeline goes on: it has nothing to go on with."""
        if self._desk.stopping and self._life.state is JobState.RUNNING:
            self._idle_pipeline = True
            self._end_driver()

    # --- slots and executors ----------------------------------------------------------------------------------

    async def offer_slot(self, offer: SlotOffer) -> bool:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        peer = self._taskmanager_peer(offer.taskmanager)
        if self._over or not self._pool.offer(offer):
            return False
        self._taskmanagers[offer.taskmanager] = peer.gateway(TaskExecutorGateway, TASK_EXECUTOR)
        self.post(self._reconcile)
        return True

    async def sign_executor_identity(self, request: CsrToSign) -> SignedIdentity:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        taskmanager = self.caller.identity.name
        if not self._pool.launched_on(request.executor_id, taskmanager):
            raise ExecutorUnknown(f"{taskmanager} was not asked to run executor {request.executor_id} of {self.job_id}")
        host = self._services.driver_host
        spiffe_id = SpiffeId.executor(host.trust_domain, self.job_id, request.executor_id)

        async def sign() -> SignedIdentity:
            chain = await asyncio.to_thread(
                host.issuer.sign_csr, request.csr_pem, spiffe_id, lifetime=host.identity_lifetime
            )
            return SignedIdentity(chain_pem=chain.chain_pem, ca_pem=chain.ca_pem, crl_pem=chain.crl_pem)

        return self.deferred(sign())

    async def executor_exited(self, exit_report: ExecutorExit) -> None:
        """See :class:`runtime.gateways.JobMasterGateway`."""
        executor = self._pool.get(exit_report.executor_id)
        if executor is None or executor.slot.taskmanager != self.caller.identity.name:
            raise ExecutorUnknown(
                f"{self.caller.identity.name} does not run executor {exit_report.executor_id} of {self.job_id}"
            )
        self._ended(exit_report)
        self._reconcile()

    async def slots_lost(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """See :class:`~runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        for executor in self._pool.slots_lost(allocation_ids):
            self._ended(
                ExecutorExit(
                    executor_id=executor.id,
                    exit_code=-1,
                    by_application=False,
                    reason=f"TaskManager {taskmanager} is lost",
                    host=executor.slot.host,
                    host_lost=True,
                )
            )
        self._stated = None  # to be stated again, so that the reason for waiting is known
        self._reconcile()

    async def slots_draining(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """See :class:`~runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        executors = self._pool.drain(allocation_ids)
        if executors:
            ids = tuple(each.id for each in executors)
            _LOG.info("job %s: executors %s are moved away from %s", self.job_id, ids, taskmanager)
            self._decommission(ids, f"TaskManager {taskmanager} is drained")
            self.call_later(self._services.drain_timeout, self._stop_executors, executors)
        self._stated = None  # the same slots are wanted, and not had any more
        self._reconcile()

    def _decommission(self, ids: tuple[int, ...], reason: str) -> None:
        """Spark ends them when their blocks are elsewhere; without a driver nobody would."""
        if self._driver is not None and self._driver_peer is not None and not self._driver_peer.closed:
            self.hand_off(self._driver.decommission_executors(ids, reason), failed=self._note("decommissioning"))

    def _taskmanager_peer(self, name: str) -> RemotePeer:
        peer, identity = self.caller.peer, self.caller.identity
        if peer is None or identity.name != name:
            raise PeerRefused(f"{identity} speaks for TaskManager {name!r}", "a TaskManager speaks for itself")
        return peer

    def _ended(self, exit_report: ExecutorExit) -> None:
        """An executor is gone: tell Spark, and fail the job when too many went by themselves."""
        if not self._pool.exited(exit_report, self._clock()):
            return
        _LOG.info("job %s: executor %d ended: %s", self.job_id, exit_report.executor_id, exit_report.reason)
        self._note_executor(exit_report)
        if self._driver is not None and self._driver_peer is not None and not self._driver_peer.closed:
            self.hand_off(self._driver.executor_exited(exit_report), failed=self._note("telling the driver"))
        if self._pool.budget_exhausted:
            self._fail(f"{self._pool.failures} executors ended by themselves, the last one: {self._pool.last_failure}")

    @property
    def _over(self) -> bool:
        """Nothing is wanted for this attempt any more."""
        state = self._life.state
        return state in ENDING or state.terminal or state is JobState.RESTARTING

    def _note_executor(self, exit_report: ExecutorExit) -> None:
        """An executor that nobody stopped and that did not end in order is an exception of the job."""
        executor = self._pool.get(exit_report.executor_id)
        if executor is not None and executor.failed and self._life.state not in ENDING:
            self._chronicle.note(
                self._now_ms(),
                f"executor {executor.id} ended: {exit_report.reason}",
                executor=executor.id,
                taskmanager=executor.slot.taskmanager,
            )
            self._history_changed()

    def _reconcile(self) -> None:
        """Level-triggered: whatever happened, compare wish and reality and act on the difference."""
        if self._over:
            self._publish()
            return
        decision = self._pool.decide(self._clock())
        for executor in decision.launch:
            self._launch(executor)
        for allocation_id in decision.release:
            self.hand_off(
                self._services.resource_manager.release_slot(allocation_id), failed=self._note("releasing a slot")
            )
        self._require(decision.wanted)
        if decision.retry_at is not None:
            self.call_later(max(0.0, decision.retry_at - self._clock()) + 0.01, self._reconcile)
        self._publish()

    def _require(self, wanted: tuple[SlotCount, ...]) -> None:
        requirement = SlotRequirement(
            job_id=self.job_id,
            wanted=wanted,
            jobmaster_endpoint=self.name,
            jobmaster_token=self.token,
            owner=self._submission.owner,
        )
        if requirement != self._stated:
            self._stated = requirement
            self._state_requirement()

    def _state_requirement(self) -> None:
        def answered(reason: str) -> None:
            if reason != self._pending_reason and not self._over:
                self._pending_reason = reason
                self._publish()

        if self._stated is not None:
            self.hand_off(
                self._services.resource_manager.require_slots(self._stated),
                then=answered,
                failed=self._note("asking for slots"),
            )

    def _repeat_requirement(self) -> None:
        if self._over:
            return
        if self._pending_reason:
            self._state_requirement()
        self.call_later(REQUIREMENT_REPEAT_SECONDS, self._repeat_requirement)

    def _launch(self, executor: Executor) -> None:
        registration, gateway = self._pool.registration, self._taskmanagers.get(executor.slot.taskmanager)
        if registration is None or gateway is None:
            return  # cannot be: the pool launches only after registration, in slots that were offered
        launch = ExecutorLaunch(
            job_id=self.job_id,
            allocation_id=executor.slot.allocation_id,
            executor_id=executor.id,
            app_id=registration.app_id,
            driver_url=registration.driver_url,
            resource_profile_id=executor.target.resource_profile_id,
            cores=executor.target.cores,
            memory_mb=executor.target.memory_mb,
            startup_conf=registration.startup_conf,
            java_options=registration.java_options,
            spark_auth_secret=self._spark_auth_secret,
            python=sys.executable,
            trace=self._span.traceparent,
        )

        def launched(_: None) -> None:
            self._pool.launched(executor.id)
            self._history_changed()
            self._publish()

        def failed(error: BaseException) -> None:
            lost = isinstance(error, PeerUnreachable)
            self._ended(
                ExecutorExit(
                    executor_id=executor.id,
                    exit_code=1,
                    by_application=False,
                    reason=f"it could not be launched: {error}",
                    host=executor.slot.host,
                    host_lost=lost,
                )
            )
            if not lost:  # it may run after all: an answer that came too late
                self.hand_off(gateway.kill_executor(self.job_id, executor.id), failed=self._note("ending an executor"))
            self._reconcile()

        self.hand_off(gateway.launch_executor(launch), then=launched, failed=failed)

    def _stop_executors(self, executors: list[Executor]) -> None:
        for executor in executors:
            if executor.state is ExecutorState.EXITED:
                continue
            gateway = self._taskmanagers.get(executor.slot.taskmanager)
            if gateway is not None:
                self.hand_off(gateway.kill_executor(self.job_id, executor.id), failed=self._note("ending an executor"))

    # --- what is shown ------------------------------------------------------------------------------------------

    async def exceptions(self) -> tuple[ExceptionEntry, ...]:
        """See :class:`~runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        return self._chronicle.exceptions

    async def checkpoints(self) -> CheckpointsView:
        """See :class:`~runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        return self._recorder.view

    async def connections(self) -> tuple[ConnectionEvidence, ...]:
        """See :class:`~runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        return self.deferred(self._collect_connections())

    async def _collect_connections(self) -> tuple[ConnectionEvidence, ...]:
        answers = await self._ask_taskmanagers(lambda gateway: gateway.connections(self.job_id))
        driver = await asyncio.to_thread(self._attempt.connections)
        return merge(from_log(self._services.connections, self.job_id), driver, *answers)

    async def ui(self, request: UiRequest) -> UiPage:
        """See :class:`~runtime.jobmanager.gateways.JobMasterInternalGateway`."""
        if self._driver is None or self._driver_peer is None or self._driver_peer.closed:
            raise UiNotFound(f"the driver of job {self.job_id} does not run", "its UI is there while it runs")
        return self.deferred(self._driver.ui(request))

    async def _ask_taskmanagers(self, ask: Callable[[TaskExecutorGateway], Coroutine[Any, Any, _T]]) -> list[_T]:
        """The answers of all TaskManagers of this job that give one in time."""
        asked = [asyncio.ensure_future(ask(gateway)) for gateway in self._taskmanagers.values()]
        if not asked:
            return []
        _, late = await asyncio.wait(asked, timeout=COLLECT_TIMEOUT_SECONDS)
        for each in late:
            each.cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    def _detail(self) -> JobDetail:
        now = self._now_ms()
        end = self._life.timestamps[self._life.state] if self._life.state.terminal else None
        return JobDetail(
            id=self.job_id,
            name=self._submission.name,
            owner=self._submission.owner,
            kind=self._submission.kind,
            state=self._life.state,
            start_time=self._started_at,
            end_time=end,
            duration_ms=(end if end is not None else now) - self._started_at,
            attempt=self._attempt_number,
            progress=self._progress,
            executors=self._executors(),
            timestamps={str(state): at for state, at in self._life.timestamps.items()},
            failure=self._failure,
            pending_reason="" if self._life.state.terminal else self._pending_reason,
            attempts=self._chronicle.attempts,
            checkpoints=self._recorder.view.completed,
        )

    def _executors(self) -> tuple[ExecutorView, ...]:
        """Those of earlier attempts and of this one."""
        return self._chronicle.executors + tuple(
            ExecutorView(
                id=each.id,
                taskmanager=each.slot.taskmanager,
                slot=each.slot.slot,
                state=each.state,
                exit_reason=each.exit_reason,
                started_at=each.started_at,
            )
            for each in self._pool.executors
        )

    def _history_changed(self) -> None:
        """To be told soon: many changes come together."""
        if not self._history_due:
            self._history_due = True
            self.call_later(HISTORY_DELAY_SECONDS, self._tell_history)

    def _tell_history(self) -> None:
        """What the next leader is to know, should this one not live to see the end."""
        self._history_due = False
        if self._life.state.terminal:
            return
        history = JobHistory(
            attempts=self._chronicle.attempts,
            exceptions=self._chronicle.exceptions,
            executors=self._executors()[-MAX_EXECUTORS_KEPT:],
        )
        self.hand_off(
            self._services.dispatcher.job_history(self.job_id, history), failed=self._note("telling the history")
        )

    def _publish(self) -> None:
        if not self._life.state.terminal:
            self.hand_off(self._services.dispatcher.job_updated(self._detail()), failed=self._note("publishing"))

    def _note(self, what: str) -> Callable[[BaseException], None]:
        def note(error: BaseException) -> None:
            if isinstance(error, SluiceError):
                _LOG.info("job %s: %s failed: %s", self.job_id, what, error)
            else:
                self.on_failure(error)

        return note

    def _now_ms(self) -> int:
        return int(self._services.clock() * 1000)
