"""The TaskExecutor: reserves and offers slots, launches and watches their processes, and cleans up after each job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from sluice.core import SluiceError, make_private_directory
from sluice.pki.tls import ConnectionLog
from sluice.runtime.blob import check_job_id
from sluice.runtime.gateways import EGRESS, TASK_EXECUTOR, EgressGateway, JobMasterGateway, TaskExecutorGateway
from sluice.runtime.ha import LeadershipLost
from sluice.runtime.messages import (
    DriverLaunch,
    EventLogChunk,
    Evidence,
    ExecutorExcess,
    ExecutorExit,
    ExecutorLaunch,
    LogChunk,
    SlotOffer,
    SlotReport,
    SlotRequest,
)
from sluice.runtime.node import from_log, kill_processes_below, merge
from sluice.runtime.rpc import (
    EndpointNotFound,
    EndpointStopped,
    MailboxFull,
    PeerUnreachable,
    RemotePeer,
    RpcEndpoint,
    RpcTimeout,
)
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.taskmanager.errors import AllocationUnknown, SlotNotAvailable
from sluice.runtime.taskmanager.kept_logs import trim_logs
from sluice.runtime.taskmanager.launcher import ExecutorLauncher
from sluice.runtime.taskmanager.networks import Networks
from sluice.runtime.taskmanager.processes import (
    AGENT,
    DriverHome,
    Drivers,
    ExecutorHome,
    Executors,
    SpareAgent,
    clean_driver_directory,
    clean_executor_directory,
)
from sluice.runtime.taskmanager.shape import TaskManagerShape
from sluice.runtime.taskmanager.slot_table import SlotTable
from sluice.runtime.taskmanager.slot_tables import SlotTables
from sluice.runtime.taskmanager.waiting import WarmProcesses

_LOG = logging.getLogger(__name__)

OFFER_AGAIN_SECONDS = 0.2
"""Pause before a held slot is offered again to a JobMaster that is not available yet."""


class TaskExecutor(RpcEndpoint):
    """The endpoint of a TaskManager: its slots, and the drivers and executors in them.


    Args:
        shape: name, address and size.
        launcher: builds the commands of executors.
        sandbox: the sandbox of drivers and executors.
        connections: the mutual TLS connections of this process.
        slots_changed: called on the main thread after each change, so that the ResourceManager learns of it soon.
        argv: the command of a driver agent.
        event_log_bytes: maximum size of a driver's compressed event log; 0: no event log is kept.
        networks: opens the networks of drivers and executors; None: they share the machine's.
        warm: the pool of warm processes; None: there is none.
        spare: keeps a driver agent started; None: each driver's agent is started when it is launched.
    """

    def __init__(
        self,
        shape: TaskManagerShape,
        launcher: ExecutorLauncher,
        sandbox: Sandbox,
        connections: ConnectionLog,
        slots_changed: Callable[[], None],
        *,
        argv: Sequence[str] = AGENT,
        event_log_bytes: int = 0,
        networks: Networks | None = None,
        warm: WarmProcesses | None = None,
        spare: SpareAgent | None = None,
    ) -> None:
        super().__init__(TASK_EXECUTOR, TaskExecutorGateway)
        self._shape = shape
        self._connections = connections
        self._slots_changed = slots_changed
        self._warm = warm
        self._slots = SlotTables(
            SlotTable(shape.slots, shape.profile, shape.total), SlotTable(shape.driver_slots, shape.driver_profile)
        )
        self.left = asyncio.Event()
        """Set when this process is to exit because it is drained."""
        self._trimming = asyncio.Lock()
        """Held while old logs are removed, so that no second thread looks for what the first one removes."""
        self._over: set[str] = set()
        """Jobs to forget when their last slot is free, unless their next attempt begins here."""
        self._jobmanager: RemotePeer | None = None
        self._directory = make_private_directory(shape.work / "jobs")
        home = DriverHome(
            jobs=self._directory,
            host=shape.host,
            trust_domain=shape.trust_domain,
            leader=shape.leader,
            isolation=sandbox.config,
            trial=sandbox.trial,
            private=sandbox.private,
            event_log_bytes=event_log_bytes,
            spark=launcher.spark,
            argv=argv,
            spare=spare,
        )
        self._drivers = Drivers(self, home, self._jobmaster, networks, warm)
        executors = ExecutorHome(shape, self._directory, launcher, sandbox, networks, warm)
        self._executors = Executors(self, executors, self._jobmaster, self._tell_exit)

    async def on_start(self) -> None:
        """Remove what an earlier process of this name left; raises ``OrphansRemain``."""
        await asyncio.to_thread(self._clean_up)

    def _clean_up(self) -> None:
        kill_processes_below(self._directory)
        for directory in self._directory.glob("*/executor-*"):
            clean_executor_directory(directory)
        for directory in self._directory.glob("*/driver-*"):
            clean_driver_directory(directory)
        self._trim_logs()

    async def on_stop(self) -> None:
        """End all drivers and executors."""
        await self._stop_all()

    # --- connection to the JobManager ---------------------------------------------------------------------

    def attach(self, peer: RemotePeer) -> None:
        """Send calls to this JobManager from now on."""
        self._jobmanager = peer

    def egress(self) -> EgressGateway | None:
        """The JobManager's endpoint for outbound connections; None if no JobManager is connected."""
        peer = self._jobmanager
        return None if peer is None or peer.closed else peer.gateway(EgressGateway, EGRESS)

    def report(self) -> SlotReport:
        """The state of all slots now."""
        warm = None if self._warm is None else self._warm.figures()
        return msgspec.structs.replace(self._slots.report(), warm=warm)

    async def reset(self) -> None:
        """End all drivers and executors and free all slots: no JobManager knows them, or knows them any longer.

        Called only while no JobManager is connected.
        """
        await self._stop_all()
        for request in self._slots.held():
            self._slots.freed(request.allocation_id)
        self._executors.forget_all()
        self._over.clear()

    async def _stop_all(self) -> None:
        await asyncio.gather(self._drivers.stop_all(), self._executors.stop_all())

    # --- slots ----------------------------------------------------------------------------------------------

    async def request_slot(self, request: SlotRequest) -> None:
        """Reserve a slot and offer it to the JobMaster; raises ``SlotNotAvailable``."""
        check_job_id(request.job_id)
        if self._jobmanager is None:
            raise SlotNotAvailable("this TaskManager is not registered")
        if not self._slots.reserve(request):
            return

        def answered(wanted: bool) -> None:
            if not wanted:
                self._free(request.allocation_id)
            elif self._slots.find(request.allocation_id) is not None:
                self._activate(request.allocation_id)

        def failed(error: BaseException) -> None:
            _LOG.warning(
                "%s slot %d cannot be offered to job %s: %s", request.kind, request.slot, request.job_id, error
            )
            self._free(request.allocation_id)

        self.hand_off(self._jobmaster(request).offer_slot(self._offer(request)), then=answered, failed=failed)

    def _offer(self, request: SlotRequest) -> SlotOffer:
        return SlotOffer(
            taskmanager=self._shape.name,
            host=self._shape.host,
            slot=request.slot,
            allocation_id=request.allocation_id,
            profile=request.profile,
            kind=request.kind,
        )

    def offer_held(self) -> None:
        """Offer the slots that jobs took under an earlier leader. Slots of a job that does not continue are freed."""
        peer = self._jobmanager
        for slot in self._slots.active():
            if slot.request is not None and peer is not None:
                self.hand_off(self._offer_again(slot.request, peer), failed=self._note_failure)

    async def _offer_again(self, request: SlotRequest, peer: RemotePeer) -> None:
        """Offer a slot until the JobMaster answers, the leader changes, or the slot is freed."""
        allocation_id = request.allocation_id
        while self._jobmanager is peer and not peer.closed and self._slots.find(allocation_id) is not None:
            if self._starting(request):  # it is not known yet whether it will run
                await asyncio.sleep(OFFER_AGAIN_SECONDS)
                continue
            offer = msgspec.structs.replace(
                self._offer(request),
                held=True,
                executor=self._executors.running_in(request),
                driver=self._drivers.attempt_in(allocation_id),
                driver_ports=self._drivers.ports_in(allocation_id),
            )
            try:
                wanted = await self._jobmaster(request).offer_slot(offer)
            except (EndpointNotFound, EndpointStopped, MailboxFull, RpcTimeout) as error:
                _LOG.info("slot %d is offered again to job %s: %s", request.slot, request.job_id, error)
            except (PeerUnreachable, LeadershipLost):
                return  # it is offered to the next leader
            except SluiceError as error:
                _LOG.warning("slot %d of job %s is freed: %s", request.slot, request.job_id, error)
                await self._end_slot(allocation_id)
                return
            else:
                if not wanted:
                    await self._end_slot(allocation_id)
                return
            await asyncio.sleep(OFFER_AGAIN_SECONDS)

    def _starting(self, request: SlotRequest) -> bool:
        return self._executors.starting_in(request) or self._drivers.starting_in(request.allocation_id)

    async def drain(self, draining: bool) -> None:
        """Stop or resume the allocation of slots."""
        if self._slots.draining != draining:
            _LOG.info("this TaskManager is %s", "draining" if draining else "in service again")
            self._slots.draining = draining
            self._slots_changed()

    async def leave(self) -> None:
        """Let this drained process exit; raises ``SlotNotAvailable`` while it holds slots or is not draining."""
        if self._slots.held() or not self._slots.draining:
            raise SlotNotAvailable("this TaskManager is not drained")
        _LOG.info("this TaskManager is drained and exits")
        self.left.set()

    async def free_slot(self, allocation_id: str) -> None:
        """End the processes in a slot and free it."""
        # If the caller stops waiting, this call is cancelled; the slot must be freed all the same: nobody asks again.
        return self.deferred(asyncio.shield(self.hand_off(self._end_slot(allocation_id), failed=self.note_failure)))

    async def _end_slot(self, allocation_id: str) -> None:
        slot = self._slots.release(allocation_id)
        request = slot.request if slot is not None else None  # another call may free the slot meanwhile
        if request is None:
            return
        await self._drivers.end_slot(allocation_id)
        await self._executors.end_slot(request)
        self._slots.freed(allocation_id)
        self._slots_changed()
        self._forget_if_over(request.job_id)

    def _activate(self, allocation_id: str) -> None:
        try:
            self._slots.activate(allocation_id)
        except AllocationUnknown:
            return  # it was freed meanwhile
        self._slots_changed()

    def _free(self, allocation_id: str) -> None:
        self.hand_off(self._end_slot(allocation_id))

    # --- executors ------------------------------------------------------------------------------------------

    async def launch_executor(self, launch: ExecutorLaunch) -> None:
        """Start an executor in an allocated slot; answers when its process runs.


        Raises ``AllocationUnknown``, ``SlotNotAvailable`` or ``ExecutorNotStarted``.
        """
        starting = self._executors.launch(launch, self._slots.activate(launch.allocation_id))
        self._over.discard(launch.job_id)  # only now: a late launch is refused
        return self.deferred(starting)

    async def give_way(self, job_id: str, executor_id: int) -> None:
        """Let other processes have the CPU first while an executor starts."""
        self._executors.lower_priority(job_id, executor_id)

    async def kill_executor(self, job_id: str, executor_id: int) -> None:
        """End an executor with SIGTERM, then SIGKILL. An unknown executor has ended already."""
        self._executors.kill(job_id, executor_id)

    def _tell_exit(self, request: SlotRequest, report: ExecutorExit) -> None:
        if self._jobmanager is not None and not self._jobmanager.closed:
            self.hand_off(self._tell_until_heard(request, report), failed=self._note_failure)

    async def _tell_until_heard(self, request: SlotRequest, report: ExecutorExit) -> None:
        """Repeat it while the JobMaster is busy: it would count the executor as running for ever."""
        while True:
            try:
                await self._jobmaster(request).executor_exited(report)
            except (MailboxFull, RpcTimeout) as error:
                _LOG.info("the end of executor %d is reported again: %s", report.executor_id, error)
            else:
                return
            await asyncio.sleep(OFFER_AGAIN_SECONDS)

    # --- drivers --------------------------------------------------------------------------------------------

    async def launch_driver(self, launch: DriverLaunch) -> None:
        """Start a driver in an allocated slot; answers when its process runs.

        Raises ``AllocationUnknown``, ``SlotNotAvailable`` or ``DriverNotStarted``.
        """
        check_job_id(launch.job_id)
        starting = self._drivers.launch(launch, self._slots.activate(launch.allocation_id))
        self._over.discard(launch.job_id)
        return self.deferred(starting)

    async def stop_driver(self, job_id: str, attempt: int, grace_seconds: float) -> None:
        """End a driver; answers when no process of it is left."""
        return self.deferred(self._drivers.stop(job_id, attempt, grace_seconds))

    async def driver_logs(self, job_id: str, attempt: int) -> tuple[str, ...]:
        """The names of the logs that the driver of an attempt has left here."""
        return self.deferred(self._drivers.logs(job_id, attempt))

    async def read_driver_log(self, job_id: str, attempt: int, name: str, offset: int, limit: int) -> LogChunk:
        """A piece of a driver's log; raises ``AllocationUnknown``."""
        return self.deferred(self._drivers.read_log(job_id, attempt, name, offset, limit))

    async def read_event_log(self, job_id: str, attempt: int, offset: int, limit: int) -> EventLogChunk:
        """A piece of Spark's event log of a driver that has ended."""
        return self.deferred(self._drivers.read_event_log(job_id, attempt, offset, limit))

    async def release_job(self, job_id: str) -> None:
        """End the driver and executors of a job that is over, free its slots, and keep only its logs."""
        # If the caller stops waiting, this call is cancelled; the job must be released all the same.
        return self.deferred(asyncio.shield(self.hand_off(self._release(job_id), failed=self.note_failure)))

    async def _release(self, job_id: str) -> None:
        await asyncio.gather(*(self._end_slot(request.allocation_id) for request in self._slots.of_job(job_id)))
        self._over.add(job_id)
        self._forget_if_over(job_id)
        async with self._trimming:
            await asyncio.to_thread(self._trim_logs)

    def _forget_if_over(self, job_id: str) -> None:
        if job_id in self._over and not self._slots.of_job(job_id):
            self._over.discard(job_id)
            self._executors.release_job(job_id)
            self._drivers.release_job(job_id)

    # --- queries ----------------------------------------------------------------------------------------------

    async def read_executor_log(self, job_id: str, executor_id: int, stream: str, offset: int, limit: int) -> LogChunk:
        """A piece of an executor's ``stdout`` or ``stderr``; raises ``AllocationUnknown``."""
        return self.deferred(self._executors.read_log(job_id, executor_id, stream, offset, limit))

    async def connections(self, job_id: str) -> Evidence:
        """Mutual TLS connections seen by this process (``job_id`` empty) or by that job's driver and executors here."""
        if not job_id:
            return from_log(self._connections)
        of_executors = self._executors.connections(job_id)
        return self.deferred(asyncio.to_thread(lambda: merge(of_executors(), self._drivers.connections(job_id))))

    async def excesses(self, job_id: str) -> tuple[ExecutorExcess, ...]:
        """The latest executors of the job here that exceeded a resource limit, checked now."""
        return self._executors.excesses(job_id)

    # --- inside -------------------------------------------------------------------------------------------------

    def _jobmaster(self, request: SlotRequest) -> JobMasterGateway:
        if self._jobmanager is None:
            raise AllocationUnknown("this TaskManager has no JobManager")
        return self._jobmanager.gateway(JobMasterGateway, request.jobmaster_endpoint, token=request.jobmaster_token)

    def _note_failure(self, error: BaseException) -> None:
        if isinstance(error, SluiceError):
            _LOG.info("cannot call a JobMaster: %s", error)
        else:
            self.on_failure(error)

    def _trim_logs(self) -> None:
        trim_logs(self._directory, self._executors.jobs | self._drivers.jobs)
