"""A real JobMaster with a driver that is not a process, and with fakes for everything around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from sluice.core import TraceParent
from sluice.runtime.checkpoint.savepoints import Savepoint
from sluice.runtime.gateways import TaskExecutorGateway
from sluice.runtime.jobmanager.attempt.job_master import JobMaster
from sluice.runtime.jobmanager.attempt.settings import AttemptSettings
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail
from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import BlobRef, JobSubmission, SlotKind, SlotOffer, SlotProfile

JOB = "1" * 32
SIZE = SlotProfile(cores=1, memory_mb=768)
DRIVER_SLOT = SlotOffer(
    taskmanager="tm-1", host="h", slot=0, allocation_id="driver-slot", profile=SIZE, kind=SlotKind.DRIVER
)
SUBMISSION = JobSubmission(
    name="p.py", owner="ann", pipeline=BlobRef(sha256="0" * 64, name="p.py", size=1), executors=2
)
SETTINGS = AttemptSettings(driver_start_timeout=60.0, cancel_grace=0.1)


def accepted(submission: JobSubmission = SUBMISSION) -> JobRecord:
    """Return the record of a job that has just been accepted."""
    return JobRecord(submission=submission, detail=accepted_detail(JOB, submission, 1))


class FakeDriver:
    """A fake :class:`~sluice.runtime.jobmanager.attempt.services.driver.Driver`.

    It ends when ``end`` is called or when it is stopped.

    Attributes:
        error: raised when it is started.
        stops: the grace period of each stop.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.starts = 0
        self.stops: list[float] = []
        self._end = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> bool:
        return self.starts > 0 and not self._end.done()

    async def start(self, slot: SlotOffer, taskmanager: TaskExecutorGateway, trace: TraceParent) -> None:
        assert (slot, taskmanager) == (DRIVER_SLOT, TASKMANAGER)
        if self.error is not None:
            raise self.error
        self.starts += 1

    def process_ended(self, how: str) -> None:
        self.end(how)

    def end(self, how: str = "exit code 0") -> None:
        """End the driver's process."""
        if not self._end.done():
            self._end.set_result(how)

    async def ended(self) -> str:
        return str(await asyncio.shield(self._end))

    async def stop(self, grace: float) -> None:
        self.stops.append(grace)
        self.end("killed by SIGTERM")


async def nothing(*_: object) -> None:
    """Answer like a TaskManager that has nothing of the job."""


TASKMANAGER: Any = SimpleNamespace(connections=lambda _: nothing(), release_job=lambda _: nothing())


class Neighbours:
    """Fakes the Dispatcher and the ResourceManager of an attempt.

    A method with an entry in ``errors`` first raises it, once.
    """

    def __init__(self, **errors: Exception) -> None:
        self.calls: list[str] = []
        self.errors = errors
        self.result_is_durable = asyncio.Event()
        self.result_is_durable.set()
        self.delay: float | None = None
        self.records: list[JobRecord] = []
        self.driver_wanted: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: object) -> object:
            if name == "job_ended":
                await self.result_is_durable.wait()
            if name in self.errors:
                raise self.errors.pop(name)
            self.calls.append(name)
            if any(isinstance(each, SlotRequirement) and each.kind is SlotKind.DRIVER for each in arguments):
                self.driver_wanted()
            self.records += [each for each in arguments if isinstance(each, JobRecord)]
            return {"attempt_failed": self.delay, "require_slots": ""}.get(name)

        return call


class Checkpoints:
    """The checkpoints of a job that has none."""

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
    """The JobMaster of the first attempt; its driver has a slot as soon as it wants one."""

    def take(savepoint_id: str, description: Savepoint) -> Savepoint:
        raise NotImplementedError

    services: Any = SimpleNamespace(
        settings=settings,
        drivers=SimpleNamespace(driver=lambda *_: driver, executor_size=lambda _: SIZE, driver_size=SIZE),
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
        secrets=None,
        record=None,
    )
    master = JobMaster(accepted(submission), services, attempt=1, token=b"0" * 16)
    neighbours.driver_wanted = lambda: master._event(master._machine.driver_slot_offered, DRIVER_SLOT)
    master._runner.taskmanagers[DRIVER_SLOT.taskmanager] = TASKMANAGER
    return master
