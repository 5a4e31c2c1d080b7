"""The resource limits of one box."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The resource limits of one box; 0 means unlimited."""

    memory_mb: int = 0
    """Memory in MiB of all processes in the box together."""
    processes: int = 0
    """Processes and threads."""
    open_files: int = 0
    """Open files of each process."""
    disk_mb: int = 0
    """Size in MiB of all files below its writable paths."""
    files: int = 0
    """Files, directories and links below its writable paths."""
    log_mb: int = 0
    """Size in MiB of each of its logs."""
    tmp_mb: int = 0
    """Size in MiB of its ``/tmp``, and of its ``/dev/shm``."""
    cores: int = 0
    """Its share of processor time relative to other boxes, in cores."""
