"""Files that a job plants make no process outside wait, follow a link, or change another's file."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.core.files import untrusted_files
from sluice.core.files.untrusted_files import (
    MAX_DEPTH,
    UnsafeFile,
    create_untrusted,
    is_regular_file,
    list_untrusted,
    open_untrusted,
    read_untrusted,
    remove_untrusted,
    untrusted_socket,
    walk_untrusted,
)

NAME = "log"
Put = Callable[[Path, Path], object]
"""Puts something hostile at a path; the second one is a file of somebody else's."""


def _socket(path: Path, _: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.fspath(path))
    listening.close()


HOSTILE: tuple[tuple[str, Put], ...] = (
    ("fifo", lambda path, _: os.mkfifo(path)),
    ("symlink to a file", lambda path, secret: path.symlink_to(secret)),
    ("dangling symlink", lambda path, secret: path.symlink_to(secret.with_name("none"))),
    ("symlink to a device", lambda path, _: path.symlink_to("/dev/zero")),
    ("hard link", lambda path, secret: path.hardlink_to(secret)),
    ("directory", lambda path, _: path.mkdir()),
    ("socket", _socket),
)
hostile = pytest.mark.parametrize("put", [pytest.param(put, id=name) for name, put in HOSTILE])


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A directory that a job can write."""
    place = tmp_path / "attempt-1"
    place.mkdir()
    return place


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that the job may not read."""
    path = tmp_path / "secret.pem"
    path.write_text("PRIVATE KEY")
    return path


class TestSockets:
    """Connecting to a socket on which the job listens."""

    def test_a_socket_of_the_job_can_be_connected_to(self, job: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as dialing:
            listening.bind(os.fspath(job / NAME))
            listening.listen()
            with untrusted_socket(job, NAME) as path:
                (job / NAME).unlink()
                dialing.connect(os.fspath(path))

    @pytest.mark.parametrize("put", [pytest.param(put, id=name) for name, put in HOSTILE if name != "socket"])
    def test_anything_else_is_refused(self, job: Path, secret: Path, put: Put) -> None:
        put(job / NAME, secret)
        with pytest.raises(UnsafeFile, match=NAME), untrusted_socket(job, NAME):
            pass

    def test_a_symlink_or_hard_link_to_a_socket_is_refused(self, job: Path, secret: Path) -> None:
        _socket(secret.with_name("rest"), secret)
        (job / NAME).symlink_to(secret.with_name("rest"))
        (job / "hard").hardlink_to(secret.with_name("rest"))
        for name in (NAME, "hard"):
            with pytest.raises(UnsafeFile, match=name), untrusted_socket(job, name):
                pass


class TestReading:
    """Opening and reading files."""

    def test_a_regular_file_is_read(self, job: Path) -> None:
        (job / "identity").mkdir()
        (job / "identity" / NAME).write_bytes(b"text")
        assert read_untrusted(job, "identity", NAME, limit=4) == b"text"
        assert is_regular_file(job, "identity", NAME)

    def test_a_missing_file_raises_file_not_found(self, job: Path) -> None:
        with pytest.raises(FileNotFoundError):
            open_untrusted(job, NAME)
        with pytest.raises(FileNotFoundError):
            open_untrusted(job, "identity", NAME)
        assert not is_regular_file(job, NAME)

    @hostile
    @pytest.mark.parametrize("writable", [False, True])
    def test_anything_else_is_refused(self, job: Path, secret: Path, put: Put, writable: bool) -> None:
        put(job / NAME, secret)
        with pytest.raises(UnsafeFile, match=NAME):
            open_untrusted(job, NAME, writable=writable)
        assert not is_regular_file(job, NAME)

    @hostile
    def test_a_hostile_entry_is_not_opened_for_creation(self, job: Path, secret: Path, put: Put) -> None:
        put(job / NAME, secret)
        with pytest.raises(UnsafeFile, match=NAME):
            create_untrusted(job, NAME, mode=0o600)
        assert secret.read_text() == "PRIVATE KEY"
        assert not (secret.with_name("none")).exists()

    def test_a_linked_directory_on_the_way_is_refused(self, job: Path, secret: Path) -> None:
        (job / "identity").symlink_to(secret.parent)
        with pytest.raises(UnsafeFile, match="identity"):
            open_untrusted(job, "identity", secret.name)

    @pytest.mark.parametrize("name", ["..", ".", "", "../secret.pem", "/etc/passwd"])
    def test_a_name_that_is_a_path_is_refused(self, job: Path, name: str) -> None:
        with pytest.raises(ValueError, match="plain names"):
            open_untrusted(job, name)

    def test_a_file_replaced_between_check_and_open_is_refused(
        self, job: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (job / NAME).write_text("harmless")
        opening = os.open

        def swap_and_open(path: str, *args: int, dir_fd: int | None = None) -> int:
            if path == NAME:
                (job / NAME).unlink()
                (job / NAME).hardlink_to(secret)
            return opening(path, *args, dir_fd=dir_fd)

        monkeypatch.setattr(os, "open", swap_and_open)  # the moment of the swap cannot be had otherwise
        with pytest.raises(UnsafeFile, match="second name"):
            open_untrusted(job, NAME)

    def test_a_file_of_another_user_is_refused(self, job: Path) -> None:
        (job / NAME).write_text("text")
        owner = (job / NAME).stat().st_uid
        info = os.stat_result((0o100600, 1, 1, 1, owner + 1, 0, 4, 0, 0, 0))
        with pytest.raises(UnsafeFile, match="belongs to"):
            untrusted_files._check(info, {owner})

    def test_a_sparse_file_is_not_read_into_memory(self, job: Path) -> None:
        with (job / NAME).open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(UnsafeFile, match="larger than 1000 bytes"):
            read_untrusted(job, NAME, limit=1000)

    def test_refused_entries_leave_no_open_file_descriptor(self, job: Path, secret: Path) -> None:
        for name, put in HOSTILE:
            put(job / name, secret)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for name, _ in HOSTILE:
            assert not is_regular_file(job, name)
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    async def test_checking_fifos_does_not_block_threads(self, job: Path) -> None:
        os.mkfifo(job / NAME)
        asked = [asyncio.to_thread(is_regular_file, job, NAME) for _ in range(64)]
        assert not any(await asyncio.gather(*asked))


class TestListing:
    """Listing the names in a directory."""

    def test_names_in_a_directory_are_listed_sorted(self, job: Path) -> None:
        for name in ("b", "a"):
            (job / name).touch()
        assert list_untrusted(job) == ["a", "b"]
        assert list_untrusted(job, "none") == []

    def test_a_link_to_a_directory_is_not_listed(self, job: Path, secret: Path) -> None:
        (job / "identity").symlink_to(secret.parent)
        with pytest.raises(UnsafeFile):
            list_untrusted(job, "identity")


class TestWalking:
    """Finding all files in a tree."""

    def test_walking_a_tree_finds_only_regular_files(self, job: Path, secret: Path) -> None:
        (job / "a" / "b").mkdir(parents=True)
        for path in (job / "one", job / "a" / "two", job / "a" / "b" / "three"):
            path.touch()
        for name, put in HOSTILE:
            if name != "hard link":
                put(job / "a" / name, secret)
        (job / "away").symlink_to(secret.parent)
        assert walk_untrusted(job) == ["a/b/three", "a/two", "one"]
        assert walk_untrusted(job, "a") == ["b/three", "two"]
        assert walk_untrusted(job, "none") == []
        with pytest.raises(UnsafeFile):
            walk_untrusted(job, "away")

    def test_a_tree_too_deep_or_too_large_is_refused(self, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        job.joinpath(*["down"] * (MAX_DEPTH + 2)).mkdir(parents=True)
        with pytest.raises(UnsafeFile, match="too deep"):
            walk_untrusted(job)
        monkeypatch.setattr(untrusted_files, "MAX_ENTRIES", 10)
        with pytest.raises(UnsafeFile, match="more than 10"):
            walk_untrusted(job)


class TestRemoving:
    """Removing what a job has left."""

    def test_a_tree_is_removed_with_everything_in_it(self, job: Path, secret: Path) -> None:
        tree = job / "work"
        (tree / "sub" / "sub").mkdir(parents=True)
        (tree / "other").mkdir()
        for place in (tree, tree / "sub", tree / "sub" / "sub"):
            for name, put in HOSTILE:
                put(place / name, secret)
        (tree / "sub" / "away").symlink_to(secret.parent)
        remove_untrusted(job, "work")
        assert list(job.iterdir()) == []
        assert secret.read_text() == "PRIVATE KEY"

    @hostile
    def test_a_hostile_entry_is_removed_without_its_target(self, job: Path, secret: Path, put: Put) -> None:
        put(job / NAME, secret)
        remove_untrusted(job, NAME)
        assert list(job.iterdir()) == []
        assert secret.read_text() == "PRIVATE KEY"

    def test_removal_does_not_follow_a_link_in_the_path(self, job: Path, secret: Path) -> None:
        (job / "away").symlink_to(secret.parent)
        remove_untrusted(job, "away", secret.name)
        assert secret.exists()

    def test_a_link_to_a_directory_is_removed_without_its_target(self, job: Path, secret: Path) -> None:
        (job / "away").symlink_to(secret.parent)
        remove_untrusted(job, "away")
        assert list(job.iterdir()) == []
        assert secret.exists()

    def test_directories_without_permissions_are_removed(self, job: Path) -> None:
        (job / "work" / "sub").mkdir(parents=True)
        (job / "work" / "sub" / "file").touch()
        (job / "work" / "sub").chmod(0o000)
        (job / "work").chmod(0o500)
        remove_untrusted(job, "work")
        assert list(job.iterdir()) == []

    def test_a_tree_deeper_than_the_python_stack_is_removed(self, job: Path) -> None:
        here = os.open(job, os.O_RDONLY)
        for _ in range(3000):
            os.mkdir("down", dir_fd=here)
            below = os.open("down", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        remove_untrusted(job, "down")
        assert list(job.iterdir()) == []

    def test_removing_a_missing_entry_is_no_error(self, job: Path) -> None:
        remove_untrusted(job, "none")
        remove_untrusted(job / "none", "none")
        assert list(job.iterdir()) == []
