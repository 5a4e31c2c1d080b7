"""Files of released shuffles, and which shuffles overwrite them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.runtime.shuffle.worker.storage.spare_files import SpareFiles, remove_left_over

JOB, OTHER = "a" * 32, "b" * 32


def made(disk: Path, job: str, shuffle: int, size: int) -> Path:
    """Create the data file of a shuffle and return its path."""
    data = disk / job / str(shuffle) / "data"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_bytes(b"x" * size)
    return data


def wanted(disk: Path, job: str, shuffle: int) -> Path:
    """Return the path of a shuffle's future data file."""
    data = disk / job / str(shuffle) / "data"
    data.parent.mkdir(parents=True, exist_ok=True)
    return data


def bytes_on(disk: Path) -> int:
    return sum(path.stat().st_size for path in disk.rglob("*") if path.is_file())


def test_the_most_recently_kept_spare_file_is_reused_first(tmp_path: Path) -> None:
    spares = SpareFiles(1000)
    spares.keep(JOB, tmp_path, made(tmp_path, JOB, 1, 100))
    spares.keep(JOB, tmp_path, made(tmp_path, JOB, 2, 200))

    assert spares.reuse(JOB, tmp_path, wanted(tmp_path, JOB, 3))
    assert spares.reuse(JOB, tmp_path, wanted(tmp_path, JOB, 4))
    assert not spares.reuse(JOB, tmp_path, wanted(tmp_path, JOB, 5))
    assert [wanted(tmp_path, JOB, each).stat().st_size for each in (3, 4)] == [200, 100]


@pytest.mark.parametrize(("job", "folder"), [(OTHER, "disk"), (JOB, "other-disk")])
def test_a_spare_file_is_not_reused_by_another_job_or_on_another_disk(tmp_path: Path, job: str, folder: str) -> None:
    spares = SpareFiles(1000)
    spares.keep(JOB, tmp_path / "disk", made(tmp_path / "disk", JOB, 1, 100))

    assert not spares.reuse(job, tmp_path / folder, wanted(tmp_path / folder, job, 2))


def test_spare_files_of_an_ended_job_are_removed(tmp_path: Path) -> None:
    spares = SpareFiles(1000)
    spares.keep(JOB, tmp_path, made(tmp_path, JOB, 1, 100))
    spares.keep(OTHER, tmp_path, made(tmp_path, OTHER, 1, 70))

    assert spares.drop(job_id=JOB)
    assert bytes_on(tmp_path) == 70
    assert not spares.drop(job_id=JOB)


def test_dropping_spare_files_frees_the_space_of_a_disk(tmp_path: Path) -> None:
    spares = SpareFiles(1000)
    for name in ("one", "two"):
        spares.keep(JOB, tmp_path / name, made(tmp_path / name, JOB, 1, 100))

    assert spares.drop(tmp_path / "one")
    assert (bytes_on(tmp_path / "one"), bytes_on(tmp_path / "two")) == (0, 100)
    assert spares.drop()
    assert bytes_on(tmp_path) == 0


def test_spare_files_are_kept_up_to_a_bound_that_includes_reused_files(tmp_path: Path) -> None:
    spares = SpareFiles(250)
    spares.keep(JOB, tmp_path, made(tmp_path, JOB, 1, 100))
    spares.keep(JOB, tmp_path, made(tmp_path, JOB, 2, 100))
    spares.keep(JOB, tmp_path, made(tmp_path, JOB, 3, 100))
    assert bytes_on(tmp_path) == 200

    # Two small shuffles reuse two files, which still count: there is no room for more.
    reused = [wanted(tmp_path, JOB, each) for each in (4, 5)]
    assert all(spares.reuse(JOB, tmp_path, each) for each in reused)
    spares.keep(JOB, tmp_path, made(tmp_path, JOB, 6, 100))
    assert bytes_on(tmp_path) == 200

    reused[0].unlink()
    spares.forget(reused[0])
    spares.keep(JOB, tmp_path, made(tmp_path, JOB, 7, 100))
    assert spares.reuse(JOB, tmp_path, wanted(tmp_path, JOB, 8))


@pytest.mark.parametrize(("most", "size"), [(0, 1), (100, 101), (100, 0)])
def test_a_file_that_is_too_large_or_empty_is_not_kept_as_a_spare(tmp_path: Path, most: int, size: int) -> None:
    spares, data = SpareFiles(most), made(tmp_path, JOB, 1, size)
    spares.keep(JOB, tmp_path, data)

    assert data.exists()
    assert not spares.reuse(JOB, tmp_path, wanted(tmp_path, JOB, 2))


def test_a_deleted_spare_file_is_not_reused(tmp_path: Path) -> None:
    spares = SpareFiles(1000)
    spares.keep(JOB, tmp_path, tmp_path / JOB / "1" / "data")
    spares.keep(JOB, tmp_path, made(tmp_path, JOB, 2, 100))
    remove_left_over(tmp_path / JOB)

    assert not spares.reuse(JOB, tmp_path, wanted(tmp_path, JOB, 3))
    assert not wanted(tmp_path, JOB, 3).exists()
