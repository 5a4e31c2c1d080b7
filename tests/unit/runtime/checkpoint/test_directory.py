"""The directory of checkpoints, on disk and at a URL."""

from __future__ import annotations

import os
import stat
import uuid
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.directory import CheckpointDirectory, Folder
from sluice.runtime.checkpoint.errors import CheckpointsUnavailable, StreamingMisconfigured

JOB = "0123456789abcdef0123456789abcdef"


@pytest.fixture(params=["path", "url"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """An empty folder."""
    return Folder(str(tmp_path / "checkpoints") if request.param == "path" else f"memory://{uuid.uuid4().hex}")


def test_the_last_committed_batch_is_the_highest_in_the_commit_log(folder: Folder) -> None:
    directory = CheckpointDirectory(folder)
    assert directory.committed(JOB, {"rows"}) == {}
    for batch in (0, 9, 10):
        folder.write(b"v1\n{}", JOB, "rows", "commits", str(batch))
        folder.write(b"x", JOB, "rows", "commits", f".{batch}.crc")
    folder.write(b"v1\n{}", JOB, "rows", "offsets", "11")
    folder.write(b"v1\n{}", JOB, "fresh", "offsets", "0")
    assert directory.committed(JOB, {"rows"}) == {"rows": 10}
    assert directory.jobs() == [JOB]


def test_removing_the_checkpoints_of_a_job_twice_is_no_error(folder: Folder) -> None:
    directory = CheckpointDirectory(folder)
    folder.write(b"1", JOB, "rows", "commits", "0")
    directory.remove(JOB)
    directory.remove(JOB)
    assert (directory.committed(JOB, {"rows"}), directory.jobs()) == ({}, [])


def test_the_checkpoint_location_for_spark_is_a_url_of_the_same_directory(tmp_path: Path) -> None:
    directory = CheckpointDirectory(Folder(str(tmp_path / "a b")))
    assert directory.location(JOB) == f"file://{tmp_path}/a b/{JOB}"
    assert stat.S_IMODE((tmp_path / "a b").stat().st_mode) == 0o700


@pytest.mark.parametrize("job_id", ["", "..", "../x", "A" * 32, JOB + "/x"])
def test_a_malformed_job_id_has_no_checkpoint_location(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(CheckpointsUnavailable):
        CheckpointDirectory(Folder(str(tmp_path))).location(job_id)


@pytest.mark.parametrize("where", ["s3a://key:secret@bucket/x", "nosuch://place"])
def test_an_unusable_checkpoint_url_is_refused_without_repeating_its_secret(where: str) -> None:
    with pytest.raises(StreamingMisconfigured) as caught:
        Folder(where)
    assert "secret" not in str(caught.value)


def test_links_and_fifos_in_the_checkpoint_of_a_job_are_not_read_or_followed(tmp_path: Path) -> None:
    job_id = "a" * 32
    (tmp_path / "secret").write_text("PRIVATE KEY")
    folder = Folder(str(tmp_path / "checkpoints"))
    query = tmp_path / "checkpoints" / job_id / "query"
    (query / "commits").mkdir(parents=True)
    (query / "commits" / "7").write_text("v1")
    (query / "metadata").symlink_to(tmp_path / "secret")
    (query / "state").symlink_to(tmp_path)
    os.mkfifo(query / "offsets")
    directory = CheckpointDirectory(folder)
    assert directory.committed(job_id, {"query"}) == {"query": 7}
    assert folder.everything(job_id) == ["query/commits/7"]
    for name in ("metadata", "offsets", "state/secret"):
        with pytest.raises(CheckpointsUnavailable):
            folder.read(job_id, f"query/{name}", limit=100)
        with pytest.raises(CheckpointsUnavailable):
            folder.copy_to(folder, folder.path("copy"), job_id, f"query/{name}")
    assert folder.names(job_id, "query", "state") == []
    directory.remove(job_id)
    assert directory.jobs() == []
    assert (tmp_path / "secret").exists()
