"""The job store with damaged entries, unavailable storage, and leaders that lost their leadership."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sluice.runtime.ha.embedded import EmbeddedElection
from sluice.runtime.ha.errors import EntryDamaged, LeadershipLost, StorageUnavailable
from sluice.runtime.ha.leadership import Leadership
from sluice.runtime.ha.pointers import Pointer
from sluice.runtime.ha.storage import LocalStorage
from sluice.runtime.ha.storage_identity import check_storage
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail, ended_record, interrupted_record
from sluice.runtime.jobmanager.store.job_history import JobHistory
from sluice.runtime.jobmanager.store.job_store import JobStore
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import BlobRef, JobState, JobSubmission
from tests.unit.runtime.ha.simulated import Lines, MemoryStorage, Service, SimulatedPointers

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32
SUBMISSION = JobSubmission(name="p.py", owner="alice", pipeline=BlobRef(sha256="0" * 64, name="p.py", size=1))


class World:
    """An in-memory job store and its parts."""

    def __init__(self) -> None:
        self.service = Service(10.0)
        self.storage = MemoryStorage()
        self.pointers = SimulatedPointers(self.service, Lines(self.service), self.service.open(), lambda: None)
        self.store = JobStore(self.pointers, self.storage, epoch=1, origin="here")

    async def accept(self, *job_ids: str) -> None:
        """Accept the given jobs."""
        for number, job_id in enumerate(job_ids):
            await self.store.accept(job_id, SUBMISSION, number, lambda _: Path("blob"))

    async def end(self, job_id: str) -> None:
        """Store a result for the job."""
        detail = accepted_detail(job_id, SUBMISSION, 1)
        ended = msgspec.structs.replace(detail, state=JobState.FINISHED, end_time=2)
        await self.store.put_result(JobRecord(submission=SUBMISSION, detail=ended))

    def spoil(self, prefix: str, data: bytes | None) -> None:
        """Replace the entries whose names start with ``prefix``; None removes them."""
        for name in [each for each in self.storage.entries if each.startswith(prefix)]:
            del self.storage.entries[name]
            if data is not None:
                self.storage.entries[name] = data


@pytest.fixture
def world() -> World:
    """A store without any accepted job."""
    return World()


@pytest.mark.parametrize("damage", [None, b"", b"{", b'{"name":"other"}'], ids=["gone", "empty", "cut", "other"])
async def test_a_damaged_submission_harms_its_own_job_alone(world: World, damage: bytes | None) -> None:
    await world.accept(ONE, TWO, THREE)
    world.spoil(f"jobs/{TWO}/submission", damage)
    found = {job.job_id: job for job in (await world.store.recover()).accepted}
    assert found[ONE].submission == found[THREE].submission == SUBMISSION
    assert found[TWO].submission is None
    assert "submission" in found[TWO].damage
    shown = interrupted_record(found[TWO], JobHistory()).detail
    assert (shown.name, shown.owner, shown.state) == ("p.py", "alice", JobState.RECONCILING)


async def test_a_damaged_pointer_is_left_in_place_and_reported(world: World) -> None:
    await world.accept(ONE, TWO)
    world.service.pointers["jobs", ONE] = Pointer(b"{", 0)
    found = await world.store.recover()
    assert [job.job_id for job in found.accepted] == [TWO]
    assert len(found.damaged) == 1
    assert ONE in found.damaged[0]
    assert ("jobs", ONE) in world.service.pointers
    assert any(name.startswith(f"jobs/{ONE}") for name in world.storage.entries)


@pytest.mark.parametrize("part", ["record", "pointer"])
async def test_a_job_with_a_damaged_result_does_not_run_again(world: World, part: str) -> None:
    await world.accept(ONE)
    await world.end(ONE)
    if part == "record":
        world.spoil("results/", b"{")
    else:
        world.service.pointers["results", ONE] = Pointer(b"{", 0)
    found = await world.store.recover()
    assert found.accepted == ()
    if part == "record":
        assert found.ended[0].record is None
        detail = ended_record(found.ended[0]).detail
        assert detail.state is JobState.FINISHED
        assert detail.failure is not None
        assert "damaged" in detail.failure.error


async def test_an_unavailable_storage_is_not_treated_as_damage(world: World) -> None:
    await world.accept(ONE)
    world.storage.away = True
    with pytest.raises(StorageUnavailable):
        await world.store.recover()
    world.storage.away = False
    assert len((await world.store.recover()).accepted) == 1


async def test_an_empty_directory_in_the_place_of_the_storage_is_noticed(world: World) -> None:
    await check_storage(world.pointers, world.storage)
    await check_storage(world.pointers, world.storage)
    with pytest.raises(StorageUnavailable, match="not the one"):
        await check_storage(world.pointers, MemoryStorage())


async def test_a_cancelled_job_stays_cancelled(world: World) -> None:
    await world.accept(ONE, TWO)
    await world.store.cancel(ONE)
    await world.store.cancel(THREE)
    assert [job.cancelled for job in (await world.store.recover()).accepted] == [True, False]


async def test_attempts_are_counted_and_their_end_is_recorded(world: World) -> None:
    await world.accept(ONE)
    begun = [await world.store.begin_attempt(ONE) for _ in range(3)]
    assert [each.number for each in begun] == [1, 2, 3]
    assert len({each.token for each in begun}) == 3
    (job,) = (await world.store.recover()).accepted
    assert job.attempt == begun[-1]
    assert (job.attempt.running, job.attempt.origin, job.attempt.taskmanager) == (True, "here", "")
    assert job.attempt.token not in repr(job)
    await world.store.place_attempt(ONE, "tm-1")
    (job,) = (await world.store.recover()).accepted
    assert job.attempt is not None
    assert (job.attempt.taskmanager, job.attempt.fencing_token) == ("tm-1", begun[-1].fencing_token)
    await world.store.end_attempt(ONE)
    (job,) = (await world.store.recover()).accepted
    assert job.attempt is not None
    assert not job.attempt.running


async def test_only_the_first_result_counts_and_nothing_is_left_of_a_forgotten_job(world: World) -> None:
    await world.accept(ONE)
    await world.end(ONE)
    await world.end(ONE)
    assert sum(name.startswith("results/") for name in world.storage.entries) == 1
    world.storage.entries[f"results/{ONE}-x"] = b"of a write that did not come to its end"
    await world.store.clean(ONE)
    await world.store.forget(ONE)
    assert not world.storage.entries
    assert not world.service.pointers


@pytest.mark.parametrize("lost", ["jobs", "results", "everything"])
async def test_nothing_is_removed_because_a_pointer_is_missing(world: World, lost: str) -> None:
    await check_storage(world.pointers, world.storage)
    await world.accept(ONE, TWO)
    await world.end(TWO)
    await world.store.clean(TWO)
    entries = dict(world.storage.entries)
    for key in [key for key in world.service.pointers if lost in {key[0], "everything"}]:
        del world.service.pointers[key]
    found = await world.store.recover()
    assert world.storage.entries == entries
    lost_jobs = {"jobs": [ONE], "results": [TWO], "everything": [ONE, TWO]}[lost]
    assert all(any(job_id in text for text in found.damaged) for job_id in lost_jobs)


async def test_an_acceptance_that_was_interrupted_is_undone_by_the_next_leader(world: World) -> None:
    await world.accept(ONE)
    world.storage.away = True
    with pytest.raises(StorageUnavailable):
        await world.accept(TWO)
    world.storage.away = False
    world.storage.entries[f"jobs/{TWO}/blobs/x"] = b"was written before the crash"
    found = await world.store.recover()
    assert [job.job_id for job in found.accepted] == [ONE]
    assert found.damaged == ()
    assert not any(TWO in name for name in (*world.storage.entries, *(name for _, name in world.service.pointers)))


async def test_a_withdrawn_job_is_not_recovered_and_leaves_no_entries(world: World) -> None:
    await world.accept(ONE, TWO)
    for _ in range(2):
        await world.store.withdraw(TWO)
    assert [job.job_id for job in (await world.store.recover()).accepted] == [ONE]
    assert not any(TWO in name for name in world.storage.entries)


async def test_a_storage_with_an_identity_is_never_taken_for_new_without_its_pointers(world: World) -> None:
    await check_storage(world.pointers, world.storage)
    await world.accept(ONE)
    entries = dict(world.storage.entries)
    world.service.pointers.clear()
    with pytest.raises(StorageUnavailable, match="pointers"):
        await check_storage(world.pointers, world.storage)
    assert world.storage.entries == entries
    assert not world.service.pointers


@pytest.mark.parametrize("marked", [False, True])
async def test_the_next_leader_completes_the_interrupted_marking_of_a_storage(world: World, marked: bool) -> None:
    world.storage.away = True
    with pytest.raises(StorageUnavailable):
        await check_storage(world.pointers, world.storage)
    world.storage.away = False
    await world.pointers.create("meta", "storage", b"new:00ff")
    if marked:
        world.storage.entries["identity"] = b"00ff"
    await check_storage(world.pointers, world.storage)
    assert world.service.pointers["meta", "storage"].value == world.storage.entries["identity"] == b"00ff"
    with pytest.raises(StorageUnavailable, match="not the one"):
        await check_storage(world.pointers, MemoryStorage())


async def test_a_storage_with_the_identity_of_another_cluster_is_refused(world: World) -> None:
    await world.pointers.create("meta", "storage", b"new:00ff")
    world.storage.entries["identity"] = b"another"
    with pytest.raises(StorageUnavailable, match="not the one"):
        await check_storage(world.pointers, world.storage)


# --- the embedded election ------------------------------------------------------------------------------------


async def lead(root: Path) -> Leadership:
    """Win an election in ``root`` and return the leadership."""
    return await EmbeddedElection(root).elect(lambda: None)


async def test_a_former_leader_cannot_write_after_its_term(tmp_path: Path) -> None:
    first = await lead(tmp_path)
    await first.pointers.create("jobs", "a", b"1")
    await first.resign()
    second = await lead(tmp_path)
    for write in (
        first.pointers.create("jobs", "b", b"2"),
        first.pointers.replace("jobs", "a", b"2", 0),
        first.pointers.remove("jobs", "a"),
    ):
        with pytest.raises(LeadershipLost):
            await write
    with pytest.raises(LeadershipLost):
        first.check()
    assert await second.pointers.names("jobs") == ["a"]
    assert second.epoch == first.epoch + 1
    await second.resign()


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":0,"value":"eA==","sha256":"0"}'])
async def test_a_damaged_pointer_file_raises_entry_damaged(tmp_path: Path, content: bytes) -> None:
    leadership = await lead(tmp_path)
    await leadership.pointers.create("jobs", "a", b"1")
    (tmp_path / "pointers" / "jobs" / "a").write_bytes(content)
    with pytest.raises(EntryDamaged):
        await leadership.pointers.get("jobs", "a")
    await leadership.resign()


async def test_a_damaged_epoch_does_not_prevent_leading(tmp_path: Path) -> None:
    await (await lead(tmp_path)).resign()
    (tmp_path / "epoch").write_bytes(b"not a number")
    leadership = await lead(tmp_path)
    assert leadership.epoch > 2
    await leadership.resign()


def test_a_storage_below_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageUnavailable):
        LocalStorage(tmp_path / "file" / "below")
