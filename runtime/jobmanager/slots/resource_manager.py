"""The ResourceManager: TaskManagers register here, JobMasters get slots here.

It carries out what ``SlotManager`` decides. A TaskManager is lost when its stream closes, or when it sends no heartbeat
within the heartbeat timeout.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial

from sluice.core import PeerRefused, SluiceError
from sluice.pki.tls import ConnectionLog
from sluice.runtime.gateways import RESOURCE_MANAGER, TASK_EXECUTOR, TaskExecutorGateway
from sluice.runtime.jobmanager.errors import NotRegistered, TaskManagerLeaves
from sluice.runtime.jobmanager.gateways import (
    DriverLogRequest,
    ExecutorLogRequest,
    JobMasterInternalGateway,
    ProvisionView,
    ResourceProviderGateway,
    SandboxView,
    ServiceCounts,
    SlotRequirement,
)
from sluice.runtime.jobmanager.slots.concurrency_limit import ConcurrencyLimit
from sluice.runtime.jobmanager.slots.dedication import Dedication
from sluice.runtime.jobmanager.slots.preemption import Preemption
from sluice.runtime.jobmanager.slots.provision import Provided, Provision, ProvisionLimits
from sluice.runtime.jobmanager.slots.registered import Registered, RegisteredTaskManagers
from sluice.runtime.jobmanager.slots.slot_ledger import AllocationLost, Release, Reserve
from sluice.runtime.jobmanager.slots.slot_pools import SlotPools
from sluice.runtime.jobmanager.views import QueueView, TaskManagerView
from sluice.runtime.messages import (
    DRIVER_LOGS,
    MAX_EVENT_LOG_CHUNK_BYTES,
    MAX_SLOTS_PER_TASKMANAGER,
    EndedUiAnswer,
    EventLogChunk,
    EventLogPiece,
    Evidence,
    LogChunk,
    RegistrationAccepted,
    SlotKind,
    SlotProfile,
    SlotReport,
    TaskManagerRegistration,
    UiRequest,
)
from sluice.runtime.node import from_log, merge
from sluice.runtime.placement import Placement
from sluice.runtime.rpc import (
    EndpointNotFound,
    EndpointStopped,
    FencedRpcEndpoint,
    FencingTokenMismatch,
    HeartbeatMonitor,
    RemotePeer,
    stall_limit,
)
from sluice.runtime.scheduling_config import SchedulingConfig

_LOG = logging.getLogger(__name__)

MAX_TASKMANAGERS = 10_000
TOKEN_BYTES = 16
PROVIDE_SECONDS = 0.5
"""Seconds between two decisions on how many TaskManagers there should be."""
PREEMPT_SECONDS = 1.0
"""Seconds between two decisions on preemption."""
MAX_NOTE_CHARACTERS = 600
MAX_REQUESTS_AT_ONCE = 512
"""Most requests to reserve or free slots that wait for TaskManagers at a time."""


class ResourceManager(FencedRpcEndpoint):
    """The endpoint where TaskManagers register and JobMasters require slots.

    Args:
        heartbeat_interval: seconds between a TaskManager's heartbeats.
        heartbeat_timeout: seconds of silence after which a TaskManager is lost.
        blob_address: of the blob server, told to TaskManagers.
        placement: how TaskManagers for slots are chosen.
        max_slots_per_user: 0: any number.
        provision: how many TaskManagers are started on demand; None: none are.
        scheduling: the queues that share the slots for executors.
        dedication: which TaskManager serves which job only; None: each serves many.
    """

    def __init__(
        self,
        *,
        heartbeat_interval: float,
        heartbeat_timeout: float,
        blob_address: tuple[str, int],
        connections: ConnectionLog,
        placement: Placement = Placement.SPREAD,
        max_slots_per_user: int = 0,
        provision: ProvisionLimits | None = None,
        scheduling: SchedulingConfig | None = None,
        dedication: Dedication | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(RESOURCE_MANAGER, ResourceProviderGateway)
        self.fencing_token = secrets.token_bytes(TOKEN_BYTES)
        self._interval = heartbeat_interval
        self._timeout = heartbeat_timeout
        self._blob_address = blob_address
        self._connections = connections
        self._clock = clock
        self._scheduling = scheduling or SchedulingConfig()
        self._preempted: Counter[str] = Counter()
        """The number of slots taken from the jobs of each queue."""
        self._watch_period = min(heartbeat_interval, heartbeat_timeout / 4)
        stalled_after = stall_limit(self._watch_period, heartbeat_timeout)
        self._monitor: HeartbeatMonitor[str] = HeartbeatMonitor(heartbeat_timeout, stalled_after=stalled_after)
        self._slots = SlotPools(
            lambda: secrets.token_hex(16),
            placement=placement,
            max_slots_per_user=max_slots_per_user,
            scheduling=scheduling,
            dedication=dedication,
        )
        self._provider_note = ""
        self._provision = None if provision is None else Provision(provision)
        self._provided = Provided(0 if provision is None else provision.least, ())
        self._registered = RegisteredTaskManagers()
        self._requests = ConcurrencyLimit(MAX_REQUESTS_AT_ONCE)
        self._jobs: dict[str, SlotRequirement] = {}
        self._expected: set[str] = set()
        """Jobs for which TaskManagers may have held slots since an earlier leader."""

    async def on_start(self) -> None:
        """Start to watch heartbeats and unmet requirements."""
        self._watch()
        self._provide()
        self._preempt()

    # --- TaskManagers -----------------------------------------------------------------------------------

    async def register(self, registration: TaskManagerRegistration) -> RegistrationAccepted:
        """Introduce a TaskManager; its certificate must carry the name it gives."""
        peer, identity, name = self.caller.peer, self.caller.identity, registration.name
        if peer is None or identity.name != name:
            raise PeerRefused(f"{identity} cannot register as {name!r}", "the name must be that of the certificate")
        if not 1 <= registration.slots <= MAX_SLOTS_PER_TASKMANAGER:
            raise PeerRefused(f"{registration.slots} slots", f"offer 1 to {MAX_SLOTS_PER_TASKMANAGER}")
        if min(registration.profile.cores, registration.profile.memory_mb) < 1:
            raise PeerRefused(f"slots of {registration.profile}", "offer at least a core and 1 MiB in each")
        if not 0 <= registration.driver_slots <= MAX_SLOTS_PER_TASKMANAGER:
            raise PeerRefused(f"{registration.driver_slots} driver slots", f"offer 0 to {MAX_SLOTS_PER_TASKMANAGER}")
        if name not in self._registered and len(self._registered) >= MAX_TASKMANAGERS:
            raise PeerRefused(f"{MAX_TASKMANAGERS} TaskManagers are registered already")
        earlier = self._registered.get(name)
        if earlier is not None and earlier.peer is not peer:
            self.hand_off(earlier.peer.close("registered again"), failed=self.note_failure)
        self._registered[name] = Registered(
            peer,
            peer.gateway(TaskExecutorGateway, TASK_EXECUTOR),
            self._now_ms(),
            isolation=registration.isolation,
            egress=registration.egress,
        )
        self._tell_lost(name, self._slots.register(registration, self._expected))
        if registration.report is not None:
            for action in self._slots.report(name, registration.report):
                if isinstance(action, Release):  # the allocation of a job that has ended, or starts again
                    self._release(action)
        self._monitor.beat(name)
        if earlier is None or earlier.peer is not peer:
            self.watch(peer, self._peer_closed, name, peer)
        count = (registration.slots, registration.driver_slots)
        _LOG.info("registered %s at %s: slots for %d executors, %d drivers", identity, registration.host, *count)
        self.call_later(0, self._decide)  # after the answer; not refused when the mailbox is full
        return RegistrationAccepted(
            fencing_token=self.fencing_token or b"",
            heartbeat_interval=self._interval,
            heartbeat_timeout=self._timeout,
            blob_host=self._blob_address[0],
            blob_port=self._blob_address[1],
        )

    async def heartbeat(self, report: SlotReport) -> None:
        """Note that the TaskManager is alive, and the state of its slots."""
        name = self.caller.identity.name
        registered = self._registered.get(name)
        if registered is None or registered.peer is not self.caller.peer:
            raise NotRegistered(f"TaskManager {name} is not registered over this connection", "register again")
        registered.last_heartbeat = self._now_ms()
        registered.warm = report.warm
        self._monitor.beat(name)
        lost = []
        for action in self._slots.report(name, report):
            if isinstance(action, Release):
                self._release(action)
            else:
                lost.append(action)
        self._tell_lost(name, lost)
        self._agree_on_draining(name, registered, report.draining)
        self._decide()

    async def drain_taskmanager(self, name: str, draining: bool) -> None:
        """Drain a TaskManager: no job gets its slots, and it leaves when none is held. Or undo that."""
        registered = self._registered.named(name)
        if registered.leaving and not draining:
            raise TaskManagerLeaves(f"TaskManager {name} is empty and leaves", "start it again when it has ended")
        _LOG.info("TaskManager %s is %s", name, "to be drained" if draining else "in service again")
        registered.draining = draining
        self._drain(name, registered, draining=draining)
        self._decide()

    def _agree_on_draining(self, name: str, registered: Registered, said: bool) -> None:
        """Settle whether a TaskManager drains: an earlier leader may have drained it, or a message was lost."""
        if registered.draining is None:
            registered.draining = said
            if said:
                self._drain(name, registered, draining=True)
        elif registered.draining != said:
            self.hand_off(registered.gateway.drain(registered.draining), failed=self._log_failure("draining"))
        self._let_go(name, again=True)

    def _drain(self, name: str, registered: Registered, *, draining: bool) -> None:
        self.hand_off(registered.gateway.drain(draining), failed=self._log_failure(f"telling {name} to drain"))
        for job_id, allocations in self._slots.drain(name, draining=draining).items():
            requirement = self._jobs.get(job_id)
            if requirement is not None:
                master = self._master(requirement)
                self.hand_off(master.slots_draining(allocations, name), failed=partial(self._untold, requirement))
        self._let_go(name)

    def _let_go(self, name: str, *, again: bool = False) -> None:
        """Tell a drained TaskManager to leave; repeated with the next heartbeat, in case the message is lost."""
        registered = self._registered.get(name)
        if registered is None or not self._slots.drained(name) or (registered.leaving and not again):
            return
        _LOG.info("TaskManager %s is drained and may leave", name)
        registered.leaving = True
        self.hand_off(registered.gateway.leave(), failed=self._log_failure(f"letting {name} go"))

    def _peer_closed(self, name: str, peer: RemotePeer) -> None:
        registered = self._registered.get(name)
        if registered is not None and registered.peer is peer:
            self._lose(name, "its connection closed")

    def _watch(self) -> None:
        """Check all TaskManagers, each on its own: an error with one does not stop the check of others."""
        self.call_later(self._watch_period, self._watch)
        silent = set(self._monitor.expired())
        for name, registered in list(self._registered.items()):
            try:
                if name in silent:
                    self.hand_off(registered.peer.close("no heartbeat"), failed=self.note_failure)
                    self._lose(name, f"nothing was heard of it for {self._timeout:g} s")
                elif registered.peer.closed:
                    self._lose(name, "its connection closed")
            except Exception as error:  # noqa: BLE001  # see above; the next round retries it
                self.note_failure(error)

    def _lose(self, name: str, reason: str) -> None:
        _LOG.warning("lost TaskManager %s: %s", name, reason)
        lost = self._slots.lost(name)  # if that fails, the next round finds its connection closed
        del self._registered[name]
        self._monitor.forget(name)
        self._tell_lost(name, lost)
        self._decide()

    def _tell_lost(self, taskmanager: str, lost: Sequence[AllocationLost]) -> None:
        by_job: dict[str, list[str]] = defaultdict(list)
        for each in lost:
            by_job[each.job_id].append(each.allocation_id)
        for job_id, allocations in by_job.items():
            requirement = self._jobs.get(job_id)
            if requirement is not None:
                self.hand_off(
                    self._master(requirement).slots_lost(tuple(allocations), taskmanager),
                    failed=partial(self._untold, requirement),
                )

    def _master(self, requirement: SlotRequirement) -> JobMasterInternalGateway:
        return self.service.local(
            JobMasterInternalGateway, requirement.jobmaster_endpoint, token=requirement.jobmaster_token
        )

    def _untold(self, requirement: SlotRequirement, error: BaseException) -> None:
        """Release the slots of a JobMaster that is gone: else they would be offered to it for ever."""
        self._log_failure("telling a JobMaster")(error)
        gone = isinstance(error, EndpointNotFound | EndpointStopped | FencingTokenMismatch)
        if gone and self._jobs.get(requirement.job_id) is requirement:
            self._drop_job(requirement.job_id)

    # --- TaskManagers on demand -----------------------------------------------------------------------------

    async def service_counts(self) -> ServiceCounts:
        """How many TaskManagers there are and should be."""
        return ServiceCounts(
            taskmanagers=len(self._registered),
            taskmanagers_draining=sum(each.draining for each in self._slots.taskmanagers),
            taskmanagers_wanted=None if self._provision is None else self._provided.wanted,
        )

    async def provide(self, note: str) -> ProvisionView:
        """How many TaskManagers the resource provider should have; ``note`` says what keeps it from starting more."""
        self._provider_note = note[:MAX_NOTE_CHARACTERS]
        draining = frozenset(each.name for each in self._slots.taskmanagers if each.draining)
        return ProvisionView(wanted=self._provided.wanted, registered=frozenset(self._registered), draining=draining)

    def _provide(self) -> None:
        if self._provision is None:
            return
        self.call_later(PROVIDE_SECONDS, self._provide)
        self._provided = self._provision.decide(
            self._slots.demands(self._provision.limits),
            time.monotonic(),
            self._slots.dedicated_demands(self._provision.limits, self._jobs.__contains__),
        )
        for name in self._provided.drain:
            registered = self._registered.get(name)
            if registered is not None:
                _LOG.info("TaskManager %s is not needed any more", name)
                registered.draining = True
                self._drain(name, registered, draining=True)

    # --- preemption -----------------------------------------------------------------------------------------

    def _preempt(self) -> None:
        if not self._scheduling.preempts:
            return
        self.call_later(PREEMPT_SECONDS, self._preempt)
        try:
            preemptions, overdue = self._slots.preempt(time.monotonic())
        except Exception as error:  # noqa: BLE001  # the next round retries it; slots are given meanwhile
            self.note_failure(error)
            return
        for each in preemptions:
            self._tell_preempted(each)
        for release in overdue:
            _LOG.warning("a slot of %s was not given back in time and is freed", release.taskmanager)
            self._release(release)

    def _tell_preempted(self, preemption: Preemption) -> None:
        by_job: dict[str, list[str]] = defaultdict(list)
        for victim in preemption.victims:
            by_job[victim.job_id].append(victim.allocation_id)
        for job_id, allocations in by_job.items():
            _LOG.info(
                "job %s loses %d executors on %s for job %s: %s",
                *(job_id, len(allocations), preemption.taskmanager, preemption.beneficiary, preemption.reason),
            )
            requirement = self._jobs.get(job_id)
            if requirement is not None:
                self._preempted[self._scheduling.name_or_others(requirement.queue)] += len(allocations)
                told = self._master(requirement).slots_preempted(
                    tuple(allocations), preemption.reason, self._scheduling.preemption_grace
                )
                self.hand_off(told, failed=partial(self._untold, requirement))

    # --- JobMasters ---------------------------------------------------------------------------------------

    async def expect_held_slots(self, job_ids: tuple[str, ...]) -> None:
        """Let TaskManagers that register keep the slots that they hold for these jobs."""
        self._expected.update(job_ids)

    async def held_slots_settled(self, job_id: str) -> None:
        """Expect no more such slots for this job."""
        self._expected.discard(job_id)

    async def require_slots(self, requirement: SlotRequirement) -> str:
        """State how many slots a job wants in total; returns why it does not have them, empty when it does."""
        self._jobs[requirement.job_id] = requirement
        self._slots.require(requirement)
        self._decide()
        reason = self._slots.pending_reason(requirement)
        note = self._provider_note
        if self._provision is not None and self._provided.full and not note:
            note = f"there are {self._provision.limits.most} TaskManagers, as many as there may be"
        return f"{reason}; {note}" if reason and note else reason

    async def too_large(self, size: SlotProfile) -> str:
        """Why no TaskManager can ever have a slot of this size; empty when one can, or when none has registered yet."""
        if self._provision is not None and self._provision.limits.size.fits(size):
            return ""
        return self._slots.too_large(size)

    async def release_slot(self, allocation_id: str) -> None:
        """Free an allocation that is no longer needed."""
        for release in self._slots.release(allocation_id):
            self._release(release)

    async def release_job(self, job_id: str) -> None:
        """Take back everything that a job holds: it is over."""
        self._drop_job(job_id)

    def _drop_job(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)
        self._expected.discard(job_id)
        for release in self._slots.release_job(job_id):
            self._release(release)
        self._decide()

    def _decide(self) -> None:
        for reserve in self._slots.decide():
            self._reserve(reserve)

    def _reserve(self, reserve: Reserve) -> None:
        allocation_id = reserve.request.allocation_id

        def acknowledged(_: None) -> None:
            self._requests.done()
            self._slots.acknowledged(allocation_id)

        def refused(error: BaseException) -> None:
            self._requests.done()
            _LOG.warning("%s did not reserve slot %d: %s", reserve.taskmanager, reserve.request.slot, error)
            self._slots.refused(allocation_id)
            self._decide()

        def start() -> bool:
            registered = self._registered.get(reserve.taskmanager)
            if registered is None or not self._slots.awaits(allocation_id):
                return False  # lost or given back while it waited
            self.hand_off(registered.gateway.request_slot(reserve.request), then=acknowledged, failed=refused)
            return True

        self._requests.submit(start)

    def _release(self, release: Release) -> None:
        def freed(_: None) -> None:
            self._requests.done()
            self._slots.freed(release.allocation_id)
            self._let_go(release.taskmanager)
            self._decide()

        def failed(error: BaseException) -> None:
            # The next heartbeat shows the slot still taken, and that retries it.
            self._requests.done()
            self._log_failure(f"freeing a slot of {release.taskmanager}")(error)

        def start() -> bool:
            registered = self._registered.get(release.taskmanager)
            if registered is None:
                return False  # the slot is gone with its TaskManager
            self.hand_off(registered.gateway.free_slot(release.allocation_id), then=freed, failed=failed)
            return True

        self._requests.submit(start)

    # --- queries --------------------------------------------------------------------------------------------

    async def taskmanagers(self) -> tuple[TaskManagerView, ...]:
        """All registered TaskManagers."""
        drivers = {each.name: each for each in self._slots.of(SlotKind.DRIVER).taskmanagers}
        return tuple(self._registered[each.name].view(each, drivers[each.name]) for each in self._slots.taskmanagers)

    async def queues(self) -> tuple[QueueView, ...]:
        """All queues, with all jobs that hold or lack slots for executors; none where none are configured."""
        now, monotonic = self._clock(), time.monotonic()
        return self._slots.queues(self._preempted, lambda at: int((now + at - monotonic) * 1000))

    async def sandbox_of(self, taskmanager: str) -> SandboxView:
        """The sandbox in which a TaskManager runs processes of jobs; raises ``TaskManagerNotFound``."""
        registered = self._registered.named(taskmanager)
        return SandboxView(isolation=registered.isolation, egress=registered.egress)

    async def connections(self) -> Evidence:
        """Mutual TLS connections of this process and of all TaskManagers."""
        gateways = [each.gateway for each in self._registered.values()]

        async def collect() -> Evidence:
            answers = await asyncio.gather(*(each.connections("") for each in gateways), return_exceptions=True)
            return merge(from_log(self._connections), *(each for each in answers if isinstance(each, Evidence)))

        return self.deferred(collect())

    async def read_executor_log(self, request: ExecutorLogRequest) -> LogChunk:
        """A piece of an executor's log, from its TaskManager; raises ``LogNotFound``."""
        gateway = self._registered.with_logs(request.taskmanager)
        return self.deferred(
            gateway.read_executor_log(
                request.job_id, request.executor_id, request.stream, request.offset, request.limit
            )
        )

    async def driver_logs(self, taskmanager: str, job_id: str, attempt: int) -> tuple[str, ...]:
        """The logs of an attempt's driver; if its TaskManager is gone, all possible names (reading them fails)."""
        registered = self._registered.get(taskmanager)
        return DRIVER_LOGS if registered is None else self.deferred(registered.gateway.driver_logs(job_id, attempt))

    async def read_driver_log(self, request: DriverLogRequest) -> LogChunk:
        """A piece of a driver's log, from its TaskManager; raises ``LogNotFound``."""
        gateway = self._registered.with_logs(request.taskmanager)
        return self.deferred(
            gateway.read_driver_log(request.job_id, request.attempt, request.name, request.offset, request.limit)
        )

    async def read_event_log(self, taskmanager: str, job_id: str, attempt: int, offset: int) -> EventLogChunk:
        """A piece of Spark's event log, from the driver's TaskManager; raises ``LogNotFound``."""
        gateway = self._registered.with_logs(taskmanager)
        return self.deferred(gateway.read_event_log(job_id, attempt, offset, MAX_EVENT_LOG_CHUNK_BYTES))

    # --- Spark's UI of jobs that have ended -------------------------------------------------------------------

    async def ended_ui_hosts(self) -> tuple[str, ...]:
        """The TaskManagers with a sandbox; drained ones only while there is no other."""
        return self._registered.ended_ui_hosts()

    async def ended_ui_page(self, taskmanager: str, job_id: str, request: UiRequest) -> EndedUiAnswer:
        """A page of the UI of a job that has ended."""
        return self.deferred(self._registered.with_ended_uis(taskmanager).page(job_id, request))

    async def load_ended_ui(self, taskmanager: str, piece: EventLogPiece) -> None:
        """Give a TaskManager a piece of an event log."""
        return self.deferred(self._registered.with_ended_uis(taskmanager).load(piece))

    # --- inside -----------------------------------------------------------------------------------------------

    def _log_failure(self, what: str) -> Callable[[BaseException], None]:
        def log(error: BaseException) -> None:
            if not isinstance(error, SluiceError):
                self.note_failure(error)
            else:
                _LOG.info("%s failed: %s", what, error)

        return log

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
