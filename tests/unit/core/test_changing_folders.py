"""Listing files below a folder that other processes change."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.files import files_below, paths_matching


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("work/a/jobs/1/x", "work/a/jobs/2/x", "work/b/jobs/3/y", "work/.c/jobs/4/x", "work/a/jobs/.5.tmp/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_paths_match_part_by_part_and_hidden_names_only_if_the_pattern_names_them(tree: Path) -> None:
    jobs = tree / "work" / "a" / "jobs"
    assert paths_matching(tree, "work/*/jobs/*/x") == [jobs / "1" / "x", jobs / "2" / "x"]
    assert paths_matching(jobs, ".*.tmp") == [jobs / ".5.tmp"]
    assert paths_matching(tree, "work/*/none") == []
    assert paths_matching(tree / "none", "*/x") == []
    assert paths_matching(tree, "work/a/jobs/1/x/*") == [], "a file is no folder"


def test_a_folder_that_disappears_meanwhile_has_nothing_below_it(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path.iterdir

    def gone(folder: Path) -> Iterator[Path]:
        if folder.name == "1":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", gone)
    assert [path.name for path in paths_matching(tree, "work/a/jobs/*/*")] == ["x"]


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_empty(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a CRL would not reach what is in it, and an audit would pass without having looked."""

    def fail(_: object) -> object:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "iterdir", fail)
    with pytest.raises(OSError, match="Too many open files"):
        paths_matching(tree, "work/*/jobs")
    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(OSError, match="Too many open files"):
        list(files_below(tree))
