"""What a shuffle worker may use, and how it behaves."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

from sluice.pki.tls import DEFAULT_ENGINE, Engine
from sluice.runtime.shuffle.data_plane import ShuffleError

SLAB_BYTES = 4 << 20
"""Memory is handed out in slabs of this size; a segment lies in one."""
MIN_MEMORY_BYTES = 8 * SLAB_BYTES
MIN_METADATA_BYTES = 16 << 20
SECRET_BYTES = 32
"""Size of the secret of a worker that encrypts what it writes."""


class Layout(enum.StrEnum):
    """What a run (a sorted piece of a shuffle's file) holds."""

    REDUCE = "reduce"
    """ReducePartition: whatever maps are in memory; each partition lies together, however many maps wrote it."""
    MAP = "map"
    """MapPartition: one map; a reader of one map reads one place."""


class Policy(enum.StrEnum):
    """When a commit is answered."""

    BLOCKING = "blocking"
    """When all of the map is written out: it survives the worker's death."""
    HYBRID = "hybrid"
    """At once: the map stays in memory until memory is short or somebody reads. Runs hold more maps then, and a worker
    that is killed loses what it has not written: for shuffles with replicas."""
    PIPELINED = "pipelined"
    """Like hybrid, and readers that follow a producer are given from memory what it has committed: a disk sees only
    what memory has no room for, or who does not follow asks for."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Limits and places of one worker process.

    Attributes:
        directories: one on each disk.
        memory_bytes: for data on their way from the wire to the disk; never more.
        metadata_bytes: for everything beside the data: half for what is known of them (shuffles, maps, indices), half
            for connections and reads; what has no room there is refused.
        high_watermark: share of the memory in use above which data are written out although nobody committed them.
        low_watermark: share down to which that goes on.
        run_share: share of the memory that a shuffle may fill before it is written out as a run, although memory is not
            short and nobody has committed: who commits then waits for little. For the layout ``reduce`` and the policy
            ``blocking``; the others write when a map is whole, or as late as they can.
        layout: what lies together on disk.
        policy: when a commit is answered.
        write_through_bytes: frames whose segments have this size on average are written to disk as they come, because
            sorting them would gain nothing; the segments of others are merged in memory first.
        answer_bytes: most data in one frame of an answer: what fits into a processor's own cache.
        spare_bytes: most of all files of shuffles that are over, kept to be written over by the same job's next ones.
        job_quota_bytes: most that one job may have here, data and what is known of them; 0 for no limit.
        reserved_disk_bytes: a disk with less free space takes nothing new.
        disk_retry_seconds: for how long a disk that failed is not tried again.
        max_connections: at the same time; more are refused. One job may have two thirds of them.
        max_connections_per_peer: of one identity.
        credit_bytes: how many bytes a pushing connection may have unacknowledged at most.
        at_rest_secret: when given (32 bytes), what is written to disk is encrypted with keys derived from it.
        verify: compare check values when segments arrive and again when they are read.
        handshake_seconds: for a handshake and HELLO.
        frame_seconds: for the rest of a frame once it began, and for a reader to take a frame.
        follow_seconds: for how long who follows a shuffle waits for a sign of life of its producer.
        engine: which OpenSSL does the work.
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
            raise ShuffleError("a shuffle worker without directories", "give it one on each disk")
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise ShuffleError(f"{self.memory_bytes} bytes of memory", f"at least {MIN_MEMORY_BYTES}")
        if self.metadata_bytes < MIN_METADATA_BYTES:
            raise ShuffleError(f"{self.metadata_bytes} bytes for metadata", f"at least {MIN_METADATA_BYTES}")
        if len(self.at_rest_secret) not in {0, SECRET_BYTES}:
            raise ShuffleError(f"a secret of {len(self.at_rest_secret)} bytes", f"it has {SECRET_BYTES}")
        if not 0 < self.low_watermark < self.high_watermark < 1:
            raise ShuffleError(
                f"watermarks of {self.low_watermark} and {self.high_watermark}", "0 < low < high < 1 must hold"
            )
