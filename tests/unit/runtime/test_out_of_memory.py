"""A process that ended for want of memory is told as such, with its size and what to raise."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.runtime.node.child_process import Exit
from sluice.runtime.out_of_memory import KernelKills, describe_exit


@pytest.mark.parametrize("code", [3, 52])
def test_the_exit_code_of_a_full_heap_is_described_as_out_of_memory(code: int) -> None:
    assert describe_exit(Exit(code), memory_mb=768, setting="--executor-memory", kernel_killed=False) == (
        f"out of memory: its heap of 768 MiB is full (exit code {code}); raise --executor-memory"
    )


@pytest.mark.parametrize(("code", "shown"), [(-9, "killed by SIGKILL"), (137, "exit code 137")])
def test_a_sigkill_is_described_as_out_of_memory_only_if_the_kernel_counted_a_kill(code: int, shown: str) -> None:
    said = describe_exit(Exit(code), memory_mb=4096, setting="--executor-memory", kernel_killed=True)
    assert said.startswith(f"out of memory: the kernel killed it ({shown})")
    assert "4096 MiB" in said
    assert describe_exit(Exit(code), memory_mb=4096, setting="--executor-memory", kernel_killed=False) == shown


@pytest.mark.parametrize("code", [0, 1, 50, 143, -15, -11])
def test_any_other_exit_is_not_described_as_out_of_memory(code: int) -> None:
    said = describe_exit(Exit(code), memory_mb=768, setting="--executor-memory", kernel_killed=True)
    assert said == str(Exit(code))


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/sluice.slice\n", "sluice.slice/memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\n"),
        ("0::/../../elsewhere\n", "memory.events", "oom_kill 2\noom_group_kill 0\n"),
        ("5:cpu,memory:/docker/1\n0::/\n", "memory/docker/1/memory.oom_control", "under_oom 0\noom_kill 2\n"),
    ],
    ids=["version 2", "container", "version 1"],
)
def test_kernel_oom_kills_are_read_from_the_cgroup(tmp_path: Path, cgroup: str, file: str, text: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    counted = tmp_path / "sys/fs/cgroup" / file
    counted.parent.mkdir(parents=True)
    counted.write_text(text)
    assert KernelKills(tmp_path).count == 2


def test_without_a_cgroup_there_are_no_kernel_oom_kills(tmp_path: Path) -> None:
    assert KernelKills(tmp_path).count == 0


def test_the_counters_of_this_machine_can_be_read() -> None:
    counted = KernelKills().count
    assert isinstance(counted, int)
    assert KernelKills().count >= counted
