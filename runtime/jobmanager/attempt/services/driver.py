"""The interface of an attempt to its driver, wherever it runs: start, stop, how it ended (ADR 93)."""

from __future__ import annotations

from typing import Protocol

from sluice.core import TraceParent
from sluice.runtime.gateways import TaskExecutorGateway
from sluice.runtime.messages import JobSubmission, SlotOffer, SlotProfile


class Driver(Protocol):
    """The driver of one attempt. It is started at most once, and its identity is renewed while it runs."""

    @property
    def running(self) -> bool:
        """Whether it has been started, or is being started, and has not ended."""
        ...

    async def start(self, slot: SlotOffer, taskmanager: TaskExecutorGateway, trace: TraceParent) -> None:
        """Start the driver in ``slot``, traced under ``trace``; returns when it runs.

        Raises the errors of the TaskManager and of the call.
        """
        ...

    def attach(self, taskmanager: TaskExecutorGateway) -> None:
        """Attach to a driver that an earlier leader started on ``taskmanager``; use instead of :meth:`start`."""
        ...

    async def ended(self) -> str:
        """Wait until the process has ended; returns how, as text. The driver reports its result itself, over RPC."""
        ...

    def process_ended(self, how: str) -> None:
        """Note that the TaskManager has reported the end of the process."""
        ...

    async def stop(self, grace: float) -> None:
        """End the process: SIGTERM, on which its agent ends JVM and Python; SIGKILL after ``grace`` seconds.

        Returns when the process has ended.
        """
        ...


class DriverLauncher(Protocol):
    """Makes drivers, and says which sizes of slots a job needs."""

    @property
    def driver_size(self) -> SlotProfile:
        """The size of the slot for a driver."""
        ...

    def executor_size(self, submission: JobSubmission) -> SlotProfile:
        """The size of the slot for each executor of a job."""
        ...

    def driver(self, job_id: str, attempt: int, submission: JobSubmission) -> Driver:
        """A driver that is not started yet."""
        ...
