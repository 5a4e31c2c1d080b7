"""Slots and executors of an attempt, and what these shuffle: wish and reality, compared and brought together."""

from __future__ import annotations

import asyncio
import logging
import sys

from sluice.core.errors import PeerRefused
from sluice.pki.issuing.leaf import SignedChain
from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.gateways import TASK_EXECUTOR, TaskExecutorGateway
from sluice.runtime.jobmanager.attempt.driver import AttemptDriver
from sluice.runtime.jobmanager.attempt.executor_pool import Executor, ExecutorState
from sluice.runtime.jobmanager.errors import ExecutorUnknown
from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.job_state import ENDING
from sluice.runtime.messages import (
    CsrToSign,
    ExecutorExit,
    ExecutorLaunch,
    ExecutorTargets,
    OutputLocation,
    ShuffleAllocation,
    SlotCount,
    SlotOffer,
    SparkRegistration,
)
from sluice.runtime.rpc import PeerUnreachable, RemotePeer

_LOG = logging.getLogger(__name__)

REQUIREMENT_REPEAT_SECONDS = 2.0
"""How often an unmet requirement is stated again, and the reason for it refreshed."""


class AttemptExecutors(AttemptDriver):
    """Carries out what :class:`~sluice.runtime.jobmanager.attempt.executor_pool.ExecutorPool` decides."""

    async def spark_started(self, registration: SparkRegistration) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        self._stop_executors(self._pool.spark_started(registration))
        over = self._shuffle.begin(self._attempt_number, registration.app_id)
        if over is not None:
            self.hand_off(over)
        self._reconcile()

    async def set_executor_targets(self, targets: ExecutorTargets) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        self._pool.set_targets(targets)
        self._reconcile()

    async def kill_executors(self, executor_ids: tuple[int, ...]) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        self._stop_executors(self._pool.stop(executor_ids))
        self._reconcile()

    async def register_shuffle(self, shuffle_id: int, partitions: int) -> ShuffleAllocation:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        self._services.check_leadership()
        return self.deferred(self._shuffle.register(shuffle_id, partitions))

    async def locate_shuffle(self, shuffle_id: int) -> tuple[OutputLocation, ...]:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        return self.deferred(self._shuffle.locate(shuffle_id))

    async def unregister_shuffle(self, shuffle_id: int) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        self.hand_off(self._shuffle.unregister(shuffle_id))

    async def shuffle_workers_lost(self, shuffle_id: int, workers: tuple[str, ...]) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        self.hand_off(self._shuffle.workers_lost(shuffle_id, workers), failed=self._note("telling of lost workers"))

    async def offer_slot(self, offer: SlotOffer) -> bool:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        peer = self._taskmanager_peer(offer.taskmanager)
        if self._over or not self._pool.offer(offer):
            return False
        self._taskmanagers[offer.taskmanager] = peer.gateway(TaskExecutorGateway, TASK_EXECUTOR)
        self.call_later(0, self._reconcile)  # after the answer; not refused when the mailbox is full
        return True

    async def sign_executor_identity(self, request: CsrToSign) -> SignedChain:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        taskmanager = self.caller.identity.name
        if not self._pool.launched_on(request.executor_id, taskmanager):
            raise ExecutorUnknown(f"{taskmanager} was not asked to run executor {request.executor_id} of {self.job_id}")
        host = self._services.driver_host
        spiffe_id = SpiffeId.executor(host.trust_domain, self.job_id, request.executor_id)

        async def sign() -> SignedChain:
            return await asyncio.to_thread(
                host.issuer.sign_csr, request.csr_pem, spiffe_id, lifetime=host.identity_lifetime
            )

        return self.deferred(sign())

    async def executor_exited(self, exit_report: ExecutorExit) -> None:
        """See :class:`sluice.runtime.gateways.JobMasterGateway`."""
        executor = self._pool.get(exit_report.executor_id)
        if executor is None or executor.slot.taskmanager != self.caller.identity.name:
            raise ExecutorUnknown(
                f"{self.caller.identity.name} does not run executor {exit_report.executor_id} of {self.job_id}"
            )
        self._ended(exit_report)
        self._reconcile()

    async def slots_lost(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """See :class:`~sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
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
        """See :class:`~sluice.runtime.jobmanager.gateways.JobMasterInternalGateway`."""
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
            count = self._pool.failures
            ended = (
                f"{count} executors ended by themselves within an hour" if count > 1 else "an executor ended by itself"
            )
            self._fail(f"{ended}, the last one: {self._pool.last_failure}")

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
        self.call_later(REQUIREMENT_REPEAT_SECONDS, self._repeat_requirement)
        if self._pending_reason:
            self._state_requirement()

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
