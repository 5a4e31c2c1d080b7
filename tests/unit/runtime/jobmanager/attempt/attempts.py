"""A real JobMaster with a driver that is no process, and with nobody real around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from sluice.runtime.checkpoint.savepoints import Savepoint
from sluice.runtime.jobmanager.attempt.job_master import JobMaster
from sluice.runtime.jobmanager.attempt.state_machine import AttemptSettings
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import BlobRef, Evidence, JobSubmission, SlotProfile

JOB = "1" * 32
SIZE = SlotProfile(cores=1, memory_mb=768)
SUBMISSION = JobSubmission(
    name="p.py", owner="ann", pipeline=BlobRef(sha256="0" * 64, name="p.py", size=1), executors=2
)
SETTINGS = AttemptSettings(driver_start_timeout=60.0, cancel_grace=0.1)


def accepted(submission: JobSubmission = SUBMISSION) -> JobRecord:
    """A job that has just come in."""
    return JobRecord(submission=submission, detail=accepted_detail(JOB, submission, 1))


class FakeDriver:
    """A :class:`~sluice.runtime.jobmanager.attempt.driver.Driver`; it runs until ``end`` is called or it is stopped.

    Attributes:
        error: raised when it is started.
        stops: the grace of each stop.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.starts = 0
        self.stops: list[float] = []
        self.cleaned = False
        self._end = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> bool:
        return self.starts > 0 and not self._end.done()

    async def start(self) -> None:
        if self.error is not None:
            raise self.error
        self.starts += 1

    def end(self, how: str = "exit code 0") -> None:
        """Its process ends."""
        if not self._end.done():
            self._end.set_result(how)

    async def ended(self) -> str:
        return str(await asyncio.shield(self._end))

    async def stop(self, grace: float) -> None:
        self.stops.append(grace)
        self.end("killed by SIGTERM")

    async def connections(self) -> Evidence:
        return Evidence()

    async def clean_up(self) -> None:
        self.cleaned = True


class Neighbours:
    """Dispatcher and ResourceManager of an attempt; what is in ``errors`` is raised first, by method."""

    def __init__(self, **errors: Exception) -> None:
        self.calls: list[str] = []
        self.errors = errors
        self.result_is_durable = asyncio.Event()
        self.result_is_durable.set()
        self.delay: float | None = None
        self.records: list[JobRecord] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: object) -> object:
            if name == "job_ended":
                await self.result_is_durable.wait()
            if name in self.errors:
                raise self.errors.pop(name)
            self.calls.append(name)
            self.records += [each for each in arguments if isinstance(each, JobRecord)]
            return {"attempt_failed": self.delay, "require_slots": ""}.get(name)

        return call


class Checkpoints:
    """A job without any."""

    async def latest(self, job_id: str) -> None:
        assert job_id == JOB


def job_master(
    driver: FakeDriver,
    neighbours: Neighbours,
    *,
    submission: JobSubmission = SUBMISSION,
    settings: AttemptSettings = SETTINGS,
    check_leadership: Callable[[], None] = lambda: None,
) -> JobMaster:
    """The JobMaster of the first attempt."""

    def take(savepoint_id: str, description: Savepoint) -> Savepoint:
        raise NotImplementedError

    services: Any = SimpleNamespace(
        settings=settings,
        driver_host=SimpleNamespace(executor_size=lambda _: SIZE),
        drivers=SimpleNamespace(driver=lambda *_: driver),
        resource_manager=neighbours,
        dispatcher=neighbours,
        blob_address=("127.0.0.1", 1),
        connections=SimpleNamespace(snapshot=tuple),
        checkpoints=Checkpoints(),
        places=SimpleNamespace(
            checkpoints=SimpleNamespace(location=lambda job_id: f"file:///checkpoints/{job_id}"),
            savepoints=SimpleNamespace(take=take),
        ),
        clock=lambda: 1.0,
        check_leadership=check_leadership,
        shuffle=None,
    )
    return JobMaster(accepted(submission), services, attempt=1, token=b"0" * 16)
