"""The JobMaster: the endpoint of one attempt of a job.

It connects the attempt's state machine (:mod:`sluice.runtime.jobmanager.attempt.decisions`) with the rest of the
cluster: calls, timers and ended processes become events, and the resulting actions are carried out. It decides nothing
itself. Its fencing token is valid for the whole attempt, so no message of an earlier attempt reaches a later one
(ADR 39).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from cryptography import x509

from sluice.core import TRACING, PeerRefused, SluiceError
from sluice.pki.issuing import SignedChain
from sluice.runtime.gateways import DRIVER, TASK_EXECUTOR, DriverGateway, TaskExecutorGateway, jobmaster_endpoint
from sluice.runtime.jobmanager.attempt.action_runner import ActionRunner
from sluice.runtime.jobmanager.attempt.decisions import AttemptStateMachine
from sluice.runtime.jobmanager.attempt.listeners import JobListeners
from sluice.runtime.jobmanager.attempt.services import JobServices, JobTokens
from sluice.runtime.jobmanager.attempt.settings import Resumption
from sluice.runtime.jobmanager.attempt.shuffle_relay import ShuffleRelay
from sluice.runtime.jobmanager.errors import TokenRefused, UiNotFound
from sluice.runtime.jobmanager.gateways import ConnectAddress, JobMasterInternalGateway, SandboxView
from sluice.runtime.jobmanager.secrets import SecretError
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import (
    CsrToSign,
    DriverAssignment,
    DriverCsr,
    DriverExit,
    DriverProcessEnd,
    Evidence,
    ExecutorExit,
    ExecutorTargets,
    GivenSecret,
    JobKind,
    JobProgress,
    JobToken,
    OutputLocation,
    RunningDriver,
    ShuffleAllocation,
    SlotKind,
    SlotOffer,
    SparkRegistration,
    StageTable,
    StreamingState,
    TaskFailure,
    TokenKeys,
    UiPage,
    UiRequest,
)
from sluice.runtime.rpc import PermanentlyFencedRpcEndpoint

_LOG = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class JobMaster(PermanentlyFencedRpcEndpoint):
    """One attempt of a job, from its start to the end of the job or to the decision to restart it.

    Args:
        before: the record of the job, with the history of its earlier attempts.
        token: the fencing token of the attempt, the same under each leader.
        resumption: set when the attempt began under an earlier leader and its driver may still run.
    """

    def __init__(
        self,
        before: JobRecord,
        services: JobServices,
        *,
        attempt: int,
        token: bytes,
        resumption: Resumption | None = None,
    ) -> None:
        job_id, submission = before.detail.id, before.submission
        self.token = token
        super().__init__(jobmaster_endpoint(job_id), JobMasterInternalGateway, self.token, job_id=job_id)
        self._submission = submission
        self._services = services
        self._number = attempt
        self._machine = AttemptStateMachine(
            before,
            services.settings,
            number=attempt,
            executor_size=services.drivers.executor_size(submission),
            clock=services.clock,
            resumption=resumption,
        )
        self._shuffle = ShuffleRelay(services.shuffle, job_id)
        executors = self._machine.executors
        self._listeners = JobListeners(lambda: executors.all, lambda: self._machine.placement.slot)
        self._runner = ActionRunner(self, services, self._machine, self._event, shuffle=self._shuffle)

    async def on_start(self) -> None:
        """Begin the attempt."""
        trace = self._submission.trace
        self._runner.span = TRACING.begin("job attempt", trace, job=self.job_id, attempt=self._number)
        self._event(self._machine.begin)

    async def on_stop(self) -> None:
        """Stop when the JobManager stops or the attempt is over; nothing of the attempt remains in this process."""
        self._machine.suspend()
        await self._runner.close()

    def on_failure(self, error: BaseException) -> None:
        """Fail the job on an internal error: otherwise a lost action could make it wait for ever."""
        super().on_failure(error)
        if not isinstance(error, SluiceError):  # a failed call is handled by heartbeats or retries
            self._event(self._machine.fail, f"internal error of its JobMaster: {type(error).__name__}")

    # --- events -------------------------------------------------------------------------------------------------

    def _event(self, event: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Pass an event to the state machine, and carry out the resulting actions."""
        try:
            return event(*args, **kwargs)
        finally:
            for action in self._machine.take_actions():
                self._runner.run(action)

    async def register_driver(self, attempt: int, pid: int, running: RunningDriver | None) -> DriverAssignment:
        """Register the driver process, which is new, or continues its work under a new leader.

        Raises ``PeerRefused`` unless it belongs to this attempt, and ``NotReconciled`` when it must retry later.
        """
        self._services.check_leadership()
        peer = self.caller.peer
        if peer is None:
            raise PeerRefused(f"the driver of job {self.job_id} is in another process", "drivers register over RPC")
        self._machine.check_registration(attempt, running)
        again = "again" if running is not None else "for the first time"
        _LOG.info("job %s: driver attempt %d registered %s, pid %d", self.job_id, attempt, again, pid)
        self._runner.agent_registered(peer, peer.gateway(DriverGateway, DRIVER))
        self._event(self._machine.driver_registered, attempt, running)
        submission = self._submission
        streams = submission.kind is JobKind.PIPELINE
        return DriverAssignment(
            pipeline=submission.pipeline,
            files=submission.files,
            py_files=submission.py_files,
            archives=submission.archives,
            token_files=submission.token_files,
            python=submission.python,
            args=submission.args,
            spark_conf={**self._services.settings.spark_conf, **submission.spark_conf},
            spark_auth_secret=self._runner.spark_auth_secret,
            blob_host=self._services.blob_address[0],
            blob_port=self._services.blob_address[1],
            jobmanager=self.service.spiffe_id.name,
            kind=submission.kind,
            shuffle=self._shuffle.enabled,
            seal=self._services.settings.seal,
            secrets=self._runner.secrets.wanted,
            checkpoints=self._services.places.checkpoints.location(self.job_id) if streams else "",
        )

    async def driver_secrets(self, attempt: int) -> tuple[GivenSecret, ...]:
        """The secrets of the job for its driver; raises ``PeerRefused`` unless the driver belongs to this attempt."""
        self._services.check_leadership()
        self._machine.check_current(attempt)
        slot = self._machine.placement.slot
        if slot is None:
            raise PeerRefused(f"the driver of job {self.job_id} has no slot", "the driver must end")

        async def give() -> tuple[GivenSecret, ...]:
            try:
                return await self._runner.secrets.for_driver(slot.taskmanager)
            except SecretError as error:
                self._event(self._machine.fail, str(error))
                raise

        return self.deferred(give())

    async def renew_lease(self, attempt: int) -> None:
        """Renew the lease of the driver; raises ``LeadershipLost`` or ``PeerRefused`` when the driver must end."""
        self._services.check_leadership()
        self._machine.check_current(attempt)

    async def spark_started(self, registration: SparkRegistration) -> None:
        """Note that the SparkContext is up: executors may be launched."""
        over = self._shuffle.begin(self._number, registration.app_id)
        if over is not None:
            self.hand_off(over)
        self._event(self._machine.executors.spark_started, registration)

    async def set_executor_targets(self, targets: ExecutorTargets) -> None:
        """Set how many executors Spark wants."""
        self._event(self._machine.executors.set_executor_targets, targets)

    async def kill_executors(self, executor_ids: tuple[int, ...]) -> None:
        """End executors that Spark no longer wants."""
        self._event(self._machine.executors.kill_executors, executor_ids)

    async def report_progress(self, progress: JobProgress) -> None:
        """Update the counters for display."""
        self._event(self._machine.progress_reported, progress)

    async def report_stages(self, stages: StageTable) -> None:
        """Update Spark's stages for display."""
        self._event(self._machine.stages_reported, stages)

    async def report_task_failure(self, failure: TaskFailure) -> None:
        """Note that a task failed."""
        self._event(self._machine.task_failed, failure)

    async def report_streaming(self, state: StreamingState) -> None:
        """Note that a batch was committed, or a streaming query began or ended."""
        self._event(self._machine.streaming.reported, state)

    async def driver_succeeded(self) -> None:
        """Note that the pipeline has succeeded; its JVM is still ending."""
        self._event(self._machine.driver_succeeded)

    async def driver_finished(self, result: DriverExit) -> None:
        """Note that the pipeline and its JVM have ended."""
        self._event(self._machine.driver_finished, result)

    async def executor_listens(self, executor_id: int, ports: tuple[int, ...]) -> None:
        """Note the ports of an executor; raises ``ExecutorUnknown`` unless it was launched on the caller."""
        self._machine.executors.check_launched(executor_id, self.caller.identity.name)
        self._listeners.executor(executor_id, ports)

    async def driver_listens(self, attempt: int, ports: tuple[int, ...]) -> None:
        """Note the ports of the driver; raises ``DriverUnknown`` unless it was launched on the caller."""
        self._machine.check_driver(attempt, self.caller.identity.name)
        self._listeners.driver(ports)

    async def listeners_on(self, port: int) -> tuple[str, ...]:
        """The hosts on which processes of this job, or shuffle workers, listen on ``port``, or :data:`ANY_PORT`."""

        async def ask() -> tuple[str, ...]:
            return self._listeners.on(port, await self._shuffle.workers_on(port))

        return self.deferred(ask())

    async def register_shuffle(self, shuffle_id: int, partitions: int) -> ShuffleAllocation:
        """Allocate workers for a shuffle, by Spark's id. Idempotent."""
        self._services.check_leadership()
        return self.deferred(self._shuffle.register(shuffle_id, partitions))

    async def locate_shuffle(self, shuffle_id: int) -> tuple[OutputLocation, ...]:
        """Locate the outputs of a registered shuffle."""
        return self.deferred(self._shuffle.locate(shuffle_id))

    async def unregister_shuffle(self, shuffle_id: int) -> None:
        """Release a shuffle that is no longer needed."""
        self.hand_off(self._shuffle.unregister(shuffle_id))

    async def shuffle_workers_lost(self, shuffle_id: int, workers: tuple[str, ...]) -> None:
        """Report workers of a shuffle that the job cannot reach."""
        self.hand_off(
            self._shuffle.workers_lost(shuffle_id, workers), failed=self._runner.log("reporting lost shuffle workers")
        )

    async def offer_slot(self, offer: SlotOffer) -> bool:
        """Accept an offered slot; False when it is no longer wanted. Raises ``PeerRefused``."""
        peer, identity = self.caller.peer, self.caller.identity
        if peer is None or identity.name != offer.taskmanager:
            raise PeerRefused(f"{identity} offers a slot of TaskManager {offer.taskmanager!r}", "it must offer its own")
        accepted = self._event(self._offered(offer), offer)
        if accepted:
            if offer.held and offer.executor is not None:
                self._listeners.executor(offer.executor.executor_id, offer.executor.ports)
            if offer.held and offer.driver:
                self._listeners.driver(offer.driver_ports)
            self._runner.taskmanagers[offer.taskmanager] = peer.gateway(TaskExecutorGateway, TASK_EXECUTOR)
        return accepted

    def _offered(self, offer: SlotOffer) -> Callable[[SlotOffer], bool]:
        """The event of the state machine for this kind of offer."""
        if offer.kind is SlotKind.DRIVER:
            return self._machine.driver_slot_offered
        return self._machine.executors.slot_held if offer.held else self._machine.executors.offer_slot

    async def sign_executor_identity(self, request: CsrToSign) -> SignedChain:
        """Sign the CSR of an executor that the caller was told to launch; raises ``ExecutorUnknown`` for any other."""
        taskmanager = self.caller.identity.name
        self._machine.executors.check_launched(request.executor_id, taskmanager)
        signing = self._services.identities.sign_executor(self.job_id, request.executor_id, request.csr_pem)
        return self.deferred(self._certified(signing, taskmanager))

    async def sign_driver_identity(self, request: DriverCsr) -> SignedChain:
        """Sign the CSR of the driver that the caller was told to launch; raises ``DriverUnknown`` for any other."""
        taskmanager = self.caller.identity.name
        self._machine.check_driver(request.attempt, taskmanager)
        self._machine.check_current(request.attempt)
        signing = self._services.identities.sign_driver(self.job_id, request.csr_pem)
        return self.deferred(self._certified(signing, taskmanager))

    async def _certified(self, signing: Awaitable[SignedChain], taskmanager: str) -> SignedChain:
        """Sign a certificate, and note it for the job's receipt without waiting for that."""
        signed = await signing
        leaf = x509.load_pem_x509_certificate(signed.chain_pem.encode())

        def note(sandbox: SandboxView | None) -> None:
            self._event(self._machine.certified, leaf, taskmanager, sandbox)

        self.hand_off(self._services.resource_manager.sandbox_of(taskmanager), then=note, failed=lambda _: note(None))
        return signed

    async def issue_executor_token(self, executor_id: int, audience: tuple[str, ...]) -> JobToken:
        """A token of an executor that the caller was told to launch; raises ``ExecutorUnknown`` or ``TokenRefused``."""
        self._services.check_leadership()
        self._machine.executors.check_launched(executor_id, self.caller.identity.name)
        self._machine.check_current(self._number)
        return self.deferred(self._tokens.of_executor(self.job_id, executor_id, self._submission, audience))

    async def issue_driver_token(self, attempt: int, audience: tuple[str, ...]) -> JobToken:
        """A token of the driver of this attempt; raises ``PeerRefused`` or ``TokenRefused``."""
        self._services.check_leadership()
        self._machine.check_current(attempt)
        return self.deferred(self._tokens.of_driver(self.job_id, self._submission, audience))

    async def token_keys(self) -> TokenKeys:
        """The public keys that verify tokens of jobs."""
        return self.deferred(self._tokens.keys())

    @property
    def _tokens(self) -> JobTokens:
        if self._services.tokens is None:
            raise TokenRefused("this JobManager issues no tokens", "tokens need a gateway: it decides about them")
        return self._services.tokens

    async def driver_process_ended(self, end: DriverProcessEnd) -> None:
        """Note that the driver's process has ended; raises ``DriverUnknown`` when it did not run on the caller."""
        self._machine.check_driver_end(end.attempt, self.caller.identity.name)
        self._runner.driver_process_ended(end.how)
        self._event(self._machine.driver_gone, f"its driver ended meanwhile: {end.how}")

    async def executor_exited(self, exit_report: ExecutorExit) -> None:
        """Note that an executor's process has ended; raises ``ExecutorUnknown`` when it did not run on the caller."""
        self._event(self._machine.executors.executor_exited, exit_report, self.caller.identity.name)

    async def slots_lost(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """Note that these slots, and the processes in them, are gone."""
        self._event(self._machine.slots_lost, allocation_ids, taskmanager)

    async def slots_draining(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """Move the processes in these slots to other slots: these must be given back soon."""
        self._event(self._machine.executors.slots_draining, allocation_ids, taskmanager)

    async def slots_preempted(self, allocation_ids: tuple[str, ...], reason: str, grace: float) -> None:
        """End the processes in these slots within ``grace`` seconds: other jobs get the slots."""
        self._event(self._machine.executors.slots_preempted, allocation_ids, reason, grace)

    async def cancel(self) -> None:
        """Cancel the job; raises ``JobAlreadyTerminal``."""
        self._event(self._machine.cancel)

    async def trigger_savepoint(self, savepoint_id: str, stop: bool) -> None:
        """Begin a savepoint; with ``stop``, the job ends with it. Raises ``NotStreaming`` or ``SavepointFailed``."""
        self._event(self._machine.streaming.savepoint_requested, savepoint_id, stop=stop)

    async def record(self) -> JobRecord:
        """The current record of the job, without the connections of this attempt."""
        return self._machine.record()

    async def connections(self) -> Evidence:
        """Mutual TLS connections of the job's driver and executors."""
        return self.deferred(self._runner.end.collect_connections())

    async def connect_address(self) -> ConnectAddress:
        """The address of this session's Spark Connect server; port 0 when it does not listen yet."""
        agent, slot = self._runner.agent, self._machine.placement.slot
        if agent is None or slot is None:
            return ConnectAddress(host="", port=0)

        async def ask() -> ConnectAddress:
            return ConnectAddress(host=slot.host, port=await agent.connect_port())

        return self.deferred(ask())

    async def ui(self, request: UiRequest) -> UiPage:
        """A page of the driver's Spark UI; raises ``UiNotFound``."""
        agent = self._runner.agent
        if agent is None:
            raise UiNotFound(f"the driver of job {self.job_id} does not run", "its UI is available only while it runs")
        return self.deferred(agent.ui(request))
