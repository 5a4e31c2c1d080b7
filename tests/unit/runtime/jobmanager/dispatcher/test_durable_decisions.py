"""Acceptance and end of jobs when writes are late or refused, or when nobody waits for them any more."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.blob.store import BlobStore
from sluice.runtime.config import HistoryConfig
from sluice.runtime.ha.errors import (
    EntryDamaged,
    HaError,
    LeadershipLost,
    OutcomeUnknown,
    PointerConflict,
    PointersFull,
    StorageUnavailable,
)
from sluice.runtime.jobmanager.dispatcher.durable_writes import CONFLICT_TRIES, retry_while_unavailable
from sluice.runtime.jobmanager.dispatcher.endpoint import Dispatcher
from sluice.runtime.jobmanager.dispatcher.job_queue import JobLimits
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail
from sluice.runtime.jobmanager.dispatcher.submitting import submit_with_blobs
from sluice.runtime.jobmanager.errors import JobNotFound
from sluice.runtime.jobmanager.gateways import DISPATCHER, DispatcherGateway
from sluice.runtime.jobmanager.history.archive import JobArchive
from sluice.runtime.jobmanager.store.job_history import HistoryStore, JobHistory
from sluice.runtime.jobmanager.store.job_store import JobStore
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import (
    BlobRef,
    JobState,
    JobSubmission,
    SlotProfile,
)
from sluice.runtime.restart_config import RestartConfig, RestartStrategy
from sluice.runtime.rpc import RpcService
from tests.hostile import TestPki
from tests.unit.runtime.ha.simulated import Lines, MemoryStorage, Service, SimulatedPointers
from tests.waiting import until

CONTENT = b"print(1)"
PIPELINE = BlobRef(sha256=hashlib.sha256(CONTENT).hexdigest(), name="p.py", size=len(CONTENT))
SUBMISSION = JobSubmission(name="p.py", owner="ann", pipeline=PIPELINE)
ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32


@dataclass
class Steered(SimulatedPointers):
    """Pointers whose writes wait, or fail before or after they are carried out, by operation and folder."""

    service: Service
    slow: dict[tuple[str, str], asyncio.Event] = field(default_factory=dict)
    before: dict[tuple[str, str], Exception] = field(default_factory=dict)
    after: dict[tuple[str, str], Exception] = field(default_factory=dict)
    later: dict[tuple[str, str], Exception] = field(default_factory=dict)
    """As ``before``, from when something of ``after`` was raised."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__init__(self.service, Lines(self.service), self.service.open(), lambda: None)

    async def create(self, folder: str, name: str, value: bytes) -> None:
        await self._steered("create", folder, lambda: SimulatedPointers.create(self, folder, name, value))

    async def replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        await self._steered("replace", folder, lambda: SimulatedPointers.replace(self, folder, name, value, version))

    async def _steered(self, operation: str, folder: str, write: Callable[[], Awaitable[None]]) -> None:
        key = (operation, folder)
        if key in self.slow:
            self.begun.set()
            await self.slow[key].wait()
        if key in self.before:
            raise self.before[key]
        await write()
        if key in self.after:
            self.before |= self.later
            raise self.after.pop(key)


class Blobs(BlobStore):
    """A blob store that records the threads in which files are removed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, 1000)
        self.removed_in: list[threading.Thread] = []

    def remove_job(self, job_id: str) -> None:
        self.removed_in.append(threading.current_thread())
        super().remove_job(job_id)

    def put(self, job_id: str) -> None:
        """Store the pipeline."""
        with self.writer(job_id, "p.py") as writer:
            writer.write(CONTENT)
            writer.commit()


class Term:
    """A fake term whose holder always leads."""

    granted_at = 0.0

    def check(self) -> None:
        """Always passes."""


class Roomy:
    """A fake ResourceManager to which no slot size is too large."""

    async def too_large(self, profile: SlotProfile) -> str:
        assert profile.cores
        return ""


class World:
    """A dispatcher with an in-memory store that accepts jobs but has no room to run them."""

    def __init__(self, rpc: RpcService, root: Path) -> None:
        self.rpc = rpc
        self.root = root
        self.blobs = Blobs(root / "blobs")
        self.storage = MemoryStorage()
        self.pointers = Steered(Service(10.0))
        self.store = JobStore(self.pointers, self.storage, epoch=1, origin="here")
        checkpoints = SimpleNamespace(remove=lambda _: None)
        self.dispatcher = Dispatcher(
            store=self.store,
            history=HistoryStore(self.pointers, self.storage),
            archive=JobArchive(self.storage, HistoryConfig(), Term().check, time.time),
            term=_any(Term()),
            blobs=self.blobs,
            resource_manager=_any(Roomy()),
            services=_any(
                SimpleNamespace(
                    shuffle=None,
                    places=SimpleNamespace(checkpoints=checkpoints),
                    drivers=SimpleNamespace(executor_size=lambda _: SlotProfile(cores=1, memory_mb=1)),
                )
            ),
            finished_jobs_kept=10,
            lease=0.0,
            restart=RestartConfig(strategy=RestartStrategy.FIXED_DELAY),
            limits=JobLimits(running=0, per_user=0, queued=0, queued_per_user=0),
        )
        self.gateway = rpc.local(DispatcherGateway, DISPATCHER)

    async def submit(self, job_id: str) -> None:
        """Submit a job the way REST does."""

        async def prepare() -> JobSubmission:
            await asyncio.to_thread(self.blobs.put, job_id)
            return SUBMISSION

        await submit_with_blobs(self.gateway, self.blobs, job_id, prepare)

    async def durable(self) -> list[str]:
        """Return the jobs that the next leader would run."""
        later = JobStore(SimulatedPointers(self.pointers.service, Lines(self.pointers.service), 1, lambda: None),
                         self.storage, epoch=2, origin="there")  # fmt: skip
        return [job.job_id for job in (await later.recover()).accepted]

    def ended(self, job_id: str, state: JobState = JobState.FINISHED) -> JobRecord:
        """Return the result record of a job."""
        detail = msgspec.structs.replace(accepted_detail(job_id, SUBMISSION, 1), state=state, end_time=2)
        return JobRecord(submission=SUBMISSION, detail=detail)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> TlsIdentity:
    return TestPki(tmp_path_factory.mktemp("pki")).process(Role.JOBMANAGER, "jm")


@pytest_asyncio.fixture
async def world(identity: TlsIdentity, tmp_path: Path) -> AsyncIterator[World]:
    rpc = RpcService(identity)
    made = World(rpc, tmp_path)
    never = asyncio.Event()
    made.pointers.slow["create", "attempts"] = never  # accepted jobs do not get further than that
    await rpc.start(made.dispatcher)
    yield made
    await rpc.close()


# --- acceptance -----------------------------------------------------------------------------------------------


async def test_a_job_whose_client_gave_up_is_accepted_once_its_write_succeeds(world: World) -> None:
    """Once, it was forgotten, and the next leader ran a job that nobody knew of."""
    lands = world.pointers.slow["replace", "jobs"] = asyncio.Event()
    client = asyncio.create_task(world.submit(ONE))
    await asyncio.wait_for(world.pointers.begun.wait(), 30)
    client.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client
    assert [job.id for job in await world.gateway.jobs()] == [ONE]
    lands.set()
    await until(lambda: world.dispatcher._jobs[ONE].accepting is None)
    assert await world.durable() == [ONE]
    assert world.blobs.path(ONE, PIPELINE.sha256).is_file()


async def test_a_write_that_reported_an_error_but_succeeded_is_undone_before_the_client_gets_the_error(
    world: World,
) -> None:
    world.pointers.after["replace", "jobs"] = StorageUnavailable("the directory cannot be synced")
    with pytest.raises(StorageUnavailable, match="synced"):
        await world.submit(ONE)
    assert await world.durable() == []
    assert await world.gateway.jobs() == ()
    await until(lambda: not any(ONE in name for name in world.storage.entries))
    assert not world.pointers.service.pointers
    await world.submit(ONE)
    assert await world.durable() == [ONE]


async def test_a_submission_fails_at_once_if_the_storage_is_unavailable(world: World) -> None:
    """What is left of the job is removed when the storage is available again."""
    world.storage.away = True
    with pytest.raises(StorageUnavailable, match="away"):
        await world.submit(ONE)
    assert world.pointers.service.pointers
    assert not (world.root / "blobs" / ONE).exists()
    world.storage.away = False
    await until(lambda: not world.pointers.service.pointers)


async def test_a_submission_whose_write_cannot_be_undone_has_an_unknown_outcome(world: World) -> None:
    world.pointers.after["replace", "jobs"] = StorageUnavailable("odd")
    world.pointers.later["replace", "jobs"] = EntryDamaged("odder")
    with pytest.raises(OutcomeUnknown, match="list of jobs"):
        await world.submit(ONE)
    assert await world.durable() == [ONE]


async def test_a_submission_has_an_unknown_outcome_if_the_dispatcher_stops_during_its_write(world: World) -> None:
    world.pointers.slow["replace", "jobs"] = asyncio.Event()
    client = asyncio.create_task(world.submit(ONE))
    await asyncio.wait_for(world.pointers.begun.wait(), 30)
    await world.rpc.stop(world.dispatcher)
    with pytest.raises(OutcomeUnknown, match=ONE):
        await client


async def test_a_cancellation_waits_until_the_job_is_accepted(world: World) -> None:
    lands = world.pointers.slow["replace", "jobs"] = asyncio.Event()
    client = asyncio.create_task(world.submit(ONE))
    await asyncio.wait_for(world.pointers.begun.wait(), 30)
    cancelling = asyncio.create_task(world.gateway.cancel_job(ONE))
    del world.pointers.slow["replace", "jobs"]
    lands.set()
    await client
    await cancelling
    store = JobStore(world.pointers, world.storage, epoch=2, origin="there")
    assert [job.cancelled for job in (await store.recover()).accepted] == [True]


async def test_a_cancellation_of_a_job_that_is_not_accepted_finds_no_job(world: World) -> None:
    lands = world.pointers.slow["replace", "jobs"] = asyncio.Event()
    world.pointers.after["replace", "jobs"] = StorageUnavailable("full")
    client = asyncio.create_task(world.submit(ONE))
    await asyncio.wait_for(world.pointers.begun.wait(), 30)
    cancelling = asyncio.create_task(world.gateway.cancel_job(ONE))
    lands.set()
    with pytest.raises(StorageUnavailable):
        await client
    with pytest.raises(JobNotFound):
        await cancelling


# --- the end --------------------------------------------------------------------------------------------------


async def test_a_job_whose_result_is_refused_for_good_fails_with_the_reason(world: World) -> None:
    await world.submit(ONE)
    world.pointers.before["create", "results"] = HaError("a pointer of 70000 bytes")
    await world.gateway.job_ended(world.ended(ONE))
    detail = await world.gateway.job(ONE)
    assert detail.state is JobState.FAILED
    assert detail.failure is not None
    assert "it was FINISHED" in detail.failure.error
    assert "70000 bytes" in detail.failure.error


async def test_the_oldest_results_make_room_for_a_new_one(world: World) -> None:
    for job_id in (ONE, TWO):
        await world.submit(job_id)
        await world.gateway.job_ended(world.ended(job_id))
        await world.store.clean(job_id)
        world.dispatcher._machine.cleaned(job_id)
    await world.submit(THREE)
    world.pointers.after["create", "results"] = PointersFull("no room")
    await world.gateway.job_ended(world.ended(THREE))
    assert [job.id for job in await world.gateway.jobs()] == [THREE, TWO]
    assert sorted(name for folder, name in world.pointers.service.pointers if folder == "results") == [TWO, THREE]


async def test_files_are_not_removed_on_the_event_loop(world: World) -> None:
    await world.submit(ONE)
    world.storage.away = True
    with pytest.raises(StorageUnavailable):
        await world.submit(TWO)
    world.storage.away = False
    await world.gateway.job_ended(world.ended(ONE))
    assert world.blobs.removed_in
    assert threading.current_thread() not in world.blobs.removed_in


async def test_a_job_is_restarted_even_if_its_history_cannot_be_stored(world: World) -> None:
    await world.submit(ONE)
    world.pointers.before["create", "history"] = EntryDamaged("damaged")
    assert await world.gateway.attempt_failed(ONE) is not None
    world.dispatcher._jobs[ONE].history = JobHistory()


async def test_transient_storage_errors_are_retried_and_permanent_ones_are_raised() -> None:
    answers: list[Exception | int] = [*[StorageUnavailable("away")] * 9, 7]

    async def work() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await retry_while_unavailable(work, "it", lambda: None, first_retry=0.0) == 7
    answers += [PointerConflict("changes")] * (CONFLICT_TRIES + 1)
    with pytest.raises(PointerConflict):
        await retry_while_unavailable(work, "it", lambda: None, first_retry=0.0)
    assert len(answers) == 1
    answers[:] = [PointersFull("full")]
    with pytest.raises(PointersFull):
        await retry_while_unavailable(work, "it", lambda: None, first_retry=0.0)

    def check() -> None:
        raise LeadershipLost("not any more")

    answers[:] = [StorageUnavailable("away")] * 2
    with pytest.raises(LeadershipLost):
        await retry_while_unavailable(work, "it", check, first_retry=0.0)


def _any(value: object) -> Any:  # a part that stands for another
    return value
