"""What the kernel refuses a job because of its limits, said in the words of the settings. Decisions only.

Some limits end nobody: the kernel refuses one call, and the program says so in words that name no setting.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.runtime.sandbox.limits import Limits

_HINTS: tuple[tuple[str, Callable[[Limits], int], str], ...] = (
    (
        "No space left on device",
        lambda limits: limits.tmp_mb,
        "/tmp and /dev/shm of a job hold {} MiB each; raise tmp_mb in [isolation]",  # noqa: S108  # words
    ),
    (
        "Too many open files",
        lambda limits: limits.open_files,
        "a process of a job may have {} open files; raise max_open_files in [isolation]",
    ),
    (
        "File too large",
        lambda limits: limits.disk_mb,
        "the files of a job may have {} MiB; raise disk_mb in [isolation]",
    ),
    *(
        (
            refusal,
            lambda limits: limits.processes,
            "all that a process of a job starts may be {} processes and threads; raise max_processes in [isolation]",
        )
        for refusal in ("Resource temporarily unavailable", "can't start new thread", "unable to create native thread")
    ),
)


def hint(error: str, limits: Limits) -> str:
    """What to raise when ``error`` is the kernel's refusal because of ``limits``; empty when it is something else."""
    for refusal, limit, said in _HINTS:
        if refusal in error and limit(limits):
            return said.format(limit(limits))
    return ""
