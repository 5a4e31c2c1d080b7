"""Measuring directories that a hostile job fills meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sluice.runtime.sandbox.bounds.directories import MAX_DEPTH, measure_directories

MIB = 1 << 20
MANY = 1_000_000


def fill(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(size))
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


def test_files_in_all_directories_count(job: Path, tmp_path: Path) -> None:
    (job / "a" / "b").mkdir(parents=True)
    fill(job / "one", MIB)
    fill(job / "a" / "b" / "two", 2 * MIB)
    other = tmp_path / "temp"
    other.mkdir()
    fill(other / "three", 3 * MIB)
    found = measure_directories([job, other], max_entries=MANY)
    assert 6 * MIB <= found.bytes < 6.5 * MIB
    assert (found.entries, found.hidden) == (5, "")


def test_a_directory_that_is_not_there_yet_holds_nothing(tmp_path: Path) -> None:
    assert measure_directories([tmp_path / "work"], max_entries=MANY).bytes == 0


def test_links_are_not_followed(job: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    fill(outside / "big", 5 * MIB)
    (job / "directory").symlink_to(outside)
    (job / "file").symlink_to(outside / "big")
    (job / "root").symlink_to("/")
    (job / "loop").symlink_to(job)
    found = measure_directories([job], max_entries=MANY)
    assert found.bytes < MIB
    assert (found.entries, found.hidden) == (4, "")


def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "work").symlink_to("/")
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        measure_directories([tmp_path / "work"], max_entries=MANY)


def test_measuring_does_not_open_a_fifo(job: Path) -> None:
    os.mkfifo(job / "fifo")
    found = measure_directories([job], max_entries=MANY)
    assert (found.entries, found.hidden) == (1, "")


def test_hard_links_of_a_file_count_once_and_holes_do_not_count(job: Path) -> None:
    fill(job / "file", 2 * MIB)
    for number in range(5):
        (job / f"name-{number}").hardlink_to(job / "file")
    with (job / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    found = measure_directories([job], max_entries=MANY)
    assert 2 * MIB <= found.bytes < 2.5 * MIB
    assert found.entries == 7


def test_the_walk_stops_after_the_maximum_number_of_entries(job: Path) -> None:
    for directory in range(5):
        (job / str(directory)).mkdir()
        for number in range(50):
            (job / str(directory) / str(number)).touch()
    assert measure_directories([job], max_entries=100).entries == 101


def test_a_tree_that_is_too_deep_is_reported_as_hidden(job: Path) -> None:
    nest(job, MAX_DEPTH - 1)
    assert not measure_directories([job], max_entries=MANY).hidden
    deepest = job.joinpath(*("d" for _ in range(MAX_DEPTH - 1)))
    nest(deepest, 1)
    found = measure_directories([job], max_entries=MANY)
    assert found.hidden == f"there are more than {MAX_DEPTH} directories within each other"


def test_a_tree_deeper_than_any_path_is_measured_without_an_error(job: Path) -> None:
    nest(job, 3000)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # names, not paths
    assert "within each other" in measure_directories([job], max_entries=MANY).hidden
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    remove_nested(job)


def test_directories_without_permissions_are_measured_too(job: Path) -> None:
    closed = job / "closed"
    closed.mkdir()
    fill(closed / "hidden", 3 * MIB)
    closed.chmod(0)
    found = measure_directories([job], max_entries=MANY)
    assert found.bytes >= 3 * MIB
    assert not found.hidden


def test_files_may_vanish_and_appear_meanwhile(job: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for number in range(50):
                below = job / f"d{number % 7}"
                below.mkdir(exist_ok=True)
                (below / str(number)).touch()
            for number in range(50):
                below = job / f"d{number % 7}"
                (below / str(number)).unlink()
            (job / "d0").rmdir()
            (job / "d0").symlink_to("/")
            (job / "d0").unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(200):
            found = measure_directories([job], max_entries=MANY)
            assert found.entries < 100
            assert not found.hidden
    finally:
        stop.set()
        thread.join()


def nest(directory: Path, depth: int) -> None:
    """Make directories ``d`` within each other."""
    current = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=current)
        below = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)


def remove_nested(directory: Path) -> None:
    """Remove the directories made by :func:`nest`; pytest cannot remove them."""
    current = os.open(directory, os.O_RDONLY)
    while True:
        try:
            below = os.open("d/d", os.O_RDONLY, dir_fd=current)
        except FileNotFoundError:
            break
        os.close(below)
        os.rename("d/d", "e", src_dir_fd=current, dst_dir_fd=current)
        os.rmdir("d", dir_fd=current)
        os.rename("e", "d", src_dir_fd=current, dst_dir_fd=current)
    os.close(current)
