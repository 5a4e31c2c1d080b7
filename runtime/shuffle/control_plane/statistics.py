"""What a worker counts: per job, and for all of it."""

from __future__ import annotations

import bisect
import threading
from dataclasses import dataclass, field

import msgspec

LATENCY_BOUNDS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the classes of a latency histogram; one more class has what is longer."""


class Histogram(msgspec.Struct, frozen=True):
    """How often something took how long; ``counts[i]`` up to ``LATENCY_BOUNDS_SECONDS[i]``, the last one longer."""

    counts: tuple[int, ...]
    total_seconds: float


class JobStatistics(msgspec.Struct, frozen=True):
    """One job on one worker; everything since the worker started, except what is said to be *now*."""

    job_id: str
    pushed_bytes: int
    pushed_segments: int
    committed_maps: int
    fetched_bytes: int
    fetched_segments: int
    fetches: int
    refused: int
    """Requests answered with an error."""
    memory_bytes: int
    """In memory now."""
    disk_bytes: int
    """On disk now."""
    metadata_bytes: int
    """For what is known of that, now."""
    connection_bytes: int
    """For its connections and reads, now."""
    commit_latency: Histogram
    """From a commit's arrival to its answer."""
    fetch_latency: Histogram
    """From a fetch's arrival to its last byte sent."""
    spilled_bytes: int
    """Written to disk because memory was short."""
    back_pressure_waits: int
    """Pushes that had to wait for memory."""
    back_pressure_seconds: float


class DiskStatistics(msgspec.Struct, frozen=True):
    """One disk now."""

    path: str
    usable: bool
    free_bytes: int


class WorkerStatistics(msgspec.Struct, frozen=True):
    """One worker process."""

    name: str
    policy: str
    draining: bool
    connections: int
    """Open now."""
    refused_connections: int
    memory_bytes: int
    """In slabs in use now."""
    memory_peak_bytes: int
    memory_capacity_bytes: int
    metadata_bytes: int
    """For what is known of data, and for connections and reads, now."""
    metadata_capacity_bytes: int
    written_bytes: int
    """To disk, in runs."""
    written_runs: int
    spilled_bytes: int
    """Of those, written before their commit because memory was short."""
    back_pressure_waits: int
    """Pushes that had to wait for memory."""
    back_pressure_seconds: float
    disks: tuple[DiskStatistics, ...]
    jobs: tuple[JobStatistics, ...]
    followed: int = 0
    """Shuffles that somebody follows here, or produces to be followed."""


class LatencyCounter:
    """Fills a histogram; for use under a lock."""

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self._total = 0.0

    def note(self, seconds: float) -> None:
        """Something took ``seconds``."""
        self._counts[bisect.bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
        self._total += seconds

    def histogram(self) -> Histogram:
        """As it is now."""
        return Histogram(tuple(self._counts), self._total)


@dataclass(slots=True)
class JobCounters:
    """What is counted of one job; :attr:`lock` is for whoever changes anything."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    pushed_bytes: int = 0
    pushed_segments: int = 0
    committed_maps: int = 0
    fetched_bytes: int = 0
    fetched_segments: int = 0
    fetches: int = 0
    refused: int = 0
    spilled_bytes: int = 0
    waits: int = 0
    waited_seconds: float = 0.0
    commits: LatencyCounter = field(default_factory=LatencyCounter)
    fetching: LatencyCounter = field(default_factory=LatencyCounter)

    def pushed(self, size: int, segments: int) -> None:
        """A frame was taken."""
        with self.lock:
            self.pushed_bytes += size
            self.pushed_segments += segments

    def held_back(self, seconds: float) -> None:
        """A frame had to wait for memory."""
        with self.lock:
            self.waits += 1
            self.waited_seconds += seconds

    def spilled(self, size: int) -> None:
        """Data were written out because memory was short."""
        with self.lock:
            self.spilled_bytes += size

    def fetched(self, size: int, segments: int) -> None:
        """A frame was sent."""
        with self.lock:
            self.fetched_bytes += size
            self.fetched_segments += segments

    def committed(self, seconds: float) -> None:
        """A map was committed."""
        with self.lock:
            self.committed_maps += 1
            self.commits.note(seconds)

    def fetch_ended(self, seconds: float) -> None:
        """A fetch was answered whole."""
        with self.lock:
            self.fetches += 1
            self.fetching.note(seconds)

    def refuse(self) -> None:
        """A request was answered with an error."""
        with self.lock:
            self.refused += 1
