"""What the shuffle service counts, for Prometheus: by worker, and by job on each worker."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from runtime.shuffle.messages import JobReport, ShuffleOverview, WorkerReport
from runtime.shuffle.worker.statistics import LATENCY_BOUNDS_SECONDS, Histogram

_WORKER = ("worker",)
_DISK = ("worker", "disk")
_JOB = ("worker", "job")


def shuffle_metrics(overview: ShuffleOverview) -> Iterator[Metric]:
    """As each worker's last heartbeat said; counters begin with its process. Jobs are those of this cluster."""
    states = GaugeMetricFamily(
        "sluice_shuffle_worker_state", "1 for the state that the worker is in.", labels=("worker", "state")
    )
    for worker in overview.workers:
        states.add_metric((worker.name, worker.state.value), 1)
    yield states
    yield from _of_workers([(worker.name, worker.report) for worker in overview.workers])
    yield from _of_jobs([(worker.name, job) for worker in overview.workers for job in worker.report.jobs])


def _of_workers(reports: list[tuple[str, WorkerReport]]) -> Iterator[Metric]:
    gauges = (
        ("sluice_shuffle_memory_bytes", "Memory in use for data on their way to disk.", "memory_used"),
        ("sluice_shuffle_memory_peak_bytes", "The most that it ever was.", "memory_peak"),
        ("sluice_shuffle_memory_limit_bytes", "The most that it can be.", "memory_limit"),
        ("sluice_shuffle_connections", "Open connections of the data channel.", "connections"),
    )
    for name, says, field in gauges:
        gauge = GaugeMetricFamily(name, says, labels=_WORKER)
        for worker, report in reports:
            gauge.add_metric((worker,), getattr(report, field))
        yield gauge
    counters = (
        ("sluice_shuffle_refused_connections", "Connections that were not let in.", "refused_connections"),
        ("sluice_shuffle_written_bytes", "Bytes written to disk.", "written_bytes"),
        ("sluice_shuffle_spilled_bytes", "Those of them written because memory was short.", "spilled_bytes"),
        ("sluice_shuffle_back_pressure_waits", "Pushes that had to wait for memory.", "waits"),
        ("sluice_shuffle_back_pressure_seconds", "How long they waited in all.", "waiting_seconds"),
    )
    for name, says, field in counters:
        counter = CounterMetricFamily(name, says, labels=_WORKER)
        for worker, report in reports:
            counter.add_metric((worker,), getattr(report, field))
        yield counter
    free = GaugeMetricFamily("sluice_shuffle_disk_free_bytes", "Free space of a directory's disk.", labels=_DISK)
    usable = GaugeMetricFamily("sluice_shuffle_disk_usable", "Whether new data go there.", labels=_DISK)
    for worker, report in reports:
        for disk in report.disks:
            free.add_metric((worker, disk.path), disk.free)
            usable.add_metric((worker, disk.path), disk.usable)
    yield from (free, usable)


def _of_jobs(reports: list[tuple[str, JobReport]]) -> Iterator[Metric]:
    kept = GaugeMetricFamily("sluice_shuffle_kept_bytes", "Bytes kept for a job, in memory and on disk.", labels=_JOB)
    for worker, job in reports:
        kept.add_metric((worker, job.job_id), job.bytes)
    yield kept
    counters = (
        ("sluice_shuffle_pushed_bytes", "Bytes that a job's map tasks have pushed.", "pushed_bytes"),
        ("sluice_shuffle_fetched_bytes", "Bytes that a job's reduce tasks have fetched.", "fetched_bytes"),
        ("sluice_shuffle_committed_maps", "Map attempts of a job that were committed.", "maps"),
        ("sluice_shuffle_refused_requests", "Requests of a job that were answered with an error.", "refused"),
    )
    for name, says, field in counters:
        counter = CounterMetricFamily(name, says, labels=_JOB)
        for worker, job in reports:
            counter.add_metric((worker, job.job_id), getattr(job, field))
        yield counter
    commits = HistogramMetricFamily("sluice_shuffle_commit_seconds", "From a commit to its answer.", labels=_JOB)
    fetches = HistogramMetricFamily("sluice_shuffle_fetch_seconds", "From a fetch to its last byte.", labels=_JOB)
    for worker, job in reports:
        commits.add_metric((worker, job.job_id), _buckets(job.commit_latency), job.commit_latency.total_seconds)
        fetches.add_metric((worker, job.job_id), _buckets(job.fetch_latency), job.fetch_latency.total_seconds)
    yield from (commits, fetches)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus' are cumulative, and the last one has everything."""
    bounds = [*(repr(each) for each in LATENCY_BOUNDS_SECONDS), "+Inf"]
    total, found = 0, []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found
