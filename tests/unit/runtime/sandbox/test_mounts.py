"""The mounts of a sandbox, and their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.runtime.sandbox.errors import SandboxRefused
from sluice.runtime.sandbox.mounts import Mount, MountKind, check_path, in_order, with_parents


def test_mounts_are_ordered_parents_first() -> None:
    ordered = in_order([Mount.writable(Path("/a/b/c")), Mount.read_only(Path("/a")), Mount.empty(Path("/a/b"))])

    assert [str(mount.path) for mount in ordered] == ["/a", "/a/b", "/a/b/c"]


def test_the_more_restrictive_of_two_mounts_of_one_path_wins() -> None:
    path = Path("/a")

    assert in_order([Mount.writable(path), Mount.read_only(path)]) == [Mount.read_only(path)]
    assert in_order([Mount.read_only(path), Mount.empty(path)]) == [Mount.empty(path)]


def test_a_protected_mount_below_a_writable_directory_is_refused() -> None:
    """The job could put a link in its place, and bubblewrap would mount wherever the link leads."""
    with pytest.raises(SandboxRefused, match="/work/identity cannot be protected"):
        in_order([Mount.writable(Path("/work")), Mount.read_only(Path("/work/identity"))])

    assert in_order([Mount.writable(Path("/work")), Mount.writable(Path("/work/local"))]) == [
        Mount.writable(Path("/work"))
    ]


@pytest.mark.parametrize(
    "path", ["/", "/etc", "/var", "/proc/1", "/dev", "/dev/vda", "/sys/fs", "/root", "relative", "/a/../etc"]
)
def test_a_relative_or_too_revealing_mount_path_is_refused(path: str) -> None:
    with pytest.raises(SandboxRefused):
        check_path(Path(path))


@pytest.mark.parametrize("path", ["/srv/data", "/root/.pyenv", "/home/me/venv"])
def test_ordinary_paths_of_an_operator_are_allowed(path: str) -> None:
    assert check_path(Path(path)) == Path(path)


def test_parent_directories_of_a_mount_are_created_unless_a_mount_contains_them() -> None:
    shown = Mount.read_only(Path("/root/.pyenv/3"))
    below = Mount.read_only(Path("/root/.pyenv/3/x/y"))

    assert list(with_parents([shown, below])) == [Path("/root"), Path("/root/.pyenv"), shown, below]


def test_parent_directories_of_a_mount_within_an_empty_mount_are_created() -> None:
    mounts = [Mount.read_only(Path("/a")), Mount.empty(Path("/a/home")), Mount.writable(Path("/a/home/jobs/1/work"))]
    made = list(with_parents(mounts))

    assert made == [*mounts[:2], Path("/a/home/jobs"), Path("/a/home/jobs/1"), mounts[2]]


def test_a_home_directory_and_its_parents_are_refused_as_mount_paths() -> None:
    for path in (Path.home(), *Path.home().parents):
        with pytest.raises(SandboxRefused, match="may not see all of"):
            check_path(path)


def test_mount_paths_are_checked_for_a_user_without_a_home_directory() -> None:
    def nameless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    assert check_path(Path("/srv/me"), nameless) == Path("/srv/me")
    with pytest.raises(SandboxRefused, match="may not see all of"):
        check_path(Path("/srv/me"), lambda: Path("/srv/me/here"))


def test_each_kind_of_mount_has_its_bubblewrap_options() -> None:
    assert Mount.read_only(Path("/a"), source=Path("/b")).options(1) == ("--ro-bind", "/b", "/a")
    assert Mount.writable(Path("/a")).options(1) == ("--bind", "/a", "/a")
    assert Mount.link(Path("/bin"), "usr/bin").options(1) == ("--symlink", "usr/bin", "/bin")
    assert Mount.empty(Path("/a")).options(7) == ("--perms", "0755", "--size", "7", "--tmpfs", "/a")
    assert {kind.value for kind in MountKind} == {"empty", "link", "read-only", "writable"}
