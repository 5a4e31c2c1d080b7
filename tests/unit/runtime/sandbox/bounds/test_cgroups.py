"""Where control groups are created, and what is written into them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.sandbox import Limits
from sluice.runtime.sandbox.bounds.cgroups import PROCESSES, ControlGroups, settings

LIMITS = Limits(memory_mb=512, processes=64, cores=2)
ONE = ["memory", "pids", "cpu"]


def machine(tmp_path: Path, groups: str) -> tuple[Path, Path]:
    """Create an empty ``/sys/fs/cgroup`` and a ``/proc`` that names the groups of this process."""
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    root.mkdir()
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(groups)
    return root, proc


def group(directory: Path, *, controllers: str = "", given: str = "", top: bool = False) -> Path:
    """Create a cgroup of version 2."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup.controllers").write_text(controllers)
    (directory / "cgroup.subtree_control").write_text(given)
    (directory / "cgroup.procs").write_text("")
    if not top:
        (directory / "cgroup.type").write_text("domain\n")
    return directory


def test_the_settings_of_cgroup_version_2_are_derived_from_the_limits() -> None:
    assert settings(LIMITS, ONE, unified=True) == {
        "memory": (
            ("memory.max", "536870912", True),
            ("memory.swap.max", "0", False),
            ("memory.oom.group", "1", False),
        ),
        "pids": (("pids.max", "64", True),),
        "cpu": (("cpu.weight", "200", False),),
    }


def test_the_settings_of_cgroup_version_1_are_derived_from_the_limits() -> None:
    assert settings(LIMITS, ONE, unified=False) == {
        "memory": (("memory.limit_in_bytes", "536870912", True), ("memory.memsw.limit_in_bytes", "536870912", False)),
        "pids": (("pids.max", "64", True),),
        "cpu": (("cpu.shares", "2048", False),),
    }


def test_no_settings_are_written_without_limits() -> None:
    assert settings(Limits(), ["memory", "pids"], unified=True) == {}


def test_a_delegated_cgroup_of_version_2_is_used(tmp_path: Path) -> None:
    root, proc = machine(tmp_path, "0::/system.slice/sluice.service\n")
    group(root, controllers="cpu memory pids", top=True)
    service = group(root / "system.slice/sluice.service", controllers="cpu memory pids", given="cpu memory pids")
    assert ControlGroups.parents_in(root, proc) == (dict.fromkeys(ONE, service), True)


def test_moved_processes_use_the_cgroup_above_their_own(tmp_path: Path) -> None:
    root, proc = machine(tmp_path, f"0::/sluice.service/{PROCESSES}\n")
    group(root, top=True)
    service = group(root / "sluice.service", controllers="cpu memory pids", given="cpu memory pids")
    group(service / PROCESSES)
    assert ControlGroups.parents_in(root, proc) == (dict.fromkeys(ONE, service), True)


def test_a_cgroup_with_processes_that_is_not_delegated_is_left_alone(tmp_path: Path) -> None:
    """Even root leaves it alone and makes its own cgroups at the top of the hierarchy."""
    root, proc = machine(tmp_path, "0::/user.slice/session-1.scope\n")
    group(root, controllers="cpu memory pids", given="cpu memory pids", top=True)
    session = group(root / "user.slice/session-1.scope", controllers="cpu memory pids")
    (session / "cgroup.procs").write_text("1\n")
    os.chown(session, 0, -1) if os.geteuid() == 0 else session.chmod(0o500)
    try:
        parents, _ = ControlGroups.parents_in(root, proc)
        assert parents == dict.fromkeys(ONE, root) or os.geteuid() != 0
        assert not (session / PROCESSES).exists()
    finally:
        session.chmod(0o700)


def test_no_cgroups_are_used_without_the_controllers(tmp_path: Path) -> None:
    root, proc = machine(tmp_path, "9:name=systemd:/\n0::/\n")
    group(root, controllers="hugetlb", top=True)
    assert ControlGroups.parents_in(root, proc) == ({}, False)
    assert ControlGroups.find(root, proc) is None


def test_cgroup_version_1_needs_the_memory_and_pids_controllers(tmp_path: Path) -> None:
    root, proc = machine(tmp_path, "9:name=systemd:/\n8:pids:/\n4:memory:/box/1\n1:cpu,cpuacct:/\n0::/\n")
    for directory in ("pids", "memory/box/1", "cpu"):
        (root / directory).mkdir(parents=True)
        (root / directory / "cgroup.procs").touch()
    expected = {"memory": root / "memory/box/1", "pids": root / "pids", "cpu": root / "cpu"}
    assert ControlGroups.parents_in(root, proc) == (expected, False)
    (proc / "self" / "cgroup").write_text("8:pids:/\n")
    assert ControlGroups.parents_in(root, proc) == ({}, False)


def test_in_a_container_the_top_of_the_mounted_hierarchy_is_used(tmp_path: Path) -> None:
    root, proc = machine(tmp_path, "8:pids:/docker/abc\n4:memory:/docker/abc\n")
    for directory in ("pids", "memory"):
        (root / directory).mkdir(parents=True)
        (root / directory / "cgroup.procs").touch()
    assert ControlGroups.parents_in(root, proc) == ({"memory": root / "memory", "pids": root / "pids"}, False)


def test_only_cgroups_of_ended_owner_processes_are_removed_as_stale(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    parent = tmp_path / "memory"
    parent.mkdir()
    groups = ControlGroups({"memory": parent}, unified=False)
    for name in (
        f"sluice-box-{int(ended.stdout)}-1234-1",  # dead
        f"sluice-box-{os.getpid()}-1-1",  # its number belongs to another process by now
        f"sluice-box-{groups.owner}-7",  # ours
        "sluice-box-other",
        "docker",
    ):
        (parent / name).mkdir()
    assert groups.remove_stale() == 2
    assert {path.name for path in parent.iterdir()} == {f"sluice-box-{groups.owner}-7", "sluice-box-other", "docker"}


@pytest.mark.parametrize("limits", [LIMITS, Limits()])
def test_removing_a_cgroup_of_this_machine_kills_its_processes(limits: Limits) -> None:
    """Checks nothing if this user may make no cgroups. Some machines have cgroups of both versions."""
    found = ControlGroups.find()
    assert found is not None or os.geteuid() != 0 or not os.access("/sys/fs/cgroup", os.W_OK)
    second = Path("/sys/fs/cgroup/unified")
    both = [found, ControlGroups({"memory": second}, unified=True) if os.access(second, os.W_OK) else None]
    for groups in filter(None, both):
        box = groups.make(limits)
        child = subprocess.Popen(["sleep", "600"], preexec_fn=box.enter)  # noqa: PLW1509  # nothing but writes
        assert box.processes() == [child.pid]
        assert all(directory.is_dir() for directory in box.directories)
        box.remove()
        assert child.wait() == -9
        assert not any(directory.exists() for directory in box.directories)
