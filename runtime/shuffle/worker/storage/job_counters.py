"""The counters that a worker keeps for each job."""

from __future__ import annotations

import bisect
import threading

from sluice.runtime.shuffle.control_plane import LATENCY_BOUNDS_SECONDS, Histogram, JobReport


class _Latencies:
    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self._total = 0.0

    def note(self, seconds: float) -> None:
        self._counts[bisect.bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
        self._total += seconds

    def histogram(self) -> Histogram:
        return Histogram(tuple(self._counts), self._total)


class JobCounters:
    """The counters of one job since the worker started; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pushed_bytes = 0
        self._fetched_bytes = 0
        self._maps = 0
        self._refused = 0
        self._spilled_bytes = 0
        self._waits = 0
        self._waiting_seconds = 0.0
        self._commits = _Latencies()
        self._fetches = _Latencies()

    def pushed(self, size: int) -> None:
        """Count a received frame of ``size`` bytes."""
        with self._lock:
            self._pushed_bytes += size

    def held_back(self, seconds: float) -> None:
        """Count a frame that waited ``seconds`` for memory."""
        with self._lock:
            self._waits += 1
            self._waiting_seconds += seconds

    def spilled(self, size: int) -> None:
        """Count ``size`` bytes that were written out because memory was short."""
        with self._lock:
            self._spilled_bytes += size

    def fetched(self, size: int) -> None:
        """Count a sent frame of ``size`` bytes."""
        with self._lock:
            self._fetched_bytes += size

    def committed(self, seconds: float) -> None:
        """Count a map that was committed ``seconds`` after the request arrived."""
        with self._lock:
            self._maps += 1
            self._commits.note(seconds)

    def fetch_ended(self, seconds: float) -> None:
        """Count a fetch that was answered completely ``seconds`` after it arrived."""
        with self._lock:
            self._fetches.note(seconds)

    def refuse(self) -> None:
        """Count a request that was answered with an error."""
        with self._lock:
            self._refused += 1

    def report(self, job_id: str, kept_bytes: int) -> JobReport:
        """Return the current counters of a job that keeps ``kept_bytes`` here."""
        with self._lock:
            return JobReport(
                job_id=job_id,
                bytes=kept_bytes,
                pushed_bytes=self._pushed_bytes,
                fetched_bytes=self._fetched_bytes,
                maps=self._maps,
                refused=self._refused,
                commit_latency=self._commits.histogram(),
                fetch_latency=self._fetches.histogram(),
                spilled_bytes=self._spilled_bytes,
                waits=self._waits,
                waiting_seconds=self._waiting_seconds,
            )
