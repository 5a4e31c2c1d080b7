"""What an attempt needs of a driver, wherever it runs: start, stop, how it ended (ADR 93)."""

from __future__ import annotations

from typing import Protocol

from sluice.core import TraceParent
from sluice.runtime.gateways import TaskExecutorGateway
from sluice.runtime.messages import JobSubmission, SlotOffer, SlotProfile


class Driver(Protocol):
    """One driver of one attempt; it is started once at most, and its identity is renewed for as long as it runs."""

    @property
    def running(self) -> bool:
        """Whether it has been started, or is being started, and has not ended."""
        ...

    async def start(self, slot: SlotOffer, taskmanager: TaskExecutorGateway, trace: TraceParent) -> None:
        """Start it in ``slot``, traced under ``trace``; returns when it runs.

        Raises what the TaskManager or the call raises.
        """
        ...

    def attach(self, taskmanager: TaskExecutorGateway) -> None:
        """Instead of :meth:`start`: it runs there already, since an earlier leader."""
        ...

    async def ended(self) -> str:
        """Wait until it has ended, and say how, for people; what it achieved it reports itself, over RPC."""
        ...

    def process_ended(self, how: str) -> None:
        """Its TaskManager says that its process has ended."""
        ...

    async def stop(self, grace: float) -> None:
        """SIGTERM, so that its agent ends JVM and Python; SIGKILL after ``grace`` seconds; returns at its end."""
        ...


class DriverLauncher(Protocol):
    """Makes drivers, and says which slots a job needs."""

    @property
    def driver_size(self) -> SlotProfile:
        """The slot that a driver needs."""
        ...

    def executor_size(self, submission: JobSubmission) -> SlotProfile:
        """The slot that each executor of a job needs."""
        ...

    def driver(self, job_id: str, attempt: int, submission: JobSubmission) -> Driver:
        """A driver that is not started yet."""
        ...
