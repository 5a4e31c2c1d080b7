"""The drivers of one TaskManager: launches them in driver slots, watches and ends them, and reads their logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from sluice.core import TRACING, SluiceError
from sluice.pki.issuing import SignedChain
from sluice.runtime.blob import check_job_id
from sluice.runtime.gateways import JobMasterGateway
from sluice.runtime.job_network import JobNetwork
from sluice.runtime.messages import (
    MAX_DRIVER_END_CHARACTERS,
    DriverCsr,
    DriverLaunch,
    DriverProcessEnd,
    EventLogChunk,
    Evidence,
    LogChunk,
    SlotKind,
    SlotProfile,
    SlotRequest,
)
from sluice.runtime.node import ChildProcess, kill_processes_below, merge, read_log
from sluice.runtime.rpc import MailboxFull, RpcEndpoint, RpcTimeout
from sluice.runtime.spark.jvm import DRIVER_LISTENS
from sluice.runtime.taskmanager.errors import AllocationUnknown, DriverNotStarted, SlotNotAvailable
from sluice.runtime.taskmanager.networks import NetworkOwner, Networks
from sluice.runtime.taskmanager.processes.agent import LOG_FILES
from sluice.runtime.taskmanager.processes.driver import (
    DriverHome,
    HostedDriver,
    JoinDriver,
    driver_directory,
    driver_logs,
    read_event_log,
)
from sluice.runtime.taskmanager.slot_table import TaskSlot
from sluice.runtime.taskmanager.waiting import WarmProcesses
from sluice.runtime.warm import WarmKind

_LOG = logging.getLogger(__name__)

KILL_GRACE_SECONDS = 3.0
"""Time between SIGTERM and SIGKILL for a driver whose slot is freed."""
RETRY_SECONDS = 0.5
"""Pause before the end of a driver is reported again to a busy JobMaster."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The connections that the drivers of a job recorded, up to ``attempt``."""

    evidence: Evidence = field(default_factory=Evidence)
    attempt: int = 0


class Drivers:
    """All drivers of this TaskManager, by job. A job has one driver at a time.


    Args:
        endpoint: the TaskExecutor; its main thread handles the end of drivers.
        home: the settings that all drivers share.
        jobmaster: returns the current JobMaster of a slot's job.
        networks: opens the networks of drivers; None: they share the machine's.
        warm: the pool of warm agents; None: there is none.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        home: DriverHome,
        jobmaster: Callable[[SlotRequest], JobMasterGateway],
        networks: Networks | None = None,
        warm: WarmProcesses | None = None,
    ) -> None:
        self._warm = warm
        self._endpoint = endpoint
        self._home = home
        self._jobmaster = jobmaster
        self._networks = networks
        self._drivers: dict[str, HostedDriver] = {}
        self._evidence: dict[str, _Kept] = {}

    def launch(self, launch: DriverLaunch, slot: TaskSlot) -> Coroutine[Any, Any, None]:
        """Start a driver in an allocated slot. The returned coroutine ends when its process runs.


        Raises:
            AllocationUnknown: the slot is not allocated to a driver of this job.
            SlotNotAvailable: the slot is too small, or a driver of this job runs here already.
        """
        request = slot.request
        if request is None or request.kind is not SlotKind.DRIVER or request.job_id != launch.job_id:
            raise AllocationUnknown(f"allocation {launch.allocation_id[:64]} is not for a driver of {launch.job_id}")
        if not slot.profile.fits(SlotProfile(cores=1, memory_mb=launch.driver_memory_mb)):
            raise SlotNotAvailable(f"driver slot {slot.index} has {slot.profile}, too little for the driver")
        if launch.job_id in self._drivers:
            raise SlotNotAvailable(f"a driver of job {launch.job_id} runs here already")

        def sign(csr: DriverCsr) -> asyncio.Future[SignedChain]:
            return asyncio.ensure_future(self._jobmaster(request).sign_driver_identity(csr))

        join = None if self._networks is None else self._joining(self._networks, request)
        waiting = None if self._warm is None else self._warm.driver(launch)
        driver = HostedDriver(launch, self._home, token=request.jobmaster_token, sign=sign, join=join, waiting=waiting)
        self._drivers[launch.job_id] = driver
        return self._start(driver, request)

    def _joining(self, networks: Networks, request: SlotRequest) -> JoinDriver:
        loop = asyncio.get_running_loop()

        async def join(driver: HostedDriver) -> JobNetwork:
            def end(reason: str) -> None:
                _LOG.warning("ending the driver of job %s: %s", request.job_id, reason)
                self._endpoint.hand_off(driver.stop(0))

            network_owner = NetworkOwner(
                job_id=request.job_id,
                process="driver",
                attempt=driver.launch.attempt,
                identity=driver.identity,
                ask=lambda port: self._jobmaster(request).listeners_on(port),
                end=lambda reason: loop.call_soon_threadsafe(end, reason),
            )
            return await networks.open(
                network_owner,
                DRIVER_LISTENS,
                lambda ports: self._jobmaster(request).driver_listens(driver.launch.attempt, ports),
                driver.waiting_network,
            )

        return join

    async def _start(self, driver: HostedDriver, request: SlotRequest) -> None:
        launch = driver.launch
        try:
            with TRACING.span("launch driver", launch.trace, job=launch.job_id, attempt=launch.attempt):
                child = await driver.start()
        except BaseException as error:
            self._forget(driver)
            await asyncio.shield(self._clear_away(driver))
            if isinstance(error, OSError):
                raise DriverNotStarted(f"the driver of job {launch.job_id}: {error.strerror or error}") from error
            raise
        _LOG.info("driver %d of job %s started, pid %d", launch.attempt, launch.job_id, child.pid)
        renewal = self._endpoint.hand_off(driver.keep_renewed())
        self._endpoint.hand_off(self._watch(driver, child, request)).add_done_callback(lambda _: renewal.cancel())

    @staticmethod
    async def _clear_away(driver: HostedDriver) -> None:
        await driver.end_waiting()
        await asyncio.to_thread(driver.clean_up)

    async def _watch(self, driver: HostedDriver, child: ChildProcess, request: SlotRequest) -> None:
        """Wait for the end, kill leftover processes, tell the JobMaster, and delete the files."""
        launch = driver.launch
        try:
            how = await self._ended(driver, child)
            _LOG.info("driver %d of job %s ended: %s", launch.attempt, launch.job_id, how)
            for directory in driver.directories:
                await asyncio.to_thread(kill_processes_below, directory)
            seen = await asyncio.to_thread(driver.connections)
            before = self._evidence.get(launch.job_id, _Kept())
            self._evidence[launch.job_id] = _Kept(merge(before.evidence, seen), launch.attempt)
            self._endpoint.hand_off(self._tell_end(launch, request, how))
            await asyncio.to_thread(driver.clean_up)
        finally:
            self._forget(driver)

    async def _ended(self, driver: HostedDriver, child: ChildProcess) -> str:
        """Wait for the driver's end. If its warm agent could not be used, start it without one and wait again."""
        ended = await child.wait()
        await child.stop(0)  # kills leftover processes of its session
        if not driver.warm_agent_unusable(ended):
            if self._warm is not None and driver.is_warm:
                self._warm.used(WarmKind.DRIVER)
            return str(ended)
        launch = driver.launch
        _LOG.warning("driver %d of job %s is started again without a warm agent", launch.attempt, launch.job_id)
        if self._warm is not None:
            self._warm.unusable(WarmKind.DRIVER, f"see driver.agent of job {launch.job_id}")
        try:
            again = await driver.start_again()
        except (SluiceError, OSError) as error:
            return f"it could not be started: {error}"
        ended = await again.wait()
        await again.stop(0)
        return str(ended)

    async def _tell_end(self, launch: DriverLaunch, request: SlotRequest, ended: str) -> None:
        how = f"{ended}; see driver.agent and driver.stderr"
        end = DriverProcessEnd(attempt=launch.attempt, how=how[:MAX_DRIVER_END_CHARACTERS])
        while True:
            try:
                await self._jobmaster(request).driver_process_ended(end)
            except (MailboxFull, RpcTimeout):
                await asyncio.sleep(RETRY_SECONDS)
            except SluiceError as error:  # the job is over, or its JobMaster has given up this TaskManager
                _LOG.info("cannot tell the JobMaster of job %s the end of its driver: %s", launch.job_id, error)
                return
            else:
                return

    def _forget(self, driver: HostedDriver) -> None:
        if self._drivers.get(driver.launch.job_id) is driver:
            del self._drivers[driver.launch.job_id]
        driver.ended.set()

    def attempt_in(self, allocation_id: str) -> int:
        """The attempt of the driver in a slot; 0 if there is none."""
        driver = self._in(allocation_id)
        return 0 if driver is None else driver.launch.attempt

    def ports_in(self, allocation_id: str) -> tuple[int, ...]:
        """The ports assigned to the driver in a slot."""
        driver = self._in(allocation_id)
        return () if driver is None else driver.ports

    def starting_in(self, allocation_id: str) -> bool:
        """Whether a driver is being started in a slot."""
        driver = self._in(allocation_id)
        return driver is not None and not driver.started

    def _in(self, allocation_id: str) -> HostedDriver | None:
        return next((each for each in self._drivers.values() if each.launch.allocation_id == allocation_id), None)

    async def stop(self, job_id: str, attempt: int, grace: float) -> None:
        """End a driver and wait until no process of it is left. An unknown driver has ended already."""
        driver = self._drivers.get(job_id)
        if driver is not None and driver.launch.attempt == attempt:
            # If the caller stops waiting, this call is cancelled; the driver must be stopped all the same.
            await asyncio.shield(self._endpoint.hand_off(self._stop(driver, grace)))

    async def end_slot(self, allocation_id: str) -> None:
        """End the driver in a slot."""
        inside = [each for each in self._drivers.values() if each.launch.allocation_id == allocation_id]
        await asyncio.gather(*(self._stop(each, KILL_GRACE_SECONDS) for each in inside))

    async def stop_all(self) -> None:
        """End and forget all drivers."""
        await asyncio.gather(*(self._stop(each, KILL_GRACE_SECONDS) for each in self._drivers.values()))
        self._evidence.clear()

    async def _stop(self, driver: HostedDriver, grace: float) -> None:
        await driver.stop(grace)
        await driver.ended.wait()

    def release_job(self, job_id: str) -> None:
        """Forget a job that is over; its evidence has been collected."""
        self._evidence.pop(job_id, None)

    @property
    def jobs(self) -> frozenset[str]:
        """The jobs with a driver here, or with evidence or logs that may still be requested."""
        return frozenset(self._drivers) | frozenset(self._evidence)

    def connections(self, job_id: str) -> Evidence:
        """The mutual TLS connections that drivers of a job recorded here."""
        driver = self._drivers.get(job_id)
        seen = Evidence() if driver is None else driver.connections()
        kept = self._evidence.get(job_id, _Kept())  # last: it has what an ended driver's files had
        if driver is None or driver.launch.attempt <= kept.attempt:
            return kept.evidence
        return merge(kept.evidence, seen)

    async def logs(self, job_id: str, attempt: int) -> tuple[str, ...]:
        """The names of the logs that the driver of an attempt has left here."""
        return await asyncio.to_thread(driver_logs, driver_directory(self._home.jobs, check_job_id(job_id), attempt))

    async def read_log(self, job_id: str, attempt: int, name: str, offset: int, limit: int) -> LogChunk:
        """A piece of a driver's log; raises ``AllocationUnknown`` if no driver has that log."""
        file = LOG_FILES.get(name)
        if file is None or attempt < 1:
            raise AllocationUnknown(f"a driver has no log {name[:40]!r}")
        path = driver_directory(self._home.jobs, check_job_id(job_id), attempt) / file
        return await asyncio.to_thread(read_log, path, offset, limit)

    async def read_event_log(self, job_id: str, attempt: int, offset: int, limit: int) -> EventLogChunk:
        """A piece of the event log of a driver that has ended."""
        driver = self._drivers.get(check_job_id(job_id))
        if driver is not None and driver.launch.attempt == attempt:
            await driver.ended.wait()
        return await asyncio.to_thread(
            read_event_log, driver_directory(self._home.jobs, job_id, attempt), offset, limit
        )
