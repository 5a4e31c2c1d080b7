"""The job history for the next leader: kept, bounded, and never a reason not to run the job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluice.runtime.ha.errors import StorageUnavailable
from sluice.runtime.jobmanager.attempt.decisions.history_log import LOST, HistoryLog
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail, interrupted_record
from sluice.runtime.jobmanager.restart_strategies import RestartMemory, restart_backoff
from sluice.runtime.jobmanager.store.job_history import (
    HISTORY,
    MAX_HISTORY_BYTES,
    HistoryKeeper,
    HistoryStore,
    JobHistory,
    encoded,
)
from sluice.runtime.jobmanager.store.job_store import AcceptedJob, Attempt, JobStore
from sluice.runtime.jobmanager.views import (
    AttemptView,
    ExceptionEntry,
    ExecutorView,
    JobRecord,
    ProcessIdentity,
)
from sluice.runtime.messages import BlobRef, JobState, JobSubmission
from sluice.runtime.restart_config import RestartConfig, RestartStrategy
from tests.unit.runtime.ha.simulated import Lines, MemoryStorage, Service, SimulatedPointers

ONE = "1" * 32
SUBMISSION = JobSubmission(name="p.py", owner="alice", pipeline=BlobRef(sha256="0" * 64, name="p.py", size=1))
ENTRY = ExceptionEntry(attempt=1, time=5, error="out of luck", root_cause="luck", traceback="at home", executor=3)
HISTORY_OF_TWO = JobHistory(
    attempts=(
        AttemptView(number=1, started_at=1, ended_at=5, outcome="FAILED", error="out of luck"),
        AttemptView(number=2, started_at=6),
    ),
    exceptions=(ENTRY,),
    executors=(
        ExecutorView(id=3, taskmanager="tm-1", slot=0, state="EXITED", exit_reason="killed", started_at=2),
        ExecutorView(id=4, taskmanager="tm-1", slot=1, state="RUNNING", exit_reason="", started_at=7),
    ),
    restarts=RestartMemory(failures=1),
    processes=(
        ProcessIdentity(
            identity=f"spiffe://td/job/{ONE}/driver",
            attempt=1,
            taskmanager="tm-1",
            isolation="sandbox",
            egress="enforce",
            serials=("a1",),
            certificates=1,
            not_before=1,
            not_after=2,
        ),
    ),
    processes_dropped=4,
)


class World:
    """In-memory stores of histories and jobs."""

    def __init__(self) -> None:
        service = Service(10.0)
        self.storage = MemoryStorage()
        self.pointers = SimulatedPointers(service, Lines(service), service.open(), lambda: None)
        self.store = HistoryStore(self.pointers, self.storage)
        self.jobs = JobStore(self.pointers, self.storage, epoch=1, origin="here")


@pytest.fixture
def world() -> World:
    """Empty stores."""
    return World()


async def test_only_the_latest_history_of_a_job_is_kept_and_read(world: World) -> None:
    assert await world.store.get(ONE) == JobHistory()
    await world.store.put(ONE, JobHistory())
    await world.store.put(ONE, HISTORY_OF_TWO)
    assert await world.store.get(ONE) == HISTORY_OF_TWO
    assert len(world.storage.entries) == 1


@pytest.mark.parametrize("damage", [None, b"", b"{", b'{"attempts":3}'], ids=["gone", "empty", "cut", "other"])
async def test_a_job_history_that_cannot_be_read_begins_empty(world: World, damage: bytes | None) -> None:
    await world.store.put(ONE, HISTORY_OF_TWO)
    (name,) = world.storage.entries
    if damage is None:
        del world.storage.entries[name]
    else:
        world.storage.entries[name] = damage
    assert await world.store.get(ONE) == JobHistory()
    await world.store.put(ONE, HISTORY_OF_TWO)
    assert await world.store.get(ONE) == HISTORY_OF_TWO


async def test_a_damaged_pointer_is_replaced(world: World) -> None:
    await world.pointers.create(HISTORY, ONE, b"{")
    assert await world.store.get(ONE) == JobHistory()
    await world.store.put(ONE, HISTORY_OF_TWO)
    assert await world.store.get(ONE) == HISTORY_OF_TWO


async def test_the_history_is_removed_with_its_job(world: World) -> None:
    await world.jobs.accept(ONE, SUBMISSION, 0, lambda _: Path("blob"))
    keeper = HistoryKeeper(world.store)
    await keeper.keep(ONE, HISTORY_OF_TWO)
    detail = msgspec.structs.replace(accepted_detail(ONE, SUBMISSION, 1), state=JobState.FINISHED, end_time=2)
    await world.jobs.put_result(JobRecord(submission=SUBMISSION, detail=detail))
    await keeper.close(ONE)
    await world.jobs.clean(ONE)
    await keeper.keep(ONE, HISTORY_OF_TWO)  # it came too late
    assert await world.pointers.names(HISTORY) == []
    assert [name for name in world.storage.entries if "history" in name] == []


async def test_a_history_whose_job_has_no_pointer_is_reported_as_damage_and_kept(world: World) -> None:
    await world.store.put(ONE, HISTORY_OF_TWO)
    entries = dict(world.storage.entries)
    found = await world.jobs.recover()
    assert [ONE in text for text in found.damaged] == [True]
    assert await world.pointers.names(HISTORY) == [ONE]
    assert world.storage.entries == entries


async def test_concurrent_writes_of_one_job_are_serialized_and_the_latest_is_kept(world: World) -> None:
    keeper = HistoryKeeper(world.store)
    each = [JobHistory(restarts=RestartMemory(failures=number)) for number in range(20)]
    await asyncio.gather(*(keeper.keep(ONE, history) for history in each))
    assert await world.store.get(ONE) == each[-1]
    assert len(world.storage.entries) == 1


async def test_an_unavailable_storage_raises_an_error_and_later_writes_succeed(world: World) -> None:
    class Away(HistoryStore):
        away = True

        async def put(self, job_id: str, history: JobHistory) -> None:
            if self.away:
                raise StorageUnavailable("away")
            await super().put(job_id, history)

    store = Away(world.pointers, world.storage)
    keeper = HistoryKeeper(store)
    with pytest.raises(StorageUnavailable):
        await keeper.keep(ONE, HISTORY_OF_TWO)
    store.away = False
    await keeper.keep(ONE, HISTORY_OF_TWO)
    assert await world.store.get(ONE) == HISTORY_OF_TWO


def test_a_history_that_is_too_large_loses_its_earliest_tracebacks_first() -> None:
    long = msgspec.structs.replace(ENTRY, traceback="é" * (MAX_HISTORY_BYTES // 16))
    many = JobHistory(exceptions=(long,) * 32, restarts=RestartMemory(failures=7))
    kept = msgspec.json.decode(encoded(many), type=JobHistory)
    assert len(encoded(many)) <= MAX_HISTORY_BYTES
    assert len(kept.exceptions) == 32
    assert kept.restarts.failures == 7
    assert (kept.exceptions[0].traceback, kept.exceptions[-1].traceback) == ("", long.traceback)


def test_the_next_leader_shows_the_earlier_attempts_exceptions_and_executors() -> None:
    job = AcceptedJob(
        job_id=ONE, name="p.py", owner="alice", accepted_at=1, cancelled=False, submission=SUBMISSION,
        attempt=Attempt(number=2, epoch=1, origin="here"),
    )  # fmt: skip
    record = interrupted_record(job, HISTORY_OF_TWO)
    assert [(each.number, each.outcome) for each in record.detail.attempts] == [(1, "FAILED"), (2, LOST)]
    assert record.exceptions == (ENTRY,)
    assert [(each.id, each.state) for each in record.detail.executors] == [(3, "EXITED"), (4, "EXITED")]
    assert HistoryLog.of(record).next_executor == 5
    assert (HistoryLog.of(record).processes, HistoryLog.of(record).processes_dropped) == (HISTORY_OF_TWO.processes, 4)


def test_an_attempt_that_began_but_is_not_in_the_history_is_lost_too() -> None:
    job = AcceptedJob(
        job_id=ONE, name="p.py", owner="alice", accepted_at=1, cancelled=False, submission=SUBMISSION,
        attempt=Attempt(number=3, epoch=1, origin="here"),
    )  # fmt: skip
    ended = JobHistory(attempts=HISTORY_OF_TWO.attempts[:1])
    outcomes = [(each.number, each.outcome) for each in interrupted_record(job, ended).detail.attempts]
    assert outcomes == [(1, "FAILED"), (3, LOST)]


@given(
    st.sampled_from(sorted(RestartStrategy)),
    st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=12),
    st.integers(1, 4),
)
def test_a_strategy_decides_the_same_however_often_leaders_change(
    strategy: RestartStrategy, failures: list[tuple[float, bool]], bound: int
) -> None:
    settings = RestartConfig(
        strategy=strategy, attempts=bound, attempts_before_reset_backoff=bound, max_failures_per_interval=bound
    )

    steady = restart_backoff(settings, checkpointed=lambda: True, chance=lambda: 0.5)
    moving = restart_backoff(settings, checkpointed=lambda: True, chance=lambda: 0.5)
    now = 0.0
    for passed, changed in failures:
        now += passed
        if changed:
            handed_on = msgspec.json.decode(msgspec.json.encode(moving.memory), type=RestartMemory)
            moving = restart_backoff(settings, checkpointed=lambda: True, chance=lambda: 0.5, memory=handed_on)
        assert moving.failed(now) == steady.failed(now)
