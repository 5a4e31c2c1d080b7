"""The executors of one TaskManager: launches them in slots, watches and ends them, reads their logs and evidence."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sluice.core import TRACING
from sluice.pki.issuing import SignedChain
from sluice.runtime.blob import check_job_id
from sluice.runtime.gateways import JobMasterGateway
from sluice.runtime.job_network import JobNetwork
from sluice.runtime.messages import (
    CsrToSign,
    Evidence,
    ExecutorExcess,
    ExecutorExit,
    ExecutorLaunch,
    LogChunk,
    RunningExecutor,
    SlotKind,
    SlotProfile,
    SlotRequest,
)
from sluice.runtime.node import ChildProcess, Exit, merge, read_log
from sluice.runtime.rpc import RpcEndpoint
from sluice.runtime.sandbox import Sandbox, SandboxRefused
from sluice.runtime.spark.jvm import EXECUTOR_LISTENS
from sluice.runtime.taskmanager.errors import AllocationUnknown, ExecutorNotStarted, SlotNotAvailable
from sluice.runtime.taskmanager.launcher import ExecutorLauncher
from sluice.runtime.taskmanager.networks import NetworkOwner, Networks
from sluice.runtime.taskmanager.processes.executor import ExecutorProcess, Join, executor_directory
from sluice.runtime.taskmanager.shape import TaskManagerShape
from sluice.runtime.taskmanager.slot_table import TaskSlot
from sluice.runtime.taskmanager.waiting import STREAMS, WarmProcesses
from sluice.runtime.workload import TokenUnavailable

_LOG = logging.getLogger(__name__)

KEPT_EXCESSES = 20
"""Number of a job's latest executors whose exceeded resource limits are remembered."""


@dataclass(slots=True)
class _Job:
    """One job's executors here by number, the evidence of ended ones, and the limits that some exceeded."""

    executors: dict[int, ExecutorProcess] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    excesses: deque[ExecutorExcess] = field(default_factory=lambda: deque(maxlen=KEPT_EXCESSES))


@dataclass(frozen=True, slots=True)
class ExecutorHome:
    """Settings that all executors of a TaskManager share.


    Attributes:
        jobs: contains a directory per job.
        launcher: builds their commands.
        networks: opens their networks; None: they share the machine's.
        warm: the pool of warm JVMs; None: there is none.
    """

    shape: TaskManagerShape
    jobs: Path
    launcher: ExecutorLauncher
    sandbox: Sandbox
    networks: Networks | None = None
    warm: WarmProcesses | None = None


class Executors:
    """All executors of this TaskManager, by job.


    Args:
        endpoint: the TaskExecutor; its main thread handles the end of executors.
        home: the settings that all executors share.
        jobmaster: returns the current JobMaster of a slot's job.
        tell_exit: tells the JobMaster how an executor ended.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        home: ExecutorHome,
        jobmaster: Callable[[SlotRequest], JobMasterGateway],
        tell_exit: Callable[[SlotRequest, ExecutorExit], None],
    ) -> None:
        self._endpoint = endpoint
        self._home = home
        self._jobmaster = jobmaster
        self._tell_exit = tell_exit
        self._jobs: dict[str, _Job] = {}

    # --- start ----------------------------------------------------------------------------------------------

    def launch(self, launch: ExecutorLaunch, slot: TaskSlot) -> Coroutine[Any, Any, None]:
        """Start an executor in an allocated slot. The returned coroutine ends when its process runs.


        Raises:
            AllocationUnknown: the slot is not allocated to an executor of this job.
            SlotNotAvailable: the slot is too small, or the slot or the executor's number is taken.
        """
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
        executor = job.executors[launch.executor_id] = self._prepared(launch, request)
        return self._start(executor, job, request)

    def _prepared(self, launch: ExecutorLaunch, request: SlotRequest) -> ExecutorProcess:
        home = self._home
        return ExecutorProcess(
            msgspec.structs.replace(launch, python=home.shape.python),
            home.jobs,
            host=home.shape.host,
            trust_domain=home.shape.trust_domain,
            sign=self._signer(request),
            sandbox=home.sandbox,
            join=None if home.networks is None else self._joining(home.networks, request),
            ask_token=partial(self._ask_token, request, launch.executor_id),
            ask_keys=partial(self._ask_keys, request),
            waiting=None if home.warm is None else home.warm.executor(launch),
        )

    def _signer(self, request: SlotRequest) -> Callable[[CsrToSign], asyncio.Future[SignedChain]]:
        """A signer that asks the current JobMaster of the job, over the current connection."""
        return lambda csr: asyncio.ensure_future(self._jobmaster(request).sign_executor_identity(csr))

    def _joining(self, networks: Networks, request: SlotRequest) -> Join:
        loop = asyncio.get_running_loop()

        async def join(executor: ExecutorProcess) -> JobNetwork:
            number = executor.launch.executor_id

            def end(reason: str) -> None:
                _LOG.warning("ending executor %d of job %s: %s", number, request.job_id, reason)
                self._endpoint.hand_off(executor.stop())

            network_owner = NetworkOwner(
                job_id=request.job_id,
                process=f"executor/{number}",
                attempt=executor.launch.attempt,
                identity=executor.identity,
                ask=lambda port: self._jobmaster(request).listeners_on(port),
                end=lambda reason: loop.call_soon_threadsafe(end, reason),
            )
            return await networks.open(
                network_owner,
                EXECUTOR_LISTENS,
                lambda ports: self._jobmaster(request).executor_listens(number, ports),
                executor.waiting_network,
            )

        return join

    async def _ask_token(self, request: SlotRequest, executor_id: int, audience: tuple[str, ...]) -> str:
        return (await self._jobmaster(request).issue_executor_token(executor_id, audience)).token

    async def _ask_keys(self, request: SlotRequest) -> str:
        return (await self._jobmaster(request).token_keys()).jwks

    async def _start(self, executor: ExecutorProcess, job: _Job, request: SlotRequest) -> None:
        launch = executor.launch
        try:
            with TRACING.span("launch executor", launch.trace, job=launch.job_id, executor=launch.executor_id):
                child = await executor.start(self._home.launcher)
        except BaseException as error:
            job.executors.pop(launch.executor_id, None)
            await asyncio.shield(self._clear_away(executor))
            if isinstance(error, SandboxRefused | TokenUnavailable):
                raise ExecutorNotStarted(f"executor {launch.executor_id}: {error}") from error
            if isinstance(error, OSError):
                raise ExecutorNotStarted(f"executor {launch.executor_id}: {error.strerror or error}") from error
            raise
        _LOG.info("executor %d of job %s started, pid %d", launch.executor_id, launch.job_id, child.pid)
        renewal = self._endpoint.hand_off(executor.keep_renewed())
        watching = self._endpoint.hand_off(
            child.wait(), then=lambda ended: self._ended(executor, child, request, ended)
        )
        watching.add_done_callback(lambda _: renewal.cancel())

    def lower_priority(self, job_id: str, executor_id: int) -> None:
        """Let other processes have the CPU first while an executor starts."""
        job = self._jobs.get(job_id)
        executor = job.executors.get(executor_id) if job is not None else None
        if executor is not None:
            self._endpoint.hand_off(executor.lower_priority())

    # --- end ------------------------------------------------------------------------------------------------

    def _ended(self, executor: ExecutorProcess, child: ChildProcess, request: SlotRequest, ended: Exit) -> None:
        child.signal_group(signal.SIGKILL)  # kills leftover processes of its session
        launch = executor.launch
        _LOG.info("executor %d of job %s ended: %s", launch.executor_id, launch.job_id, ended)
        job = self._jobs.get(launch.job_id)
        if job is not None and job.executors.get(launch.executor_id) is executor:
            del job.executors[launch.executor_id]
            job.evidence = merge(job.evidence, executor.connections())
            job.excesses.extend(_excess(executor))
        self._endpoint.hand_off(self._clear_away(executor))
        if job is not None:
            self._tell_exit(request, executor.exit_report(ended))

    @staticmethod
    async def _clear_away(executor: ExecutorProcess) -> None:
        await executor.end_workload()
        await asyncio.to_thread(executor.clean_up)

    def kill(self, job_id: str, executor_id: int) -> None:
        """End an executor with SIGTERM, then SIGKILL. An unknown executor has ended already."""
        job = self._jobs.get(job_id)
        executor = job.executors.get(executor_id) if job is not None else None
        if executor is not None:
            self._endpoint.hand_off(executor.stop())

    async def end_slot(self, request: SlotRequest) -> None:
        """End the executor in a slot."""
        executor = self._in(request)
        if executor is not None:
            await executor.stop()

    async def stop_all(self) -> None:
        """End all executors and clean up after them."""
        running = [each for job in self._jobs.values() for each in job.executors.values()]
        await asyncio.gather(*(each.stop() for each in running))
        for each in running:
            await self._clear_away(each)

    def forget_all(self) -> None:
        """Forget all jobs."""
        self._jobs.clear()

    def release_job(self, job_id: str) -> None:
        """Forget a job that is over; its evidence has been collected."""
        self._jobs.pop(job_id, None)

    # --- queries --------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> frozenset[str]:
        """The jobs whose executors run or have run here."""
        return frozenset(self._jobs)

    def starting_in(self, request: SlotRequest) -> bool:
        """Whether an executor is being started in a slot."""
        executor = self._in(request)
        return executor is not None and not executor.started

    def running_in(self, request: SlotRequest) -> RunningExecutor | None:
        """The executor in a slot; None if there is none."""
        executor = self._in(request)
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

    def _in(self, request: SlotRequest) -> ExecutorProcess | None:
        job = self._jobs.get(request.job_id, _Job())
        inside = (e for e in job.executors.values() if e.launch.allocation_id == request.allocation_id)
        return next(inside, None)

    def connections(self, job_id: str) -> Callable[[], Evidence]:
        """A function that reads the mutual TLS connections recorded by the job's executors here; run it in a thread."""
        job = self._jobs.get(job_id, _Job())
        running = tuple(job.executors.values())

        def read() -> Evidence:
            seen = [each.connections() for each in running]
            return merge(job.evidence, *seen)  # last: it has what the files of an ended one had

        return read

    def excesses(self, job_id: str) -> tuple[ExecutorExcess, ...]:
        """The latest executors of the job here that exceeded a resource limit, checked now."""
        job = self._jobs.get(job_id, _Job())
        return (*job.excesses, *(each for executor in job.executors.values() for each in _excess(executor)))

    async def read_log(self, job_id: str, executor_id: int, stream: str, offset: int, limit: int) -> LogChunk:
        """A piece of an executor's ``stdout`` or ``stderr``; raises ``AllocationUnknown`` for an unknown executor."""
        if stream not in STREAMS or executor_id < 0:
            raise AllocationUnknown(f"an executor has no log {stream[:40]!r}")
        path = executor_directory(self._home.jobs, check_job_id(job_id), executor_id) / stream
        return await asyncio.to_thread(read_log, path, offset, limit)


def _excess(executor: ExecutorProcess) -> tuple[ExecutorExcess, ...]:
    reason = executor.excess()
    return (ExecutorExcess(executor_id=executor.launch.executor_id, reason=reason),) if reason else ()
