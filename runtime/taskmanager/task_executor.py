"""The TaskExecutor: reserves and offers slots, launches and watches what runs in them, cleans up after each job."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from sluice.core import TRACING, SluiceError, make_private_directory, remove_untrusted
from sluice.pki.issuing import SignedChain
from sluice.pki.tls import ConnectionLog
from sluice.runtime.blob import check_job_id
from sluice.runtime.gateways import EGRESS, TASK_EXECUTOR, EgressGateway, JobMasterGateway, TaskExecutorGateway
from sluice.runtime.ha import LeadershipLost
from sluice.runtime.job_network import JobNetwork
from sluice.runtime.messages import (
    CsrToSign,
    DriverLaunch,
    Evidence,
    ExecutorExcess,
    ExecutorLaunch,
    LogChunk,
    RunningExecutor,
    SlotKind,
    SlotOffer,
    SlotProfile,
    SlotReport,
    SlotRequest,
)
from sluice.runtime.node import ChildProcess, Exit, LeaderPlace, from_log, kill_below, merge, read_log
from sluice.runtime.rpc import (
    EndpointNotFound,
    EndpointStopped,
    MailboxFull,
    PeerUnreachable,
    RemotePeer,
    RpcEndpoint,
    RpcTimeout,
)
from sluice.runtime.sandbox import Sandbox, SandboxRefused
from sluice.runtime.spark.jvm import EXECUTOR_LISTENS
from sluice.runtime.taskmanager.driver import AGENT, DriverHome, clean_driver_directory
from sluice.runtime.taskmanager.drivers import Drivers
from sluice.runtime.taskmanager.errors import AllocationUnknown, ExecutorNotStarted, SlotNotAvailable
from sluice.runtime.taskmanager.executor import (
    ExecutorProcess,
    Join,
    clean_executor_directory,
    executor_directory,
)
from sluice.runtime.taskmanager.launcher import ExecutorLauncher
from sluice.runtime.taskmanager.network_owner import NetworkOwner
from sluice.runtime.taskmanager.networks import Networks
from sluice.runtime.taskmanager.slot_table import SlotTable
from sluice.runtime.taskmanager.slot_tables import SlotTables
from sluice.runtime.taskmanager.waiting_executor import STREAMS
from sluice.runtime.taskmanager.warm_processes import WarmProcesses
from sluice.runtime.workload import TokenUnavailable

_LOG = logging.getLogger(__name__)

KEPT_EXECUTORS = 100
"""Latest executors of one job whose logs are kept here: a job may be restarted for ever."""
OFFER_AGAIN_SECONDS = 0.2
"""Before a slot that is held is offered again to a JobMaster that is not there yet."""
KEPT_DRIVERS = 5
"""Latest drivers of one job whose logs are kept here: a streaming job may be restarted for ever."""
KEPT_EXCESSES = 20
"""Latest executors of one job of which is remembered which bound they exceeded."""
KEPT_JOBS = 100
"""Of how many ended jobs logs are kept."""


@dataclass(slots=True)
class _Job:
    """What runs here of one job, by executor number; the evidence of what has ended, and what had to be ended."""

    executors: dict[int, ExecutorProcess] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    excesses: deque[ExecutorExcess] = field(default_factory=lambda: deque(maxlen=KEPT_EXCESSES))


@dataclass(frozen=True, slots=True)
class TaskManagerShape:
    """What this TaskManager is and offers."""

    name: str
    host: str
    trust_domain: str
    python: str
    slots: int
    profile: SlotProfile
    total: SlotProfile
    driver_slots: int
    driver_profile: SlotProfile
    work: Path
    leader: LeaderPlace


class TaskExecutor(RpcEndpoint):
    """The endpoint of a TaskManager: its slots, and the drivers and executors in them.

    Args:
        shape: name, address and size.
        launcher: composes the commands of executors.
        slots_changed: called on the main thread after each change, so that the ResourceManager hears of it soon.
        argv: the command of a driver agent.
        networks: those of drivers and executors; None: they share the machine's.
        warm: processes that wait to become drivers and executors; None: there are none.
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
        networks: Networks | None = None,
        warm: WarmProcesses | None = None,
    ) -> None:
        super().__init__(TASK_EXECUTOR, TaskExecutorGateway)
        self._shape = shape
        self._launcher = launcher
        self._sandbox = sandbox
        self._connections = connections
        self._slots_changed = slots_changed
        self._networks = networks
        self._warm = warm
        self._slots = SlotTables(
            SlotTable(shape.slots, shape.profile, shape.total), SlotTable(shape.driver_slots, shape.driver_profile)
        )
        self.left = asyncio.Event()
        """Set when this process is to end, because it is drained."""
        self._jobs: dict[str, _Job] = {}
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
            spark=launcher.spark,
            argv=argv,
        )
        self._drivers = Drivers(self, home, self._jobmaster, networks, warm)

    async def on_start(self) -> None:
        """Remove what an earlier process of this name left behind; raises ``OrphansRemain``."""
        await asyncio.to_thread(self._clean_up)

    def _clean_up(self) -> None:
        kill_below(self._directory)
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
        """From now on calls go to this JobManager."""
        self._jobmanager = peer

    def egress(self) -> EgressGateway | None:
        """Who takes evidence of connections out of boxes now; None: nobody."""
        peer = self._jobmanager
        return None if peer is None or peer.closed else peer.gateway(EgressGateway, EGRESS)

    def report(self) -> SlotReport:
        """The state of all slots now."""
        warm = None if self._warm is None else self._warm.figures()
        return msgspec.structs.replace(self._slots.report(), warm=warm)

    async def reset(self) -> None:
        """End all drivers and executors and free all slots: the JobManager knows nothing of them (any more).

        Called while there is no JobManager that could call.
        """
        await self._stop_all()
        for request in self._slots.held():
            self._slots.freed(request.allocation_id)
        self._jobs.clear()

    async def _stop_all(self) -> None:
        running = [each for job in self._jobs.values() for each in job.executors.values()]
        await asyncio.gather(self._drivers.stop_all(), *(each.stop() for each in running))
        for each in running:
            await self._clear_away(each)

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
        """Offer slots that jobs had taken under an earlier leader; those of a job that does not go on are freed."""
        peer = self._jobmanager
        for slot in self._slots.active():
            if slot.request is not None and peer is not None:
                self.hand_off(self._offer_again(slot.request, peer), failed=self._note_failure)

    async def _offer_again(self, request: SlotRequest, peer: RemotePeer) -> None:
        """Offer a slot again until there is an answer, another leader, or no such slot any more."""
        allocation_id = request.allocation_id
        while self._jobmanager is peer and not peer.closed and self._slots.find(allocation_id) is not None:
            if self._starting(request):  # whether it will run is not known yet
                await asyncio.sleep(OFFER_AGAIN_SECONDS)
                continue
            offer = msgspec.structs.replace(
                self._offer(request),
                held=True,
                executor=self._executor_in(request),
                driver=self._drivers.attempt_in(allocation_id),
                driver_ports=self._drivers.ports_in(allocation_id),
            )
            try:
                wanted = await self._jobmaster(request).offer_slot(offer)
            except (EndpointNotFound, EndpointStopped, MailboxFull, RpcTimeout) as error:
                _LOG.info("slot %d is offered again to job %s: %s", request.slot, request.job_id, error)
            except (PeerUnreachable, LeadershipLost):
                return  # the next leader is offered it
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
        executor = self._inside(request)
        return (executor is not None and not executor.started) or self._drivers.starting_in(request.allocation_id)

    def _inside(self, request: SlotRequest) -> ExecutorProcess | None:
        job = self._jobs.get(request.job_id, _Job())
        inside = (e for e in job.executors.values() if e.launch.allocation_id == request.allocation_id)
        return next(inside, None)

    def _executor_in(self, request: SlotRequest) -> RunningExecutor | None:
        executor = self._inside(request)
        if executor is None:
            return None
        launch = executor.launch
        return RunningExecutor(
            executor_id=launch.executor_id,
            app_id=launch.app_id,
            resource_profile_id=launch.resource_profile_id,
            cores=launch.cores,
            memory_mb=launch.memory_mb,
            ports=executor.ports,
        )

    async def drain(self, draining: bool) -> None:
        """Take no more slots from now on, or take them again."""
        if self._slots.draining != draining:
            _LOG.info("this TaskManager is %s", "drained" if draining else "in service again")
            self._slots.draining = draining
            self._slots_changed()

    async def leave(self) -> None:
        """End this process, which is drained; raises ``SlotNotAvailable`` while it holds slots or is in service."""
        if self._slots.held() or not self._slots.draining:
            raise SlotNotAvailable("this TaskManager is not drained")
        _LOG.info("this TaskManager is drained and leaves")
        self.left.set()

    async def free_slot(self, allocation_id: str) -> None:
        """Release a slot; whatever runs in it is ended first."""
        return self.deferred(self._end_slot(allocation_id))

    async def _end_slot(self, allocation_id: str) -> None:
        slot = self._slots.release(allocation_id)
        request = slot.request if slot is not None else None  # another call may free the slot meanwhile
        if request is None:
            return
        await self._drivers.end_slot(allocation_id)
        job = self._jobs.get(request.job_id)
        if job is not None:
            inside = [e for e in job.executors.values() if e.launch.allocation_id == allocation_id]
            await asyncio.gather(*(executor.stop() for executor in inside))
        self._slots.freed(allocation_id)
        self._slots_changed()

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
        slot = self._slots.activate(launch.allocation_id)
        request = slot.request
        if request is None or request.job_id != launch.job_id or request.kind is not SlotKind.EXECUTOR:
            raise AllocationUnknown(f"allocation {launch.allocation_id} is not for an executor of job {launch.job_id}")
        if not slot.profile.fits(SlotProfile(cores=launch.cores, memory_mb=launch.memory_mb)):
            raise SlotNotAvailable(
                f"slot {slot.index} has {slot.profile}, too little for executor {launch.executor_id}"
            )
        job = self._jobs.setdefault(launch.job_id, _Job())
        if any(e.launch.allocation_id == launch.allocation_id for e in job.executors.values()):
            raise SlotNotAvailable(f"an executor runs in slot {slot.index} already")
        if launch.executor_id in job.executors:
            raise SlotNotAvailable(f"executor {launch.executor_id} of job {launch.job_id} runs already")
        executor = ExecutorProcess(
            msgspec.structs.replace(launch, python=self._shape.python),
            self._directory,
            host=self._shape.host,
            trust_domain=self._shape.trust_domain,
            sign=self._signer(request),
            sandbox=self._sandbox,
            join=None if self._networks is None else self._joining(self._networks, request),
            ask_token=partial(self._ask_token, request, launch.executor_id),
            ask_keys=partial(self._ask_keys, request),
            waiting=None if self._warm is None else self._warm.executor(launch),
        )
        job.executors[launch.executor_id] = executor
        return self.deferred(self._start(executor, job, request))

    def _signer(self, request: SlotRequest) -> Callable[[CsrToSign], asyncio.Future[SignedChain]]:
        """Asks whoever masters the job now, over the connection there is now."""
        return lambda csr: asyncio.ensure_future(self._jobmaster(request).sign_executor_identity(csr))

    def _joining(self, networks: Networks, request: SlotRequest) -> Join:
        loop = asyncio.get_running_loop()

        async def join(executor: ExecutorProcess) -> JobNetwork:
            number = executor.launch.executor_id

            def end(reason: str) -> None:
                _LOG.warning("executor %d of job %s is ended: %s", number, request.job_id, reason)
                self.hand_off(executor.stop())

            network_owner = NetworkOwner(
                job_id=request.job_id,
                process=f"executor/{number}",
                attempt=executor.launch.attempt,
                identity=executor.identity,
                ask=lambda port: self._jobmaster(request).listeners_on(port),
                end=lambda reason: loop.call_soon_threadsafe(end, reason),
            )
            network = await networks.open(network_owner, EXECUTOR_LISTENS, executor.waiting_network)
            try:
                await self._jobmaster(request).executor_listens(number, network.ports.ports)
            except BaseException:
                await asyncio.to_thread(network.close)
                raise
            return network

        return join

    async def _ask_token(self, request: SlotRequest, executor_id: int, audience: tuple[str, ...]) -> str:
        return (await self._jobmaster(request).issue_executor_token(executor_id, audience)).token

    async def _ask_keys(self, request: SlotRequest) -> str:
        return (await self._jobmaster(request).token_keys()).jwks

    async def _start(self, executor: ExecutorProcess, job: _Job, request: SlotRequest) -> None:
        launch = executor.launch
        try:
            with TRACING.span("launch executor", launch.trace, job=launch.job_id, executor=launch.executor_id):
                child = await executor.start(self._launcher)
        except BaseException as error:
            job.executors.pop(launch.executor_id, None)
            await asyncio.shield(self._clear_away(executor))
            if isinstance(error, SandboxRefused | TokenUnavailable):
                raise ExecutorNotStarted(f"executor {launch.executor_id}: {error}") from error
            if isinstance(error, OSError):
                raise ExecutorNotStarted(f"executor {launch.executor_id}: {error.strerror or error}") from error
            raise
        _LOG.info("executor %d of job %s runs, pid %d", launch.executor_id, launch.job_id, child.pid)
        renewal = self.hand_off(executor.keep_renewed())
        self.hand_off(child.wait(), then=lambda ended: self._ended(executor, child, request, ended)).add_done_callback(
            lambda _: renewal.cancel()
        )

    def _ended(self, executor: ExecutorProcess, child: ChildProcess, request: SlotRequest, ended: Exit) -> None:
        child.signal_group(signal.SIGKILL)  # whatever it has left in its session
        launch = executor.launch
        _LOG.info("executor %d of job %s ended: %s", launch.executor_id, launch.job_id, ended)
        job = self._jobs.get(launch.job_id)
        if job is not None and job.executors.get(launch.executor_id) is executor:
            del job.executors[launch.executor_id]
            job.evidence = merge(job.evidence, executor.connections())
            job.excesses.extend(_excess(executor))
        self.hand_off(self._clear_away(executor))
        if self._jobmanager is not None and not self._jobmanager.closed and job is not None:
            self.hand_off(
                self._jobmaster(request).executor_exited(executor.exit_report(ended)), failed=self._note_failure
            )

    @staticmethod
    async def _clear_away(executor: ExecutorProcess) -> None:
        await executor.end_workload()
        await asyncio.to_thread(executor.clean_up)

    async def kill_executor(self, job_id: str, executor_id: int) -> None:
        """End an executor: SIGTERM, then SIGKILL. One that is not known has ended already."""
        job = self._jobs.get(job_id)
        executor = job.executors.get(executor_id) if job is not None else None
        if executor is not None:
            self.hand_off(executor.stop())

    # --- drivers --------------------------------------------------------------------------------------------

    async def launch_driver(self, launch: DriverLaunch) -> None:
        """Start a driver in an allocated slot; answers when its process runs.

        Raises ``AllocationUnknown``, ``SlotNotAvailable`` or ``DriverNotStarted``.
        """
        check_job_id(launch.job_id)
        return self.deferred(self._drivers.launch(launch, self._slots.activate(launch.allocation_id)))

    async def stop_driver(self, job_id: str, attempt: int, grace_seconds: float) -> None:
        """End a driver; answers when nothing of it runs any more."""
        return self.deferred(self._drivers.stop(job_id, attempt, grace_seconds))

    async def driver_logs(self, job_id: str, attempt: int) -> tuple[str, ...]:
        """Which logs the driver of an attempt has left here."""
        return self.deferred(self._drivers.logs(job_id, attempt))

    async def read_driver_log(self, job_id: str, attempt: int, name: str, offset: int, limit: int) -> LogChunk:
        """A piece of a driver's log; raises ``AllocationUnknown``."""
        return self.deferred(self._drivers.read_log(job_id, attempt, name, offset, limit))

    async def release_job(self, job_id: str) -> None:
        """The job is over: end its driver and executors, free its slots, keep only its logs."""
        return self.deferred(self._release(job_id))

    async def _release(self, job_id: str) -> None:
        await asyncio.gather(*(self._end_slot(request.allocation_id) for request in self._slots.of_job(job_id)))
        self._jobs.pop(job_id, None)
        self._drivers.release_job(job_id)
        await asyncio.to_thread(self._trim_logs)

    # --- queries ----------------------------------------------------------------------------------------------

    async def read_executor_log(self, job_id: str, executor_id: int, stream: str, offset: int, limit: int) -> LogChunk:
        """A piece of an executor's ``stdout`` or ``stderr``; raises ``AllocationUnknown``."""
        if stream not in STREAMS or executor_id < 0:
            raise AllocationUnknown(f"an executor has no log {stream[:40]!r}")
        path = executor_directory(self._directory, check_job_id(job_id), executor_id) / stream
        return self.deferred(asyncio.to_thread(read_log, path, offset, limit))

    async def connections(self, job_id: str) -> Evidence:
        """Mutual TLS connections seen by this process (``job_id`` empty) or by that job's driver and executors here."""
        if not job_id:
            return from_log(self._connections)
        job = self._jobs.get(job_id, _Job())
        running = tuple(job.executors.values())

        def read() -> Evidence:
            return merge(job.evidence, self._drivers.connections(job_id), *(each.connections() for each in running))

        return self.deferred(asyncio.to_thread(read))

    async def excesses(self, job_id: str) -> tuple[ExecutorExcess, ...]:
        """Which of the job's executors here have exceeded a bound, as is found out now, the latest ones."""
        job = self._jobs.get(job_id, _Job())
        return (*job.excesses, *(each for executor in job.executors.values() for each in _excess(executor)))

    # --- inside -------------------------------------------------------------------------------------------------

    def _jobmaster(self, request: SlotRequest) -> JobMasterGateway:
        if self._jobmanager is None:
            raise AllocationUnknown("this TaskManager has no JobManager")
        return self._jobmanager.gateway(JobMasterGateway, request.jobmaster_endpoint, token=request.jobmaster_token)

    def _note_failure(self, error: BaseException) -> None:
        if isinstance(error, SluiceError):
            _LOG.info("a JobMaster could not be told: %s", error)
        else:
            self.on_failure(error)

    def _trim_logs(self) -> None:
        """Keep the logs of the latest jobs only."""
        kept = self._jobs.keys() | self._drivers.jobs
        ended = [path for path in self._directory.iterdir() if path.is_dir() and path.name not in kept]
        ended.sort(key=lambda path: path.stat().st_mtime)
        for path in ended[: max(0, len(ended) - KEPT_JOBS)]:
            remove_untrusted(self._directory, path.name)
        for job in ended[max(0, len(ended) - KEPT_JOBS) :]:
            _trim(job, "executor-", KEPT_EXECUTORS)
        for job in self._directory.iterdir():
            _trim(job, "driver-", KEPT_DRIVERS)


def _excess(executor: ExecutorProcess) -> tuple[ExecutorExcess, ...]:
    reason = executor.excess()
    return (ExecutorExcess(executor_id=executor.launch.executor_id, reason=reason),) if reason else ()


def _trim(job: Path, prefix: str, kept: int) -> None:
    """Keep the last ``kept`` of a job's directories that begin with ``prefix`` and end with a number."""
    numbers = sorted(int(path.name.removeprefix(prefix)) for path in job.glob(f"{prefix}*"))
    for number in numbers[: max(0, len(numbers) - kept)]:
        remove_untrusted(job, f"{prefix}{number}")
