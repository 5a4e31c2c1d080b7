"""Recognises a process that was recorded earlier, although pids are reused and the clock may be set meanwhile."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

SAME_PROCESS_SECONDS = 2.0
"""Start times that differ by less belong to the same process: the kernel rounds the time of the boot."""

_START_TIME = 19
"""The place of ``starttime`` after the name, see proc_pid_stat(5)."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The id of the current boot of the machine; empty if the kernel does not show it."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return ""


def uptime_at_start(process: psutil.Process) -> float:
    """How long the machine had been up when a process started, in seconds; a clock that is set does not change it."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(process.pid) from None
    return int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")


def is_same_process(process: psutil.Process, started_at: float, boot: str, uptime: float) -> bool:
    """Whether a running process is the recorded one, by :func:`boot_id` and :func:`uptime_at_start` in the record.

    Records of earlier releases have only ``started_at``, in seconds since the epoch.
    """
    if not boot:
        return abs(process.create_time() - started_at) < SAME_PROCESS_SECONDS
    return boot == boot_id() and abs(uptime_at_start(process) - uptime) < SAME_PROCESS_SECONDS
