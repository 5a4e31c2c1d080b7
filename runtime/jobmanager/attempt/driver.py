"""What an attempt needs of a driver, wherever it runs: start, stop, verdict, output (ADR 93)."""

from __future__ import annotations

from typing import Protocol

from sluice.runtime.messages import Evidence, JobSubmission


class Driver(Protocol):
    """One driver of one attempt; it is started once at most, and its identity is renewed for as long as it runs."""

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        ...

    async def start(self) -> None:
        """Start it; returns when it runs. Raises what the platform raises when it cannot be started."""
        ...

    async def ended(self) -> str:
        """Wait until it has ended, and say how, for people; what it achieved it reports itself, over RPC."""
        ...

    async def stop(self, grace: float) -> None:
        """SIGTERM, so that its agent ends JVM and Python; SIGKILL after ``grace`` seconds; returns at its end."""
        ...

    async def connections(self) -> Evidence:
        """Mutual TLS connections that its JVM has recorded."""
        ...

    async def clean_up(self) -> None:
        """After its end: key, secrets and files go, only its logs stay."""
        ...


class DriverLauncher(Protocol):
    """Makes drivers; the one thing to be replaced when they are to run somewhere else."""

    def driver(self, job_id: str, attempt: int, submission: JobSubmission, token: bytes) -> Driver:
        """A driver that is not started yet, with the fencing token of its JobMaster."""
        ...
