"""Idle priority for processes that have no work yet: they get only processor time that no other process uses.

``SCHED_IDLE`` (sched(7)) ranks only threads of the same group. Where the kernel has one group per session ("The
autogroup feature" in sched(7)), the session's own niceness is set as well. :class:`sluice.runtime.sandbox.Guard`
handles the control group of a box.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import psutil

CAP_SYS_NICE = 23
LOWEST_PRIORITY = 19
"""The niceness of a background session."""
_ROUNDS = 20
"""Maximum number of passes: a thread that starts during one pass is found in the next."""
_AGAIN_SECONDS = 0.12
"""The kernel lets a process without CAP_SYS_ADMIN change a session's niceness ten times a second."""
_TRIES = 10


def can_return() -> bool:
    """Whether this process may return its children to normal priority (CAP_SYS_NICE)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_NICE & 1)
    return False


def in_background() -> bool:
    """Whether this process has idle priority."""
    return hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(0) == os.SCHED_IDLE


def to_background(pid: int) -> None:
    """Give ``pid`` and its descendants idle priority, and the lowest niceness to the sessions that they lead.

    Processes that have ended are ignored.
    """
    if hasattr(os, "SCHED_IDLE"):
        _change(pid, os.SCHED_IDLE, LOWEST_PRIORITY)


def to_foreground(pid: int) -> None:
    """Give ``pid`` and its descendants normal priority again. Processes that have ended are ignored."""
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
    """Set policy and niceness of one process; return how many of its threads had another policy."""
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
    """Set the niceness of a session's autogroup; raises :class:`OSError` where there is none."""
    if session.read_text(encoding="ascii").split()[-1:] == [str(nice)]:
        return
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            session.write_text(f"{nice}\n", encoding="ascii")
            return
        time.sleep(_AGAIN_SECONDS)
