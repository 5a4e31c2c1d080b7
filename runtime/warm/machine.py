"""Measures the idle CPU time and free memory of this machine."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Resources:
    """The unused resources of the machine."""

    idle: float
    """Share of idle CPU time since the last measurement, from 0 to 1."""
    free_mb: int
    """Memory that is available without swapping, in MiB."""
    total_mb: int


class Machine:
    """Measures this machine."""

    def look(self) -> Resources:
        """The CPU time that was idle since the last call, and the memory that is free now."""
        times = psutil.cpu_times_percent(interval=None)
        memory = psutil.virtual_memory()
        idle = min(1.0, (times.idle + times.iowait) / 100)
        return Resources(idle, memory.available // MIB, memory.total // MIB)
