"""Carries out the actions of an attempt's state machine, and reports their outcomes to it as events."""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from sluice.core import SluiceError, Span
from sluice.runtime.checkpoint import CheckpointLost, Savepoint, SavepointNotFound
from sluice.runtime.gateways import DriverGateway, TaskExecutorGateway
from sluice.runtime.ha import LeadershipLost
from sluice.runtime.jobmanager.attempt.attempt_end import AttemptEnd
from sluice.runtime.jobmanager.attempt.checkpoint_recorder import CheckpointRecorder
from sluice.runtime.jobmanager.attempt.decisions import AttemptStateMachine, actions
from sluice.runtime.jobmanager.attempt.services import JobSecrets, JobServices
from sluice.runtime.jobmanager.attempt.shuffle_relay import ShuffleRelay
from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.secrets import SecretError, SecretRefused
from sluice.runtime.jobmanager.views import JobRecord, TaskManagerView
from sluice.runtime.messages import (
    ExecutorLaunch,
    GivenSecret,
    JobState,
    RunningDriver,
    SlotCount,
    SlotKind,
    SlotOffer,
)
from sluice.runtime.rpc import (
    EndpointNotFound,
    EndpointStopped,
    PeerUnreachable,
    PermanentlyFencedRpcEndpoint,
    RemotePeer,
    RpcError,
)

_LOG = logging.getLogger(__name__)

AUTH_SECRET_BYTES = 32


class Event(Protocol):
    """Passes an event to the state machine, on the endpoint's main thread, and carries out the resulting actions."""

    def __call__(self, event: Callable[..., object], *args: Any, **kwargs: Any) -> object:  # noqa: ANN401  # passed on
        ...


class ActionRunner:
    """Carries out the actions of one attempt.

    Args:
        endpoint: the endpoint of the attempt; outcomes are reported on its main thread.
        event: passes outcomes to the state machine.
    """

    def __init__(
        self,
        endpoint: PermanentlyFencedRpcEndpoint,
        services: JobServices,
        machine: AttemptStateMachine,
        event: Event,
        *,
        shuffle: ShuffleRelay,
    ) -> None:
        self.job_id = endpoint.job_id
        self.spark_auth_secret = secrets.token_hex(AUTH_SECRET_BYTES)
        self.taskmanagers: dict[str, TaskExecutorGateway] = {}
        """The TaskManagers that have offered slots, by name."""
        self.span = Span()
        """The span of the attempt."""
        self._endpoint = endpoint
        self._services = services
        self._submission = machine.submission
        self._shuffle = shuffle
        self._machine = machine
        self._event = event
        self._hand_off = endpoint.hand_off
        self._driver = services.drivers.driver(endpoint.job_id, machine.number, machine.submission)
        self.secrets = JobSecrets(
            endpoint.job_id,
            machine.number,
            machine.submission,
            store=services.secrets,
            record=services.record,
            resource_manager=services.resource_manager,
        )
        self._agent: DriverGateway | None = None
        self._agent_peer: RemotePeer | None = None
        self._recorder = CheckpointRecorder(endpoint.job_id, services.checkpoints, services.places)
        self.end = AttemptEnd(
            endpoint.job_id,
            services,
            taskmanagers=self.taskmanagers,
            driver=self._driver,
            driver_ends_within=lambda: machine.driver_ends_within,
            shuffle=shuffle,
        )

    @property
    def agent(self) -> DriverGateway | None:
        """The driver's agent; None when it cannot be reached."""
        return None if self._agent_peer is None or self._agent_peer.closed else self._agent

    def agent_registered(self, peer: RemotePeer, agent: DriverGateway) -> None:
        """Remember the driver's agent, which has just registered, for the first time or again."""
        self._agent_peer, self._agent = peer, agent

    def driver_process_ended(self, how: str) -> None:
        """Note that the driver's TaskManager has reported the end of its process."""
        self._driver.process_ended(how)

    async def close(self) -> None:
        """Write pending checkpoints. The next leader takes over a running driver, or its lease ends it (ADR 103)."""
        self._shuffle.close()
        await self._recorder.flush()

    def log(self, what: str) -> Callable[[BaseException], None]:
        """A handler for calls whose failure has no effect: it logs the failure, and reports internal errors."""

        def log(error: BaseException) -> None:
            if isinstance(error, SluiceError):
                _LOG.info("job %s: %s failed: %s", self.job_id, what, error)
            else:
                self._endpoint.on_failure(error)

        return log

    def run(self, action: actions.Action) -> None:
        """Start ``action``; its outcome becomes an event."""
        match action:
            case actions.StartTimer(timer, seconds, executor_ids):
                self._endpoint.call_later(seconds, self._event, self._machine.timer_fired, timer, executor_ids)
            case actions.PublishDetail(detail):
                self._hand_off(self._services.dispatcher.job_updated(detail), failed=self.log("publishing its state"))
            case actions.KeepHistory(history):
                kept = self._services.dispatcher.job_history(self.job_id, history)
                self._hand_off(kept, failed=self.log("storing the history"))
            case actions.StartDriver() | actions.EndDriver() | actions.StopDriver() | actions.StopStreaming():
                self._to_driver(action)
            case actions.AdoptDriver() | actions.LookForDriver() | actions.ReportHeldSlotsSettled():
                self._reconcile(action)
            case actions.ReportExecutorExit() | actions.DecommissionExecutors():
                self._to_agent(action)
            case actions.LaunchExecutor():
                self._launch(action)
            case actions.KillExecutor(executor_id, taskmanager):
                gateway = self.taskmanagers.get(taskmanager)
                if gateway is not None:
                    killed = self.end.retry_while_busy(lambda: gateway.kill_executor(self.job_id, executor_id))
                    self._hand_off(killed, failed=self.log("ending an executor"))
            case actions.RequireSlots() | actions.RequireDriverSlot() | actions.ReleaseSlot():
                self._to_resource_manager(action)
            case _:
                self._keep_records(action)

    def _to_driver(
        self, action: actions.StartDriver | actions.EndDriver | actions.StopDriver | actions.StopStreaming
    ) -> None:
        agent = self.agent
        match action:
            case actions.StartDriver(slot):
                starting = self._start_driver(slot, self.taskmanagers[slot.taskmanager])  # known since it offered it
                self._hand_off(starting, then=self._driver_started, failed=self._driver_not_started)
            case actions.EndDriver(grace) if agent is not None:
                self._hand_off(agent.cancel(grace), failed=lambda _: self._stop_driver(grace))
            case actions.EndDriver(grace) | actions.StopDriver(grace):
                self._stop_driver(grace)
            case actions.StopStreaming(grace) if self._agent is not None:
                stopped = self._agent.stop_streaming(grace)
                self._hand_off(
                    stopped, failed=lambda error: self._event(self._machine.streaming.not_stopped, str(error))
                )

    async def _start_driver(self, slot: SlotOffer, taskmanager: TaskExecutorGateway) -> None:
        """Start the driver once its place is durable, so that the next leader finds it and starts no second one."""
        await self.secrets.check(slot.taskmanager)
        await self.end.retry_while_busy(lambda: self._services.dispatcher.driver_placed(self.job_id, slot.taskmanager))
        await self._driver.start(slot, taskmanager, self.span.traceparent)

    def _reconcile(self, action: actions.AdoptDriver | actions.LookForDriver | actions.ReportHeldSlotsSettled) -> None:
        match action:
            case actions.AdoptDriver(slot, running):
                self._adopt(slot, running)
            case actions.LookForDriver(taskmanager):
                self._look_for_driver(taskmanager)
            case actions.ReportHeldSlotsSettled():
                settled = self._services.resource_manager.held_slots_settled(self.job_id)
                self._hand_off(settled, failed=self.log("reporting that no more held slots are expected"))

    def _adopt(self, slot: SlotOffer, running: RunningDriver | None) -> None:
        """Take over the driver that runs in this slot."""
        _LOG.info("job %s: this leader has taken over its driver on %s", self.job_id, slot.taskmanager)
        if running is not None:
            self.spark_auth_secret = running.spark_auth_secret
            self._shuffle.resume(self._machine.number, running)
        self._driver.attach(self.taskmanagers[slot.taskmanager])  # known since it offered the slot
        self._hand_off(self._driver.ended(), then=self._driver_ended)

    def _look_for_driver(self, taskmanager: str) -> None:
        def seen(views: tuple[TaskManagerView, ...]) -> None:
            found = next((each for each in views if each.id == taskmanager), None)
            if found is not None and self.job_id not in found.drivers:
                self._event(self._machine.driver_absent, taskmanager)

        views = self._services.resource_manager.taskmanagers()
        self._hand_off(views, then=seen, failed=self.log("looking for the driver"))

    def _driver_started(self, _: None) -> None:
        self._hand_off(self._driver.ended(), then=self._driver_ended)
        self._event(self._machine.driver_started)

    def _driver_not_started(self, error: BaseException) -> None:
        _LOG.error("job %s: the driver cannot be started: %s", self.job_id, error)
        permanent = isinstance(error, CheckpointLost | SavepointNotFound | SecretRefused)
        self._event(self._machine.driver_not_started, str(error), permanent=permanent)

    def _driver_ended(self, how: str) -> None:
        _LOG.info("job %s: the driver process ended: %s", self.job_id, how)
        self._event(self._machine.driver_ended, how)

    def _stop_driver(self, grace: float) -> None:
        if self._driver.running:
            self._hand_off(self._driver.stop(grace), failed=self.log("ending the driver"))

    def _to_agent(self, action: actions.ReportExecutorExit | actions.DecommissionExecutors) -> None:
        """Tell the driver's agent; if it cannot be reached, Spark notices by itself."""
        agent = self.agent
        if agent is None:
            return
        match action:
            case actions.ReportExecutorExit(exit_report):
                self._hand_off(agent.executor_exited(exit_report), failed=self.log("reporting an executor's end"))
            case actions.DecommissionExecutors(executor_ids, reason):
                _LOG.info("job %s: executors %s are decommissioned: %s", self.job_id, executor_ids, reason)
                decommissioned = agent.decommission_executors(executor_ids, reason)
                self._hand_off(decommissioned, failed=self.log("decommissioning executors"))

    def _launch(self, action: actions.LaunchExecutor) -> None:
        gateway = self.taskmanagers[action.slot.taskmanager]  # known since it offered the slot
        launch = ExecutorLaunch(
            job_id=self.job_id,
            allocation_id=action.slot.allocation_id,
            executor_id=action.executor_id,
            app_id=action.spark.app_id,
            attempt=self._machine.number,
            driver_url=action.spark.driver_url,
            resource_profile_id=action.target.resource_profile_id,
            cores=action.target.cores,
            memory_mb=action.target.memory_mb,
            startup_conf=action.spark.startup_conf,
            java_options=action.spark.java_options,
            spark_auth_secret=self.spark_auth_secret,
            python=sys.executable,
            trace=self.span.traceparent,
            checkpoints=self._services.places.checkpoints.location(self.job_id),
            token_files=self._machine.submission.token_files,
        )
        executors = self._machine.executors

        async def launched() -> None:
            given: tuple[GivenSecret, ...] = ()
            if self.secrets.wanted:
                given = await self.secrets.for_executor(action.executor_id, action.slot.taskmanager)
            await gateway.launch_executor(msgspec.structs.replace(launch, secrets=given))
            if action.gives_way:
                with contextlib.suppress(RpcError):  # a TaskManager of the previous release has no such method
                    await gateway.give_way(self.job_id, action.executor_id)

        def failed(error: BaseException) -> None:
            if isinstance(error, SecretError):  # a retry would fail the same way
                self._event(self._machine.fail, f"executor {action.executor_id} cannot be started: {error}")
            unreachable = isinstance(error, PeerUnreachable)
            self._event(
                executors.executor_not_launched, action.executor_id, action.slot, str(error), unreachable=unreachable
            )

        self._hand_off(
            launched(),
            then=lambda _: self._event(executors.executor_launched, action.executor_id),
            failed=failed,
        )

    def _to_resource_manager(
        self, action: actions.RequireSlots | actions.RequireDriverSlot | actions.ReleaseSlot
    ) -> None:
        match action:
            case actions.RequireSlots(wanted):
                self._require(SlotKind.EXECUTOR, wanted, self._machine.executors.slots_required)
            case actions.RequireDriverSlot():
                wanted = (SlotCount(profile=self._services.drivers.driver_size, count=1),)
                self._require(SlotKind.DRIVER, wanted, self._machine.placement.required)
            case actions.ReleaseSlot(allocation_id):
                released = self.end.retry_while_busy(
                    lambda: self._services.resource_manager.release_slot(allocation_id)
                )
                self._hand_off(released, failed=self.log("releasing a slot"))

    def _require(self, kind: SlotKind, wanted: tuple[SlotCount, ...], answered: Callable[[str], None]) -> None:
        requirement = SlotRequirement(
            job_id=self.job_id,
            wanted=wanted,
            jobmaster_endpoint=self._endpoint.name,
            jobmaster_token=self._endpoint.fencing_token or b"",
            owner=self._submission.owner,
            kind=kind,
            groups=self._submission.owner_groups,
            queue=self._submission.queue or "",
            priority=self._submission.priority or 0,
            ready=self._machine.executors.ready,
        )

        def failed(error: BaseException) -> None:
            self.log("asking for slots")(error)
            self._event(answered, f"the ResourceManager gave no answer: {error}")  # with a reason it is asked again

        self._hand_off(
            self._services.resource_manager.require_slots(requirement),
            then=lambda reason: self._event(answered, reason),
            failed=failed,
        )

    def _keep_records(self, action: actions.Action) -> None:
        match action:
            case actions.RestoreCheckpoint(savepoint):
                self._hand_off(
                    self._recorder.restore(savepoint),
                    then=lambda restored: self._event(self._machine.checkpoint_restored, restored),
                    failed=self._driver_not_started,
                )
            case actions.RecordCheckpoint(checkpoint):
                if self._recorder.add(checkpoint):
                    self._hand_off(self._recorder.record(), failed=self.log("recording a checkpoint"))
            case actions.TakeSavepoint():
                self._take_savepoint(action)
            case actions.SettleCheckpoints():
                settled = self._recorder.wait_for_last_write()
                self._hand_off(
                    settled,
                    then=lambda _: self._event(self._machine.conclusion.checkpoints_settled),
                    failed=self._records_lost,
                )
            case actions.CollectRecords():
                self._hand_off(
                    self.end.collect_records(),
                    then=lambda records: self._event(self._machine.conclusion.records_collected, *records),
                    failed=self._records_lost,
                )
            case actions.AskForRestart():
                self._hand_off(
                    self.end.retry_while_busy(lambda: self._services.dispatcher.attempt_failed(self.job_id)),
                    then=lambda delay: self._event(self._machine.conclusion.restart_decided, delay),
                    failed=self._restart_undecided,
                )
            case actions.ScheduleNextAttempt(record, delay):
                _LOG.warning("job %s: %s", self.job_id, record.detail.pending_reason)
                self._end_span(record)
                self._hand_off(self.end.schedule_next_attempt(record, delay))
            case actions.EndJob(record):
                _LOG.info("job %s is %s", self.job_id, record.detail.state)
                self._end_span(record)
                self._hand_off(self.end.end_job(record))

    def _take_savepoint(self, action: actions.TakeSavepoint) -> None:
        description = Savepoint(
            id=action.request.id,
            path="",
            job_id=self.job_id,
            job_name=self._submission.name,
            owner=self._submission.owner,
            created_at=int(self._services.clock() * 1000),
            stopped=action.request.stop,
            checkpoint=action.checkpoint,
            files=0,
            size=0,
        )

        def taken(savepoint: Savepoint) -> None:
            _LOG.info("job %s: %s is complete, with %d bytes", self.job_id, savepoint.id, savepoint.size)
            self._event(self._machine.streaming.savepoint_taken, savepoint)

        def failed(error: BaseException) -> None:
            _LOG.error("job %s: %s failed: %s", self.job_id, action.request.id, error)
            expected = isinstance(error, SluiceError)
            self._event(
                self._machine.streaming.savepoint_failed, str(error) if expected else f"internal error: {type(error)}"
            )

        self._hand_off(self._recorder.take_savepoint(action.request.id, description), then=taken, failed=failed)

    def _records_lost(self, error: BaseException) -> None:
        """End the attempt without its records, which could not be collected."""
        _LOG.error("job %s: its last records are lost: %s", self.job_id, type(error).__name__, exc_info=error)
        self._event(self._machine.conclusion.records_lost)

    def _restart_undecided(self, error: BaseException) -> None:
        """End the job without another attempt: the Dispatcher gave no answer. Another leader may decide otherwise."""
        if isinstance(error, LeadershipLost | EndpointStopped | EndpointNotFound):
            _LOG.info("job %s is left to the next leader: %s", self.job_id, error)
            return
        _LOG.error("job %s: the Dispatcher did not decide whether to restart it: %s", self.job_id, error)
        self._event(self._machine.conclusion.restart_decided, None)

    def _end_span(self, record: JobRecord) -> None:
        failed = record.detail.failure is not None and record.detail.state in {JobState.FAILED, JobState.RESTARTING}
        self.span.end("the attempt failed" if failed else "")
