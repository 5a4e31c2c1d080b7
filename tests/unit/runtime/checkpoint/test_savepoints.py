"""Savepoints: which files they contain, and that each is complete or absent."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.checkpoint.directory import CheckpointDirectory, Folder
from sluice.runtime.checkpoint.errors import CheckpointsUnavailable, SavepointFailed, SavepointNotFound
from sluice.runtime.checkpoint.ledger import Checkpoint, QueryCheckpoint
from sluice.runtime.checkpoint.savepoints import (
    Savepoint,
    Savepoints,
    files_to_copy,
    new_savepoint_id,
    savepoint_id_of,
)

JOB = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32


@pytest.fixture(params=["path", "url"])
def checkpoints(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointDirectory:
    """The checkpoints of a job whose query ``rows`` has committed batch 2 and planned batch 3."""
    folder = Folder(str(tmp_path / "checkpoints") if request.param == "path" else f"memory://{uuid.uuid4().hex}")
    for batch in range(3):
        folder.write(f"commit {batch}".encode(), JOB, "rows", "commits", str(batch))
    for batch in range(4):
        folder.write(f"offset {batch}".encode(), JOB, "rows", "offsets", str(batch))
    folder.write(b"id", JOB, "rows", "metadata")
    folder.write(b"state", JOB, "rows", "state", "0", "0", "3.delta")
    folder.write(b"half", JOB, "rows", "state", "0", "0", ".4.delta.tmp")
    return CheckpointDirectory(folder)


@pytest.fixture
def savepoints(checkpoints: CheckpointDirectory, tmp_path: Path) -> Savepoints:
    """An empty collection of savepoints."""
    return Savepoints(Folder(str(tmp_path / "savepoints")), checkpoints)


def description(job_id: str = JOB, created_at: int = 1) -> Savepoint:
    """Return what is known of a savepoint before it is made."""
    checkpoint = Checkpoint(
        number=9, attempt=2, completed_at=1, queries=(QueryCheckpoint(query_id="q", name="rows", batch=1),)
    )
    return Savepoint(
        id="",
        path="",
        job_id=job_id,
        job_name="p.py",
        owner="ada",
        created_at=created_at,
        stopped=True,
        checkpoint=checkpoint,
        files=0,
        size=0,
    )


def test_a_savepoint_has_the_committed_batches_and_the_plan_of_the_next_one(
    savepoints: Savepoints, checkpoints: CheckpointDirectory
) -> None:
    made = savepoints.take(new_savepoint_id(JOB), description())
    assert savepoints.list() == (made,)
    assert made.checkpoint.queries[0].batch == 2
    checkpoints.remove(JOB)
    assert savepoints.restore(made.id, OTHER) == made.checkpoint
    restored = checkpoints.folder
    assert checkpoints.committed(OTHER, {"rows"}) == {"rows": 2}
    assert restored.read(OTHER, "rows", "offsets", "3", limit=99) == b"offset 3"
    assert restored.read(OTHER, "rows", "state", "0", "0", "3.delta", limit=99) == b"state"
    assert not [file for file in restored.everything(OTHER) if file.endswith(".tmp")]


def test_restoring_a_savepoint_again_keeps_batches_that_the_job_has_committed_since(
    savepoints: Savepoints, checkpoints: CheckpointDirectory
) -> None:
    made = savepoints.take(new_savepoint_id(JOB), description())
    savepoints.restore(made.id, OTHER)
    checkpoints.folder.write(b"x", OTHER, "rows", "commits", "3")
    savepoints.dispose(made.id)
    assert savepoints.restore(made.id, OTHER) == made.checkpoint
    assert checkpoints.committed(OTHER, {"rows"}) == {"rows": 3}


def test_an_incomplete_copy_of_a_savepoint_is_made_again(
    savepoints: Savepoints, checkpoints: CheckpointDirectory
) -> None:
    made = savepoints.take(new_savepoint_id(JOB), description())
    checkpoints.folder.write(b"of another time", OTHER, "rows", "commits", "7")
    savepoints.restore(made.id, OTHER)
    assert checkpoints.committed(OTHER, {"rows"}) == {"rows": 2}


def test_without_a_committed_batch_there_is_nothing_to_save(
    savepoints: Savepoints, checkpoints: CheckpointDirectory
) -> None:
    checkpoints.folder.remove(JOB, "rows", "commits")
    with pytest.raises(SavepointFailed):
        savepoints.take(new_savepoint_id(JOB), description())
    assert savepoints.list() == ()


def test_no_savepoint_is_taken_of_a_checkpoint_without_its_metadata(
    savepoints: Savepoints, checkpoints: CheckpointDirectory
) -> None:
    checkpoints.folder.remove(JOB, "rows", "metadata")
    with pytest.raises(SavepointFailed):
        savepoints.take(new_savepoint_id(JOB), description())
    assert savepoints.list() == ()


def test_savepoints_are_listed_latest_first_and_without_disposed_ones(savepoints: Savepoints) -> None:
    first = savepoints.take(new_savepoint_id(JOB), description(created_at=1))
    second = savepoints.take(new_savepoint_id(JOB), description(created_at=2))
    assert [each.id for each in savepoints.list()] == [second.id, first.id]
    savepoints.dispose(first.id)
    assert [each.id for each in savepoints.list()] == [second.id]
    for gone in (savepoints.get, savepoints.dispose):
        with pytest.raises(SavepointNotFound):
            gone(first.id)


def test_an_unreadable_savepoint_does_not_hide_the_others(savepoints: Savepoints, tmp_path: Path) -> None:
    made = savepoints.take(new_savepoint_id(JOB), description())
    damaged = tmp_path / "savepoints" / new_savepoint_id(JOB)
    damaged.mkdir()
    (damaged / "savepoint.json").write_bytes(b"\xff")
    (tmp_path / "savepoints" / new_savepoint_id(JOB)).mkdir()
    assert savepoints.list() == (made,)
    with pytest.raises(CheckpointsUnavailable):
        savepoints.get(damaged.name)


@pytest.mark.parametrize(
    "text",
    ["", "..", "/etc", "savepoint-012345", "x/savepoint-012345-0123456789abcdeX", "savepoint-012345-" + "a" * 17],
)
def test_a_malformed_savepoint_id_or_path_is_not_found(text: str) -> None:
    with pytest.raises(SavepointNotFound):
        savepoint_id_of(text)


def test_a_path_names_the_savepoint_at_its_end() -> None:
    name = new_savepoint_id(JOB)
    assert savepoint_id_of(f"s3a://bucket/{name}/") == name


@given(st.integers(0, 30), st.integers(0, 5), st.lists(st.integers(0, 30), unique=True))
def test_files_of_batches_after_the_savepoint_are_not_copied_except_the_next_plan(
    last: int, ahead: int, states: list[int]
) -> None:
    files = [f"q/commits/{number}" for number in range(last + ahead + 1)]
    files += [f"q/offsets/{number}" for number in range(last + ahead + 2)]
    files += [f"q/state/0/0/{number}.delta" for number in states] + ["q/metadata", "_restored", "other/commits/0"]
    chosen = files_to_copy(files, {"q": last})
    assert {int(each.rsplit("/", 1)[1]) for each in chosen if "/commits/" in each} == set(range(last + 1))
    assert {int(each.rsplit("/", 1)[1]) for each in chosen if "/offsets/" in each} == set(range(last + 2)) & set(
        range(last + ahead + 2)
    )
    assert "q/metadata" in chosen
    assert {"_restored", "other/commits/0"}.isdisjoint(chosen)


def test_a_checkpoint_that_is_too_large_makes_no_savepoint(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "checkpoints"))
    for name in ("commits/1", "offsets/1", "metadata"):
        folder.write(b"1", JOB, "rows", *name.split("/"))
    state = tmp_path / "checkpoints" / JOB / "rows" / "state" / "1.delta"
    state.parent.mkdir(parents=True)
    with state.open("wb") as sparse:
        sparse.truncate(1 << 40)
    taken = tmp_path / "savepoints"
    savepoints = Savepoints(Folder(str(taken)), CheckpointDirectory(folder), max_bytes=8 << 20)

    with pytest.raises(SavepointFailed, match=r"more than 8 MiB.*raise streaming.max_savepoint_mb"):
        savepoints.take(new_savepoint_id(JOB), description())

    assert [each for each in taken.rglob("*") if each.is_file()] == []
