"""What is left of this machine: idle processors and free memory."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Resources:
    """What nobody uses."""

    idle: float
    """Part of the processors' time since the last look, from 0 to 1."""
    free_mb: int
    """Memory that can be had without swapping."""
    total_mb: int


class Machine:
    """Looks at this machine."""

    def look(self) -> Resources:
        """What was idle since the last look, and is free now."""
        times = psutil.cpu_times_percent(interval=None)
        memory = psutil.virtual_memory()
        idle = min(1.0, (times.idle + times.iowait) / 100)
        return Resources(idle, memory.available // MIB, memory.total // MIB)
