"""A uid for each job, and giving files to it."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from sluice.runtime.sandbox.errors import SandboxRefused
from sluice.runtime.sandbox.uids import FIRST_UID, UID_BITS, allow_traversal, change_owner, is_job_uid, job_uid


def test_a_job_has_the_same_uid_everywhere_and_another_than_others() -> None:
    uids = {job_uid(f"{number:032x}") for number in range(500)}

    assert job_uid("a") == job_uid("a")
    assert len(uids) == 500
    assert all(is_job_uid(uid) for uid in uids)
    assert FIRST_UID + (1 << UID_BITS) <= 1 << 31
    assert not is_job_uid(0)
    assert not is_job_uid(65534)


def test_everything_below_is_given_and_no_link_is_followed(tmp_path: Path) -> None:
    """As somebody without rights too: a file can be given to oneself."""
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


def test_a_socket_is_given(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        change_owner(tmp_path / "socket", os.geteuid())

    assert (tmp_path / "socket").stat().st_gid == os.geteuid()


def test_links_and_files_with_several_names_are_not_given(tmp_path: Path) -> None:
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


def test_a_device_is_not_given(tmp_path: Path) -> None:
    """An archive may bring one: whoever unpacks it as root would make the job its owner."""
    device = (tmp_path / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            os.mknod(*device)
        return
    os.mknod(*device)
    with pytest.raises(SandboxRefused, match="device"):
        change_owner(tmp_path, 12345678)
    assert device[0].stat().st_uid == 0


def test_others_may_pass_the_directories_above_but_not_list_them(tmp_path: Path) -> None:
    work = tmp_path / "jobs" / "1" / "work"
    work.mkdir(parents=True, mode=0o700)
    for path in (tmp_path / "jobs", tmp_path / "jobs" / "1"):
        path.chmod(0o700)
    allow_traversal(work)

    assert (tmp_path / "jobs").stat().st_mode & 0o777 == 0o711
    assert (tmp_path / "jobs" / "1").stat().st_mode & 0o777 == 0o711
    assert work.stat().st_mode & 0o077 == 0
