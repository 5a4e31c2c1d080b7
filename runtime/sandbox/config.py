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
    """The isolation of jobs, and the resource limits of each process of a job."""

    level: IsolationLevel = IsolationLevel.SANDBOX
    """``sandbox``; ``uid`` (only as root); ``none``: jobs have the rights of their TaskManager."""
    bwrap: str = ""
    """Path of bubblewrap; empty: the distribution's, or else the one installed with Sluice."""
    read_only: tuple[str, ...] = ()
    """Absolute paths that every job may read in addition to its own."""
    writable: tuple[str, ...] = ()
    """Absolute paths that every job may write, so that jobs can exchange files. Jobs with private networks (section
    ``[egress]``) cannot create sockets there."""
    max_processes: int = 4096
    """Maximum number of processes and threads of one process of a job, including all that it starts."""
    max_open_files: int = 65536
    """Maximum number of open files of each process, within the limit of the process that starts it."""
    disk_mb: int = 20480
    """Maximum size in MiB of the files of one process of a job; a driver's JVM and Python count together."""
    max_files: int = 200_000
    """Maximum number of files, directories and links of one process of a job."""
    log_mb: int = 1024
    """Maximum size in MiB of one log file while its job runs. Afterwards, its last 16 MiB are kept."""
    tmp_mb: int = 1024
    """Size in MiB of ``/tmp``, and of ``/dev/shm``; both are in memory."""
    memory_overhead_mb: int = 0
    """Memory in MiB that a JVM of a job may use in addition to its heap and its Python workers; 0: as Spark's
    memoryOverhead, 10 % of the heap, at least 384."""
    python_worker_memory_mb: int = 1024
    """Memory in MiB for the Python workers of each core of an executor; the cores share it."""
    driver_python_memory_mb: int = 4096
    """Maximum memory in MiB of a driver's Python process, including all that it starts."""
