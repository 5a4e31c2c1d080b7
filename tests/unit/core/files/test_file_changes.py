"""Noticing that a file has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.core.files import write_public
from sluice.core.files.file_changes import CachedFile, file_stamp


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_an_unchanged_file_keeps_its_stamp_and_a_missing_file_has_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert file_stamp(path) is None
    path.write_text("one")
    assert file_stamp(path) == file_stamp(path) is not None
    assert file_stamp(path / "below") is None, "a file is no directory"


@pytest.mark.parametrize("change", ["replace", "append", "chmod", "same size with the time set back"])
def test_every_change_of_a_file_changes_its_stamp(tmp_path: Path, change: str) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    before, info = file_stamp(path), path.stat()
    match change:
        case "replace":
            write_public(path, b"one")
        case "append":
            path.write_text("one more")
        case "chmod":
            path.chmod(0o600)
        case _:
            path.write_text("two")
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert file_stamp(path) != before


def test_a_symlink_has_the_stamp_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("same")
    (tmp_path / "two").write_text("same")
    link = tmp_path / "link"
    link.symlink_to("one")
    assert file_stamp(link) == file_stamp(tmp_path / "one")
    link.unlink()
    link.symlink_to("two")
    assert file_stamp(link) == file_stamp(tmp_path / "two")


def test_a_file_that_cannot_be_examined_is_an_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(StoreError, match=r"cannot read .*loop"):
        file_stamp(loop)


def test_a_cached_file_is_loaded_once_for_each_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    loaded: list[str] = []

    def load(from_path: Path) -> str:
        loaded.append(read(from_path))
        return loaded[-1]

    write_public(path, b"one")
    cached = CachedFile(path, load)
    assert (cached.get(), cached.get(), loaded) == ("one", "one", ["one"])
    write_public(path, b"two")
    assert (cached.get(), cached.get(), loaded) == ("two", "two", ["one", "two"])


def test_a_damaged_file_is_an_error_instead_of_its_last_good_value(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1")
    cached = CachedFile(path, lambda path: int(read(path)))
    assert cached.get() == 1
    write_public(path, b"damaged")
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            cached.get()
    write_public(path, b"2")
    assert cached.get() == 2


def test_a_missing_file_is_an_error_or_has_the_configured_default(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(StoreError, match=r"does not exist \(start the cluster\)"):
        CachedFile(path, read, remedy="start the cluster").get()
    cached = CachedFile(path, read, missing="nothing")
    assert cached.get() == "nothing"
    path.write_text("one")
    assert cached.get() == "one"
    path.unlink()
    assert cached.get() == "nothing"
