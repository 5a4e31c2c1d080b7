"""Drivers in slots of TaskManagers: launched and stopped over RPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sluice.core import TraceParent
from sluice.runtime.gateways import TaskExecutorGateway
from sluice.runtime.messages import DriverLaunch, JobSubmission, SlotOffer, SlotProfile


@dataclass(frozen=True, slots=True)
class RemoteDrivers:
    """A :class:`~sluice.runtime.jobmanager.attempt.services.driver.DriverLauncher`. Sizes in MiB, times in seconds."""

    executor_cores: int
    executor_memory_mb: int
    driver_memory_mb: int
    start_timeout: float
    stop_grace: float
    lease: float
    checkpoints: Callable[[str], str]
    """Returns the location for checkpoints of a job's streaming queries."""
    allow_conf: tuple[str, ...] = ()
    """Additional Spark settings that the operator allows jobs to set, see ``[jobs] allow_conf``."""

    @property
    def driver_size(self) -> SlotProfile:
        """The size of a driver: one core, and its heap."""
        return SlotProfile(cores=1, memory_mb=self.driver_memory_mb)

    def executor_size(self, submission: JobSubmission) -> SlotProfile:
        """The size of a job's executors: as requested, else the cluster's default."""
        return SlotProfile(
            cores=submission.executor_cores or self.executor_cores,
            memory_mb=submission.executor_memory_mb or self.executor_memory_mb,
        )

    def driver(self, job_id: str, attempt: int, submission: JobSubmission) -> RemoteDriver:
        """A driver that is not started yet."""
        return RemoteDriver(self, job_id, attempt, submission)


class RemoteDriver:
    """A :class:`~sluice.runtime.jobmanager.attempt.services.driver.Driver` on a TaskManager."""

    def __init__(self, launcher: RemoteDrivers, job_id: str, attempt: int, submission: JobSubmission) -> None:
        self._launcher = launcher
        self._job_id = job_id
        self._attempt = attempt
        self._submission = submission
        self._taskmanager: TaskExecutorGateway | None = None
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> bool:
        """Whether it was launched, or is being launched, and no end was reported."""
        return self._taskmanager is not None and not self._ended.done()

    async def start(self, slot: SlotOffer, taskmanager: TaskExecutorGateway, trace: TraceParent) -> None:
        """Launch the driver. After a failed launch it may run nevertheless; it is killed with its slot."""
        launcher, size = self._launcher, self._launcher.executor_size(self._submission)
        launch = DriverLaunch(
            job_id=self._job_id,
            attempt=self._attempt,
            allocation_id=slot.allocation_id,
            name=self._submission.name,
            executors=self._submission.executors,
            executor_cores=size.cores,
            executor_memory_mb=size.memory_mb,
            driver_memory_mb=launcher.driver_memory_mb,
            stop_grace=launcher.stop_grace,
            start_timeout=launcher.start_timeout,
            lease=launcher.lease,
            allow_conf=launcher.allow_conf,
            trace=trace,
            checkpoints=launcher.checkpoints(self._job_id),
            may_have_waited=not self._submission.secrets and not self._submission.python,
        )
        self._taskmanager = taskmanager
        await taskmanager.launch_driver(launch)

    def attach(self, taskmanager: TaskExecutorGateway) -> None:
        """Attach to a driver that an earlier leader launched."""
        self._taskmanager = taskmanager

    async def ended(self) -> str:
        """Wait until the TaskManager reports the end of the process; returns how it ended."""
        return await asyncio.shield(self._ended)

    def process_ended(self, how: str) -> None:
        """Note that the TaskManager has reported the end of the process."""
        if not self._ended.done():
            self._ended.set_result(how)

    async def stop(self, grace: float) -> None:
        """Tell the TaskManager to end the driver."""
        if self._taskmanager is not None:
            await self._taskmanager.stop_driver(self._job_id, self._attempt, grace)
