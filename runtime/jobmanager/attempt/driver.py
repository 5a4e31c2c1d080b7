"""What an attempt needs of a driver, wherever it runs: start, stop, verdict, output (ADR 93)."""

from __future__ import annotations

from typing import Protocol

from sluice.runtime.messages import Evidence, JobSubmission, LogChunk

DRIVER_LOGS = ("driver.stdout", "driver.stderr", "driver.jvm", "driver.agent")
"""What a driver may leave, by the names under which users ask for it."""


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
    """Makes drivers and reads what they have left; the one thing to be replaced when they are to run elsewhere."""

    def driver(self, job_id: str, attempt: int, submission: JobSubmission, token: bytes) -> Driver:
        """A driver that is not started yet, with the fencing token of its JobMaster."""
        ...

    async def logs(self, job_id: str, attempt: int) -> tuple[str, ...]:
        """Which of :data:`DRIVER_LOGS` the driver of an attempt has left so far."""
        ...

    async def read_log(self, job_id: str, attempt: int, name: str, offset: int, limit: int) -> LogChunk:
        """At most ``limit`` bytes of a log from byte ``offset``, while the driver runs and afterwards."""
        ...
