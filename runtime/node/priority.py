"""Processes that get only the processor time that nobody else wants, until they have something to do."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

CAP_SYS_NICE = 23
_ROUNDS = 20
"""A thread that begins during one round is found in the next."""


def can_return() -> bool:
    """Whether this process may take its children out of the background again."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_NICE & 1)
    return False


def to_foreground(pid: int) -> None:
    """Give all threads of ``pid`` and of all that it has started their usual share; one that has ended is no error."""
    for _ in range(_ROUNDS):
        if not sum(_returned(each) for each in _below(pid)):
            return


def _below(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return []


def _returned(pid: int) -> int:
    changed = 0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                if os.sched_getscheduler(int(task.name)) == os.SCHED_IDLE:
                    os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))
                    changed += 1
    return changed
