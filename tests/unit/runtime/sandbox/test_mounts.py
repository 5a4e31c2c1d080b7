"""What is mounted in a box, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.runtime.sandbox.errors import SandboxRefused
from sluice.runtime.sandbox.mounts import Mount, MountKind, check_path, in_order, with_parents


def test_directories_come_before_what_is_below_them() -> None:
    ordered = in_order([Mount.writable(Path("/a/b/c")), Mount.read_only(Path("/a")), Mount.empty(Path("/a/b"))])

    assert [str(mount.path) for mount in ordered] == ["/a", "/a/b", "/a/b/c"]


def test_of_two_mounts_the_one_that_shows_less_wins() -> None:
    path = Path("/a")

    assert in_order([Mount.writable(path), Mount.read_only(path)]) == [Mount.read_only(path)]
    assert in_order([Mount.read_only(path), Mount.empty(path)]) == [Mount.empty(path)]


def test_nothing_is_mounted_below_what_a_job_can_write() -> None:
    """The job could put a link in its place, and bubblewrap would mount wherever it leads."""
    with pytest.raises(SandboxRefused, match="/work/identity cannot be protected"):
        in_order([Mount.writable(Path("/work")), Mount.read_only(Path("/work/identity"))])

    assert in_order([Mount.writable(Path("/work")), Mount.writable(Path("/work/local"))]) == [
        Mount.writable(Path("/work"))
    ]


@pytest.mark.parametrize(
    "path", ["/", "/etc", "/var", "/proc/1", "/dev", "/dev/vda", "/sys/fs", "/root", "relative", "/a/../etc"]
)
def test_paths_that_show_too_much_are_refused(path: str) -> None:
    with pytest.raises(SandboxRefused):
        check_path(Path(path))


@pytest.mark.parametrize("path", ["/srv/data", "/root/.pyenv", "/home/me/venv"])
def test_directories_of_the_operators_are_allowed(path: str) -> None:
    assert check_path(Path(path)) == Path(path)


def test_directories_above_mounts_are_made_unless_a_mount_has_them() -> None:
    shown = Mount.read_only(Path("/root/.pyenv/3"))
    below = Mount.read_only(Path("/root/.pyenv/3/x/y"))

    assert list(with_parents([shown, below])) == [Path("/root"), Path("/root/.pyenv"), shown, below]


def test_directories_below_what_is_hidden_are_made_in_it() -> None:
    mounts = [Mount.read_only(Path("/a")), Mount.empty(Path("/a/home")), Mount.writable(Path("/a/home/jobs/1/work"))]
    made = list(with_parents(mounts))

    assert made == [*mounts[:2], Path("/a/home/jobs"), Path("/a/home/jobs/1"), mounts[2]]


def test_no_job_sees_all_of_a_home_directory() -> None:
    for path in (Path.home(), *Path.home().parents):
        with pytest.raises(SandboxRefused, match="may not see all of"):
            check_path(path)


def test_a_user_without_a_name_has_no_home_directory() -> None:
    def nameless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    assert check_path(Path("/srv/me"), nameless) == Path("/srv/me")
    with pytest.raises(SandboxRefused, match="may not see all of"):
        check_path(Path("/srv/me"), lambda: Path("/srv/me/here"))


def test_each_kind_has_its_options() -> None:
    assert Mount.read_only(Path("/a"), source=Path("/b")).options(1) == ("--ro-bind", "/b", "/a")
    assert Mount.writable(Path("/a")).options(1) == ("--bind", "/a", "/a")
    assert Mount.link(Path("/bin"), "usr/bin").options(1) == ("--symlink", "usr/bin", "/bin")
    assert Mount.empty(Path("/a")).options(7) == ("--perms", "0755", "--size", "7", "--tmpfs", "/a")
    assert {kind.value for kind in MountKind} == {"empty", "link", "read-only", "writable"}
