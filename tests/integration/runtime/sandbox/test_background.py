"""A background process yields the CPU to all others, in each of the kernel's groups that it is in."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from sluice.runtime.kernel_files import kernel_text
from sluice.runtime.node import ChildProcess, can_return
from sluice.runtime.sandbox import Limits
from sluice.runtime.sandbox.bounds import ControlGroups, Guard, Subject

PROGRAM = """
import os, subprocess, sys, threading
threading.Thread(target=sys.stdin.read).start()
print(subprocess.Popen([sys.executable, "-c", "input()"]).pid, flush=True)
"""
"""Two threads, and a child."""
SHARES = ("cpu.idle", "cpu.shares", "cpu.weight")


def policies(pid: int) -> set[int]:
    """The scheduling policies of all threads of a process."""
    return {os.sched_getscheduler(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()}


def nice_of_session(pid: int) -> str:
    """The nice value of the process's autogroup; empty if the kernel does not schedule by session."""
    file = Path(f"/proc/{pid}/autogroup")
    return file.read_text().split()[-1] if file.exists() else ""


def shares(pid: int, groups: ControlGroups | None) -> dict[str, str]:
    """The CPU settings of the process's control group; empty if there is none."""
    if groups is None or "cpu" not in groups.parents:
        return {}
    (group,) = (each for each in groups.parents["cpu"].iterdir() if each.is_dir() and pid in pids(each))
    return {name: (group / name).read_text().strip() for name in SHARES if (group / name).exists()}


def printed(out: Path) -> str:
    return out.read_text()


def pids(group: Path) -> list[int]:
    """The processes in a control group; none in one that has been removed meanwhile."""
    return [int(each) for each in kernel_text(group / "cgroup.procs").split()]


async def started(groups: ControlGroups | None, out: Path) -> tuple[ChildProcess, int]:
    """Start the program; returns the process and the process id of its child."""
    with out.open("wb") as log:
        child = await ChildProcess.start(
            (sys.executable, "-c", PROGRAM),
            env={},
            cwd=out.parent,
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            guard=Guard(Limits(memory_mb=200, cores=2), Subject("the box", "nothing"), groups=groups),
        )
    while not printed(out).endswith("\n"):  # noqa: ASYNC110  # another process prints it
        await asyncio.sleep(0.01)
    return child, int(printed(out))


async def test_a_background_process_yields_in_every_control_group_until_it_is_in_the_foreground(tmp_path: Path) -> None:
    groups = await asyncio.to_thread(ControlGroups.find)
    child, grandchild = await started(groups, tmp_path / "out")
    try:
        usual = shares(child.pid, groups)
        await child.to_background()
        assert policies(child.pid) == policies(grandchild) == {os.SCHED_IDLE}
        assert nice_of_session(child.pid) in {"", "19"}
        found = shares(child.pid, groups)
        assert found.get("cpu.idle", "1") == "1"
        assert not usual or found != usual
        if can_return():
            await child.to_foreground()
            assert policies(child.pid) == policies(grandchild) == {os.SCHED_OTHER}
            assert nice_of_session(child.pid) in {"", "0"}
            assert shares(child.pid, groups) == usual
    finally:
        await child.stop(0)
