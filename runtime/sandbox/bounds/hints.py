"""Explains kernel errors that a job gets because of its limits, and names the setting to raise. No I/O.

Some limits do not kill a process: the kernel fails one system call, and the program's error names no setting.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.runtime.sandbox.limits import Limits

_HINTS: tuple[tuple[str, Callable[[Limits], int], str], ...] = (
    (
        "No space left on device",
        lambda limits: limits.tmp_mb,
        "/tmp and /dev/shm of a job hold {} MiB each; raise tmp_mb in [isolation]",  # noqa: S108 - part of a message
    ),
    (
        "Too many open files",
        lambda limits: limits.open_files,
        "a process of a job may have {} open files; raise max_open_files in [isolation]",
    ),
    (
        "File too large",
        lambda limits: limits.disk_mb,
        "a file of a job may have at most {} MiB; raise disk_mb in [isolation]",
    ),
    *(
        (
            refusal,
            lambda limits: limits.processes,
            "a process of a job may start at most {} processes and threads; raise max_processes in [isolation]",
        )
        for refusal in ("Resource temporarily unavailable", "can't start new thread", "unable to create native thread")
    ),
)


def hint(error: str, limits: Limits) -> str:
    """The setting to raise if ``error`` is a kernel error caused by ``limits``; empty for any other error."""
    for refusal, limit, said in _HINTS:
        if refusal in error and limit(limits):
            return said.format(limit(limits))
    return ""
