"""The RPC messages of ShuffleManagers, ShuffleWorkers and JobManagers."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from sluice.runtime.messages import Message, WorkerAddress

INTEGRITY_KEY_BYTES = 8
"""Length of a job's integrity key, with which the check values of its data are computed."""

LATENCY_BOUNDS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of a latency histogram. One more bucket counts longer latencies."""


class Histogram(msgspec.Struct, frozen=True):
    """A latency histogram, not cumulative: ``counts[i]`` is for the bound ``LATENCY_BOUNDS_SECONDS[i]``.

    The last count is for latencies above all bounds.
    """

    counts: tuple[int, ...]
    total_seconds: float

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=False)))
        return Histogram(counts, self.total_seconds + other.total_seconds)


NOTHING_MEASURED = Histogram(counts=(0,) * (len(LATENCY_BOUNDS_SECONDS) + 1), total_seconds=0.0)


# --- worker -> manager ------------------------------------------------------------------------------


class WorkerRegistration(Message, frozen=True):
    """The registration of a ShuffleWorker.

    Attributes:
        name: the name in its certificate.
        host, port: where it serves the data channel.
        instance: an identifier that is different each time its process starts.
        jobs: the jobs that it holds data of or serves.
        version: the version of Sluice.
        draining: whether an earlier leader told it to drain.
    """

    name: str
    host: str
    port: int
    instance: str
    jobs: tuple[str, ...] = ()
    version: str = ""
    draining: bool = False


class LiveJob(Message, frozen=True):
    """A job whose data the worker keeps and serves, and the key of its check values."""

    job_id: str
    integrity_key: bytes


class WorkerAccepted(Message, frozen=True):
    """The manager's answer to a registration.

    ``fencing_token`` fences the heartbeats. ``live_jobs`` are those of the worker's jobs that are alive; the worker
    removes the data of all others.
    """

    fencing_token: bytes
    heartbeat_interval: float
    heartbeat_timeout: float
    live_jobs: tuple[LiveJob, ...]


class HandOver(Message, frozen=True):
    """An order to hand over a shuffle to another worker, which expects it."""

    job_id: str
    shuffle_number: int
    to: WorkerAddress


class DiskReport(Message, frozen=True):
    """The state of one directory of a worker; sizes are in bytes.

    ``error`` says why the directory is not used, if it is not. ``device`` identifies its file system: directories that
    share the space of one file system have the same value, even if they belong to different workers.
    """

    path: str
    total: int
    free: int
    usable: bool = True
    error: str = ""
    device: str = ""


def free_space(disks: Iterable[DiskReport]) -> int:
    """Return the free bytes of the usable disks; each file system counts once."""
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
    """One job on one worker. ``bytes`` is what the worker keeps, in memory and on disk.

    All other fields count since the worker's process started. Reports of several workers can be added.

    ``maps`` is the number of committed maps, and ``refused`` the number of requests that were answered with an error.
    The latency of a commit is the time from its arrival to its answer, that of a fetch the time from its arrival to its
    last byte. ``spilled_bytes`` were written because memory was short. ``waits`` and ``waiting_seconds`` are how often
    and how long in total writers were held back.
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
    """The current state of a worker. Counters start with its process.

    Attributes:
        memory_used, memory_peak, memory_limit: bytes of memory for data that is not on disk yet.
        metadata_used, metadata_limit: bytes of memory for metadata, connections and reads.
        disks: its directories.
        jobs: the jobs that it knows.
        connections: open connections of the data channel.
        refused_connections: connections of the data channel that were not admitted.
        written_bytes: bytes written to disk.
        spilled_bytes: those of ``written_bytes`` that were written before their commit because memory was short.
        waits, waiting_seconds: how often and how long in total writers were held back.
        draining: whether it accepts nothing new.
        policy: when it answers commits.
        followed: the number of shuffles that are read here while they are written.
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
    """The manager's answer to a JobManager.

    ``fencing_token`` fences the JobManager's calls; ``job_lease`` is the time in seconds that a job is kept without
    renewal.
    """

    fencing_token: bytes
    job_lease: float


class ShuffleRequest(Message, frozen=True):
    """A job's request for a shuffle of ``partitions`` partitions, with each map output on ``replicas`` workers."""

    job_id: str
    shuffle_number: int
    partitions: int
    replicas: int = 1


# --- what is shown ------------------------------------------------------------------------------------


class WorkerState(enum.StrEnum):
    """The state of a worker."""

    ACTIVE = "ACTIVE"
    """The worker gets new shuffles."""
    EXCLUDED = "EXCLUDED"
    """The worker serves its data but gets no new shuffles."""
    DRAINING = "DRAINING"
    """The worker was asked to drain and still holds data."""
    DRAINED = "DRAINED"
    """The worker was asked to drain and is no longer needed: it can be stopped."""
    LOST = "LOST"
    """The worker is disconnected or silent."""


class WorkerView(Message, frozen=True):
    """A worker as the manager sees it.

    ``reason`` says why it is not ACTIVE. ``last_heartbeat`` is in epoch milliseconds. ``bytes`` counts the jobs of all
    clusters; ``report.jobs`` lists the jobs of the calling cluster only.
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
    """A job in the service: the sum of the connected workers' reports, in which each replica counts.

    ``shuffles`` is the number of live shuffles, and ``lease_left`` is in seconds.
    """

    shuffles: int
    lease_left: float


class ShuffleOverview(Message, frozen=True):
    """The service as one cluster sees it: all workers, and the cluster's own jobs."""

    manager: str
    workers: tuple[WorkerView, ...]
    jobs: tuple[ShuffleJobView, ...]
