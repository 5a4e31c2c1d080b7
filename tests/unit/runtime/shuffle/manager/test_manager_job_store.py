"""The shuffle service's durable state: what a later manager reads, even if it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.runtime.ha.embedded import FilePointers
from sluice.runtime.ha.errors import LeadershipLost
from sluice.runtime.shuffle.manager.job_store import ShuffleJobStore
from sluice.runtime.shuffle.manager.jobs import Job, Shuffle

JOB, OTHER = "a" * 32, "b" * 32
HANDED_OVER = Shuffle(4, ("w-1", "w-2"), {"w-1": "w-3"})


@pytest.fixture
async def store(tmp_path: Path) -> ShuffleJobStore:
    """A store with two live jobs."""
    store = ShuffleJobStore(FilePointers(tmp_path))
    for job_id in (JOB, OTHER):
        await store.add(Job(job_id, "owner", b"k" * 8))
    return store


async def recovered(root: Path) -> dict[str, dict[int, Shuffle]]:
    """Return what the next manager reads."""
    return {job.job_id: job.shuffles for job in await ShuffleJobStore(FilePointers(root)).recover()}


async def test_successor_workers_of_a_shuffle_are_recovered(store: ShuffleJobStore, tmp_path: Path) -> None:
    await store.note(JOB, 7, HANDED_OVER)
    await store.note(JOB, 7, Shuffle(4, ("w-1", "w-2"), {"w-1": "w-3", "w-2": "w-3"}))
    await store.note(JOB, 8, HANDED_OVER)
    await store.forget(JOB, 8)
    await store.forget(JOB, 9)
    found = await recovered(tmp_path)
    assert found == {JOB: {7: Shuffle(4, ("w-1", "w-2"), {"w-1": "w-3", "w-2": "w-3"})}, OTHER: {}}


async def test_a_shuffle_without_successor_workers_is_not_stored(store: ShuffleJobStore, tmp_path: Path) -> None:
    await store.note(JOB, 7, HANDED_OVER)
    assert store.has_noted(JOB, 7)
    await store.note(JOB, 7, Shuffle(4, ("w-1", "w-2")))
    assert not store.has_noted(JOB, 7)
    assert await recovered(tmp_path) == {JOB: {}, OTHER: {}}


async def test_removing_a_job_removes_its_shuffles_even_after_a_crash(store: ShuffleJobStore, tmp_path: Path) -> None:
    await store.note(JOB, 7, HANDED_OVER)
    await store.note(OTHER, 7, HANDED_OVER)
    later = ShuffleJobStore(FilePointers(tmp_path))
    await later.recover()
    await later.remove(JOB)
    assert [path.name for path in (tmp_path / "shuffles").iterdir()] == [f"{OTHER}-7"]
    (tmp_path / "jobs" / OTHER).unlink()  # its removal was not done when the manager died
    assert await recovered(tmp_path) == {}
    assert list((tmp_path / "shuffles").iterdir()) == []


@pytest.mark.parametrize("name", [f"{JOB}-7", f"{JOB}-x", f"{JOB}-", "c" * 32 + "-7"])
async def test_damaged_and_orphaned_shuffle_files_are_removed_on_recovery(
    store: ShuffleJobStore, tmp_path: Path, name: str
) -> None:
    await store.note(JOB, 5, HANDED_OVER)
    (tmp_path / "shuffles" / name).write_bytes(b"{}")
    assert await recovered(tmp_path) == {JOB: {5: HANDED_OVER}, OTHER: {}}
    assert [path.name for path in (tmp_path / "shuffles").iterdir()] == [f"{JOB}-5"]


async def test_a_manager_that_lost_leadership_cannot_store_shuffles(tmp_path: Path) -> None:
    pointers = FilePointers(tmp_path)
    store = ShuffleJobStore(pointers)
    pointers.close()
    with pytest.raises(LeadershipLost):
        await store.note(JOB, 7, HANDED_OVER)
    assert await recovered(tmp_path) == {}
