"""Processes that get only the processor time that nobody else wants, until they have something to do.

``SCHED_IDLE`` (sched(7)) compares threads of one group only. Where the kernel has a group for each session ("The
autogroup feature" there), a session has a niceness of its own; the group of a box is
:class:`sluice.runtime.sandbox.Guard`'s.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil

CAP_SYS_NICE = 23
LOWEST_PRIORITY = 19
"""As a niceness."""
_ROUNDS = 20
"""A thread that begins during one round is found in the next."""
_AGAIN_SECONDS = 0.12
"""The kernel lets a process without CAP_SYS_ADMIN change a session's niceness ten times a second."""
_TRIES = 10


def can_return() -> bool:
    """Whether this process may take its children out of the background again."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_NICE & 1)
    return False


def in_background() -> bool:
    """Whether this process gets only the time that nobody else wants."""
    return hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(0) == os.SCHED_IDLE


def to_background(pid: int) -> None:
    """Let ``pid`` and all that it has started have only the time that nobody else wants; one that ended is no error.

    The sessions of which they are the leaders give way too.
    """
    if hasattr(os, "SCHED_IDLE"):
        _change(pid, os.SCHED_IDLE, LOWEST_PRIORITY)


def to_foreground(pid: int) -> None:
    """Give all threads of ``pid`` and of all that it has started their usual share; one that has ended is no error."""
    _change(pid, os.SCHED_OTHER, 0)


def _change(pid: int, policy: int, nice: int) -> None:
    for _ in range(_ROUNDS):
        if not sum(_changed(each, policy, nice) for each in _below(pid)):
            return


def _below(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return []


def _changed(pid: int, policy: int, nice: int) -> int:
    """How many threads had another policy."""
    changed = 0
    with contextlib.suppress(OSError):
        if os.getsid(pid) == pid:
            _set_nice(Path(f"/proc/{pid}/autogroup"), nice)
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                if os.sched_getscheduler(int(task.name)) != policy:
                    os.sched_setscheduler(int(task.name), policy, os.sched_param(0))
                    changed += 1
    return changed


def _set_nice(session: Path, nice: int) -> None:
    """Of a session's group; :class:`OSError` where there is none."""
    if session.read_text(encoding="ascii").split()[-1:] == [str(nice)]:
        return
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            session.write_text(f"{nice}\n", encoding="ascii")
            return
        time.sleep(_AGAIN_SECONDS)
