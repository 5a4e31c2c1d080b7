"""What managers, workers and JobManagers say to each other about shuffles."""

from __future__ import annotations

import enum

from runtime.messages import Message

INTEGRITY_KEY_BYTES = 8
"""Length of the key that the check values of a job's data are made with."""


# --- worker -> manager ------------------------------------------------------------------------------


class WorkerRegistration(Message, frozen=True):
    """A ShuffleWorker introduces itself.

    Attributes:
        name: that in its certificate.
        host, port: where it serves the data channel.
        instance: differs each time its process starts.
        jobs: whose data it holds, or who may write to it.
        version: of Sluice.
    """

    name: str
    host: str
    port: int
    instance: str
    jobs: tuple[str, ...] = ()
    version: str = ""


class LiveJob(Message, frozen=True):
    """A job whose data is to be kept and served, and the key of its check values."""

    job_id: str
    integrity_key: bytes


class WorkerAccepted(Message, frozen=True):
    """The manager's answer: what fences the heartbeats, their interval, and which of the worker's jobs are alive.

    The worker removes the data of all others.
    """

    fencing_token: bytes
    heartbeat_interval: float
    heartbeat_timeout: float
    live_jobs: tuple[LiveJob, ...]


class DiskReport(Message, frozen=True):
    """One of a worker's directories; sizes in bytes. ``error`` says why it is not used, when it is not."""

    path: str
    total: int
    free: int
    usable: bool = True
    error: str = ""


class JobBytes(Message, frozen=True):
    """What one worker keeps of one job."""

    job_id: str
    bytes: int
    shuffles: int = 0


class WorkerStatistics(Message, frozen=True):
    """A worker as it is now; counters are since its process began.

    Attributes:
        memory_used, memory_limit: bytes for data that is not on disk.
        disks: its directories.
        jobs: what it keeps of each.
        connections: open on the data channel.
        pushed_bytes, fetched_bytes, spilled_bytes: taken in, given out, written to disk.
        waiting_seconds: how long writers were held back in all.
        corrupted: segments whose check value did not hold.
        draining: it takes nothing new.
    """

    memory_used: int = 0
    memory_limit: int = 0
    disks: tuple[DiskReport, ...] = ()
    jobs: tuple[JobBytes, ...] = ()
    connections: int = 0
    pushed_bytes: int = 0
    fetched_bytes: int = 0
    spilled_bytes: int = 0
    waiting_seconds: float = 0.0
    corrupted: int = 0
    draining: bool = False


# --- JobManager -> manager ----------------------------------------------------------------------------


class ShuffleSession(Message, frozen=True):
    """The manager's answer to a JobManager: what fences its calls, and how long a job is kept without renewal."""

    fencing_token: bytes
    job_lease: float


class ShuffleRequest(Message, frozen=True):
    """A job wants to keep a shuffle of ``partitions`` partitions, each map output on ``replicas`` workers.

    ``shuffle_id`` is the number on the data plane.
    """

    job_id: str
    shuffle_id: int
    partitions: int
    replicas: int = 1


# --- what is shown ------------------------------------------------------------------------------------


class WorkerState(enum.StrEnum):
    """What a worker is used for."""

    ACTIVE = "ACTIVE"
    """New shuffles are spread over it."""
    EXCLUDED = "EXCLUDED"
    """It is there and serves what it has, but gets nothing new."""
    DRAINING = "DRAINING"
    """It was asked to take nothing new, and still holds data."""
    DRAINED = "DRAINED"
    """Likewise, and holds nothing any more: it can be stopped."""
    LOST = "LOST"
    """Nothing is heard of it."""


class WorkerView(Message, frozen=True):
    """A worker as the manager sees it.

    ``reason`` says why it is not ACTIVE, ``last_heartbeat`` is epoch milliseconds, ``bytes`` are of all clusters' jobs;
    ``statistics.jobs`` has those of the asking cluster alone.
    """

    name: str
    host: str
    port: int
    state: WorkerState
    reason: str
    last_heartbeat: int
    bytes: int
    statistics: WorkerStatistics


class ShuffleJobView(Message, frozen=True):
    """A job in the service: bytes over all workers (replicas counted), and what its lease has left, in seconds."""

    job_id: str
    bytes: int
    shuffles: int
    lease_left: float


class ShuffleOverview(Message, frozen=True):
    """The whole service as one cluster sees it: all workers, its own jobs."""

    manager: str
    workers: tuple[WorkerView, ...]
    jobs: tuple[ShuffleJobView, ...]
