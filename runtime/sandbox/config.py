"""Settings of the sandbox (section ``[isolation]`` of ``sluice.toml``)."""

from __future__ import annotations

import enum

import msgspec


class IsolationLevel(enum.StrEnum):
    """What isolates the processes of a job from the rest of the machine."""

    SANDBOX = "sandbox"
    """Namespaces (bubblewrap), a seccomp filter, Landlock if the kernel has it; as root also a uid for each job."""
    UID = "uid"
    """As root: a separate uid for each job, a seccomp filter, Landlock; no namespaces."""
    NONE = "none"
    """No isolation: a job has the same rights as the process that starts it."""


class IsolationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs are isolated, and the limits of each process of a job that no job may exceed."""

    level: IsolationLevel = IsolationLevel.SANDBOX
    """``sandbox``; ``uid`` (only as root); ``none``: jobs can do what their TaskManager can."""
    bwrap: str = ""
    """Path of bubblewrap; empty: the distribution's, else the one that was installed with Sluice."""
    read_only: tuple[str, ...] = ()
    """Absolute paths that every job may read besides its own."""
    writable: tuple[str, ...] = ()
    """Absolute paths that every job may write: jobs can exchange files there. Jobs with networks of their own (section
    ``[egress]``) cannot make sockets there."""
    max_processes: int = 4096
    """Processes and threads of one process of a job and all that it starts."""
    max_open_files: int = 65536
    """Open files of each process; at most what the process that starts it may have."""
    disk_mb: int = 20480
    """MiB of files that one process of a job may keep; a driver's JVM and Python together."""
    max_files: int = 200_000
    """Files, directories and links that one process of a job may keep."""
    log_mb: int = 1024
    """MiB of one log file while its job runs; the last 16 MiB of it are kept afterwards."""
    tmp_mb: int = 1024
    """MiB of ``/tmp``, and of ``/dev/shm``; both are in memory."""
    memory_overhead_mb: int = 0
    """MiB that a JVM of a job may use besides its heap and the memory of its Python workers; 0: as Spark's
    memoryOverhead, 10 % of the heap, at least 384."""
    python_worker_memory_mb: int = 1024
    """MiB for the Python workers of each core of an executor; the cores share it."""
    driver_python_memory_mb: int = 4096
    """MiB that the Python process of a driver and all that it starts may use."""
