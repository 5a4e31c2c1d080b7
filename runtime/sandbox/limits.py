"""The resources of one box."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one box may use; 0: not limited."""

    memory_mb: int = 0
    """MiB of all processes in the box together."""
    processes: int = 0
    """Processes and threads."""
    open_files: int = 0
    """Open files of each process."""
    disk_mb: int = 0
    """MiB of files below its writable paths."""
    files: int = 0
    """Files, directories and links below its writable paths."""
    log_mb: int = 0
    """MiB of each of its logs."""
    tmp_mb: int = 0
    """MiB of its ``/tmp``, and of its ``/dev/shm``."""
    cores: int = 0
    """Processors: its share of them, relative to other boxes."""
