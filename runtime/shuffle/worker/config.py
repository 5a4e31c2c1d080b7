"""The configuration of a shuffle worker: its limits, layout and policy."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

from sluice.pki.tls import DEFAULT_ENGINE, Engine
from sluice.runtime.shuffle.data_plane import ShuffleError

SLAB_BYTES = 4 << 20
"""Memory is allocated in slabs of this size. A segment never spans two slabs."""
MIN_MEMORY_BYTES = 8 * SLAB_BYTES
MIN_METADATA_BYTES = 16 << 20
SECRET_BYTES = 32
"""Size of the secret of a worker that encrypts its files."""


class Layout(enum.StrEnum):
    """The contents of a run, which is a sorted piece of a shuffle's data file."""

    REDUCE = "reduce"
    """ReducePartition: all maps that are in memory. Each partition is contiguous, no matter how many maps wrote it."""
    MAP = "map"
    """MapPartition: a single map. A reader of one map reads one contiguous range."""


class Policy(enum.StrEnum):
    """When the worker answers a commit."""

    BLOCKING = "blocking"
    """When all of the map is on disk, so that it survives the death of the worker."""
    HYBRID = "hybrid"
    """At once. The map stays in memory until memory is short or a reader asks for it, so runs hold more maps. A worker
    that is killed loses what it has not written, so this is meant for shuffles with replicas."""
    PIPELINED = "pipelined"
    """Like hybrid, and readers that follow a producer receive committed maps from memory. Data goes to disk only if
    memory has no room for it, or if a reader that does not follow asks for it."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Limits and places of one worker process.

    Attributes:
        directories: the data directories, one on each disk.
        memory_bytes: limit of the memory for data that is not on disk yet.
        metadata_bytes: limit of all other memory: half for metadata (shuffles, maps, indices), half for connections and
            reads. Requests beyond it are refused.
        high_watermark: fraction of the memory in use above which data is written out before it is committed.
        low_watermark: fraction of the memory in use at which that stops.
        run_share: fraction of the memory that a shuffle may fill before it is written out as a run, although memory is
            not short and nothing was committed, so that a commit has less to wait for. Applies to the layout ``reduce``
            with the policy ``blocking``; the others write when a map is complete, or as late as possible.
        layout: what is contiguous on disk.
        policy: when a commit is answered.
        write_through_bytes: a frame whose segments have at least this average size is written to disk on arrival,
            because sorting would gain nothing. The segments of other frames are merged in memory first.
        answer_bytes: maximum data in one frame of an answer; it should fit into the CPU's own cache.
        spare_bytes: maximum size of all files of ended shuffles that are kept for reuse by the same job.
        job_quota_bytes: maximum size of one job's data and metadata here; 0: no limit.
        reserved_disk_bytes: a disk with less free space takes no new data.
        disk_retry_seconds: how long a disk that failed is not used.
        max_connections: maximum concurrent connections; more are refused. One job may have two thirds of them.
        max_connections_per_peer: maximum concurrent connections of one identity.
        credit_bytes: maximum unacknowledged bytes of a pushing connection.
        at_rest_secret: if set (32 bytes), files are encrypted with keys derived from it.
        verify: whether to verify check values when segments arrive and again when they are read.
        handshake_seconds: timeout of a handshake together with HELLO.
        frame_seconds: timeout for the rest of a frame that has begun, and for a reader to receive a frame.
        follow_seconds: how long a reader that follows a shuffle waits for a silent producer.
        engine: the OpenSSL to use.
    """

    directories: tuple[Path, ...]
    memory_bytes: int = 256 << 20
    metadata_bytes: int = 512 << 20
    high_watermark: float = 0.75
    low_watermark: float = 0.5
    run_share: float = 0.125
    layout: Layout = Layout.REDUCE
    policy: Policy = Policy.BLOCKING
    write_through_bytes: int = 32 << 10
    answer_bytes: int = 512 << 10
    spare_bytes: int = 1 << 30
    job_quota_bytes: int = 0
    reserved_disk_bytes: int = 256 << 20
    disk_retry_seconds: float = 60.0
    max_connections: int = 1024
    max_connections_per_peer: int = 16
    credit_bytes: int = 32 << 20
    at_rest_secret: bytes = field(default=b"", repr=False)
    verify: bool = True
    handshake_seconds: float = 10.0
    frame_seconds: float = 120.0
    follow_seconds: float = 60.0
    engine: Engine = DEFAULT_ENGINE

    def __post_init__(self) -> None:
        if not self.directories:
            raise ShuffleError("the shuffle worker has no data directories", "give it one on each disk")
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise ShuffleError(f"memory_bytes is {self.memory_bytes}", f"at least {MIN_MEMORY_BYTES} are needed")
        if self.metadata_bytes < MIN_METADATA_BYTES:
            raise ShuffleError(f"metadata_bytes is {self.metadata_bytes}", f"at least {MIN_METADATA_BYTES} are needed")
        if len(self.at_rest_secret) not in {0, SECRET_BYTES}:
            raise ShuffleError(f"the secret has {len(self.at_rest_secret)} bytes", f"{SECRET_BYTES} are needed")
        if not 0 < self.low_watermark < self.high_watermark < 1:
            raise ShuffleError(
                f"the watermarks are {self.low_watermark} and {self.high_watermark}", "0 < low < high < 1 must hold"
            )
