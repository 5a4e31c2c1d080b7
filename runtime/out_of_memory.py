"""Detects that a process ended because it was out of memory, of which kind, and names the setting to raise.

A JVM ends itself when its heap is full (``-XX:+ExitOnOutOfMemoryError`` exits with code 3, Spark's own handler with
52). When the machine or container runs out of memory, the kernel kills a process, and counts that in the memory
controller of the control group (kernel documentation, "Control Group v2", ``memory.events``).
"""

from __future__ import annotations

import signal
from pathlib import Path

from sluice.runtime.kernel_files import kernel_count, kernel_text
from sluice.runtime.node import Exit

HEAP_FULL = frozenset({3, 52})
"""Exit codes of a JVM whose heap is full: HotSpot's, and ``org.apache.spark.util.SparkExitCode.OOM``."""
SIGNAL_EXIT_BASE = 128
"""A shell reports a child that was killed by signal n as 128 + n."""

_KILLED = frozenset({-signal.SIGKILL, SIGNAL_EXIT_BASE + signal.SIGKILL})


def describe_exit(ended: Exit, *, memory_mb: int, setting: str, kernel_killed: bool) -> str:
    """Describe the end of a JVM. The text begins with "out of memory" when that was the reason.

    Args:
        ended: how the JVM ended.
        memory_mb: its heap in MiB.
        setting: the setting that gives it more heap.
        kernel_killed: whether the kernel's OOM killer has killed a process while the JVM ran.
    """
    if ended.code in HEAP_FULL:
        return f"out of memory: its heap of {memory_mb} MiB is full ({ended}); raise {setting}"
    if ended.code in _KILLED and kernel_killed:
        return (
            f"out of memory: the kernel killed it ({ended}), as the machine or container has no memory left beyond "
            f"its heap of {memory_mb} MiB; give the machine or container more memory, or lower {setting}"
        )
    return str(ended)


class KernelKills:
    """Reads how often the kernel's OOM killer has killed a process of this control group.

    Args:
        root: directory with ``proc`` and ``sys``.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = tuple(_files(root))

    @property
    def count(self) -> int:
        """The count since the group was created; 0 where the kernel does not count."""
        return max((kernel_count(path, "oom_kill") for path in self._files), default=0)


def _files(root: Path) -> list[Path]:
    """The files with the count, for cgroups v2 and v1. In a container, the group is mounted as the root group."""
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
