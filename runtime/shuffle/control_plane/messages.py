"""What managers, workers and JobManagers say to each other about shuffles."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from sluice.runtime.messages import Message, WorkerAddress

INTEGRITY_KEY_BYTES = 8
"""Length of the key that the check values of a job's data are made with."""

LATENCY_BOUNDS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of a latency histogram; one more bucket counts what took longer."""


class Histogram(msgspec.Struct, frozen=True):
    """Latencies: ``counts[i]`` were at most ``LATENCY_BOUNDS_SECONDS[i]``, the last count is of longer ones."""

    counts: tuple[int, ...]
    total_seconds: float

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=False)))
        return Histogram(counts, self.total_seconds + other.total_seconds)


NOTHING_MEASURED = Histogram(counts=(0,) * (len(LATENCY_BOUNDS_SECONDS) + 1), total_seconds=0.0)


# --- worker -> manager ------------------------------------------------------------------------------


class WorkerRegistration(Message, frozen=True):
    """A ShuffleWorker introduces itself.

    Attributes:
        name: that in its certificate.
        host, port: where it serves the data channel.
        instance: differs each time its process starts.
        jobs: whose data it holds, or who may write to it.
        version: of Sluice.
        draining: it was told to take nothing new, by whoever led then.
    """

    name: str
    host: str
    port: int
    instance: str
    jobs: tuple[str, ...] = ()
    version: str = ""
    draining: bool = False


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


class HandOver(Message, frozen=True):
    """Give what you keep of a shuffle to another worker, which expects it."""

    job_id: str
    shuffle_number: int
    to: WorkerAddress


class DiskReport(Message, frozen=True):
    """One of a worker's directories; sizes in bytes. ``error`` says why it is not used, when it is not.

    ``device`` is the same for all directories, of whichever worker, whose space is that of one file system.
    """

    path: str
    total: int
    free: int
    usable: bool = True
    error: str = ""
    device: str = ""


def free_space(disks: Iterable[DiskReport]) -> int:
    """Free bytes of the usable ones, each file system counted once."""
    devices: dict[str, int] = {}
    unknown = 0
    for disk in disks:
        if not disk.usable:
            continue
        if disk.device:
            devices[disk.device] = disk.free
        else:
            unknown += disk.free
    return unknown + sum(devices.values())


class JobReport(Message, frozen=True):
    """What one worker keeps of one job (``bytes``, in memory and on disk), and what it did since its process began.

    Reports of several workers add up.

    ``maps`` were committed; ``refused`` requests were answered with an error. Latencies are from the arrival of a
    commit to its answer, and from that of a fetch to its last byte. ``spilled_bytes`` were written because memory was
    short, ``waits`` and ``waiting_seconds`` are how often and how long in all its writers were held back.
    """

    job_id: str
    bytes: int
    pushed_bytes: int = 0
    fetched_bytes: int = 0
    maps: int = 0
    refused: int = 0
    commit_latency: Histogram = NOTHING_MEASURED
    fetch_latency: Histogram = NOTHING_MEASURED
    spilled_bytes: int = 0
    waits: int = 0
    waiting_seconds: float = 0.0

    def __add__(self, other: JobReport) -> JobReport:
        names = (name for name in JobReport.__struct_fields__ if name != "job_id")
        return msgspec.structs.replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


class WorkerReport(Message, frozen=True):
    """A worker as it is now; counters are since its process began.

    Attributes:
        memory_used, memory_peak, memory_limit: bytes for data on their way to the disks.
        metadata_used, metadata_limit: bytes for what is known of data, and for connections and reads.
        disks: its directories.
        jobs: the jobs that it knows.
        connections: open on the data channel; ``refused_connections`` were not let in.
        written_bytes: written to disk; of them ``spilled_bytes`` before their commit, because memory was short.
        waits, waiting_seconds: how often and how long in all writers were held back.
        draining: it takes nothing new.
        policy: when it answers commits.
        followed: shuffles that are read here while they are written.
    """

    memory_used: int = 0
    memory_peak: int = 0
    memory_limit: int = 0
    metadata_used: int = 0
    metadata_limit: int = 0
    disks: tuple[DiskReport, ...] = ()
    jobs: tuple[JobReport, ...] = ()
    connections: int = 0
    refused_connections: int = 0
    written_bytes: int = 0
    spilled_bytes: int = 0
    waits: int = 0
    waiting_seconds: float = 0.0
    draining: bool = False
    policy: str = ""
    followed: int = 0


# --- JobManager -> manager ----------------------------------------------------------------------------


class ShuffleSession(Message, frozen=True):
    """The manager's answer to a JobManager: what fences its calls, and how long a job is kept without renewal."""

    fencing_token: bytes
    job_lease: float


class ShuffleRequest(Message, frozen=True):
    """A job wants to keep a shuffle of ``partitions`` partitions, each map output on ``replicas`` workers."""

    job_id: str
    shuffle_number: int
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
    ``report.jobs`` has those of the asking cluster alone.
    """

    name: str
    host: str
    port: int
    state: WorkerState
    reason: str
    last_heartbeat: int
    bytes: int
    report: WorkerReport


class ShuffleJobView(JobReport, frozen=True, kw_only=True):
    """A job in the service: the sum of what the connected workers report, each replica counted.

    ``shuffles`` are live, and ``lease_left`` is in seconds.
    """

    shuffles: int
    lease_left: float


class ShuffleOverview(Message, frozen=True):
    """The whole service as one cluster sees it: all workers, its own jobs."""

    manager: str
    workers: tuple[WorkerView, ...]
    jobs: tuple[ShuffleJobView, ...]
