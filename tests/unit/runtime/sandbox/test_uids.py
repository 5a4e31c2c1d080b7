"""A uid for each job, and giving files to it."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from sluice.runtime.sandbox.errors import SandboxRefused
from sluice.runtime.sandbox.uids import FIRST_UID, UID_BITS, allow_traversal, change_owner, is_job_uid, job_uid


def test_a_job_uid_is_stable_and_differs_from_those_of_other_jobs() -> None:
    uids = {job_uid(f"{number:032x}") for number in range(500)}

    assert job_uid("a") == job_uid("a")
    assert len(uids) == 500
    assert all(is_job_uid(uid) for uid in uids)
    assert FIRST_UID + (1 << UID_BITS) <= 1 << 31
    assert not is_job_uid(0)
    assert not is_job_uid(65534)


def test_change_owner_covers_the_whole_tree_and_follows_no_links(tmp_path: Path) -> None:
    """Also run without root: a user can give a file to itself."""
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    outside.touch()
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").touch()
    (tree / "a" / "link").symlink_to(outside)
    os.mkfifo(tree / "a" / "pipe")
    uid = 12345678 if os.geteuid() == 0 else os.geteuid()
    change_owner(tree, uid)

    assert {path.lstat().st_uid for path in (tree, *tree.rglob("*"))} == {uid}
    assert outside.stat().st_uid == os.geteuid()


def test_change_owner_covers_a_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        change_owner(tmp_path / "socket", os.geteuid())

    assert (tmp_path / "socket").stat().st_gid == os.geteuid()


def test_change_owner_refuses_links_and_files_with_several_hard_links(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    outside.touch()
    tree.mkdir()
    (tree / "twin").hardlink_to(outside)

    with pytest.raises(SandboxRefused, match="several hard links"):
        change_owner(tree, os.geteuid())
    (tmp_path / "link").symlink_to(tree)
    with pytest.raises(SandboxRefused, match="cannot be given"):
        change_owner(tmp_path / "link", os.geteuid())
    with pytest.raises(SandboxRefused, match="cannot be given"):
        change_owner(tmp_path / "missing", os.geteuid())


def test_change_owner_refuses_a_device(tmp_path: Path) -> None:
    """An archive may contain one; unpacking it as root would make the job its owner."""
    device = (tmp_path / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            os.mknod(*device)
        return
    os.mknod(*device)
    with pytest.raises(SandboxRefused, match="device"):
        change_owner(tmp_path, 12345678)
    assert device[0].stat().st_uid == 0


def test_directories_above_the_work_directory_become_traversable_but_not_listable(tmp_path: Path) -> None:
    work = tmp_path / "jobs" / "1" / "work"
    work.mkdir(parents=True, mode=0o700)
    for path in (tmp_path / "jobs", tmp_path / "jobs" / "1"):
        path.chmod(0o700)
    allow_traversal(work)

    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o711
    assert (tmp_path / "jobs" / "1").stat().st_mode & 0o777 == 0o711
    assert work.stat().st_mode & 0o077 == 0


def test_the_top_of_a_tree_is_given_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner shows that the tree is complete, so a kill or a refusal in between must not change it."""
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "file").touch()
    given: list[str] = []
    monkeypatch.setattr(os, "fchown", lambda fd, *_: given.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    monkeypatch.setattr(os, "chown", lambda path, *_: given.append(str(Path(path).readlink())))
    change_owner(tmp_path / "tree", os.geteuid())
    assert len(given) == 4
    assert given[-1] == str(tmp_path / "tree")
