"""Telling that a process ended for want of memory, of which kind, and what to raise.

A JVM of ours ends itself when its heap is full (``-XX:+ExitOnOutOfMemoryError`` is exit code 3; Spark's own handler
ends with 52). A process beyond what its machine or container has is killed by the kernel, which counts that in the
memory controller of the control group (kernel documentation, "Control Group v2", ``memory.events``).
"""

from __future__ import annotations

import signal
from pathlib import Path

from sluice.runtime.kernel_files import kernel_count, kernel_text
from sluice.runtime.node import Exit

HEAP_FULL = frozenset({3, 52})
"""Exit codes of a JVM whose heap is full: HotSpot's, and ``org.apache.spark.util.SparkExitCode.OOM``."""
SIGNAL_EXIT_BASE = 128
"""A shell reports a child that was ended by signal n with 128 + n."""

_KILLED = frozenset({-signal.SIGKILL, SIGNAL_EXIT_BASE + signal.SIGKILL})


def end_of(ended: Exit, *, memory_mb: int, setting: str, kernel_killed: bool) -> str:
    """Describe the end of a JVM; begins with "out of memory" when that was the reason.

    Args:
        memory_mb: its heap in MiB.
        setting: what its user raises for more heap.
        kernel_killed: whether the kernel has killed a process for want of memory while it ran.
    """
    if ended.code in HEAP_FULL:
        return f"out of memory: its heap of {memory_mb} MiB is full ({ended}); raise {setting}"
    if ended.code in _KILLED and kernel_killed:
        return (
            f"out of memory: the kernel killed it ({ended}), since the machine or container has no more beside its "
            f"heap of {memory_mb} MiB; give that more memory, or lower {setting}"
        )
    return str(ended)


class KernelKills:
    """Counts how often the kernel killed a process of this control group for want of memory.

    Args:
        root: where ``proc`` and ``sys`` are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = tuple(_files(root))

    @property
    def count(self) -> int:
        """The count since the group was made; 0 where the kernel does not count."""
        return max((kernel_count(path, "oom_kill") for path in self._files), default=0)


def _files(root: Path) -> list[Path]:
    """Where the count is, for version 2 and for version 1 of control groups; in a container the group is the top."""
    mounted, found = root / "sys/fs/cgroup", []
    for line in kernel_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        group = path.lstrip("/")
        if not controllers:
            found += [mounted / group / "memory.events", mounted / "memory.events"]
        elif "memory" in controllers.split(","):
            found += [mounted / "memory" / group / "memory.oom_control", mounted / "memory/memory.oom_control"]
    return found
