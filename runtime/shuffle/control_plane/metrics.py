"""The Prometheus metrics of the shuffle service: for each worker, and for each job on each worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from sluice.runtime.shuffle.control_plane.messages import (
    LATENCY_BOUNDS_SECONDS,
    Histogram,
    JobReport,
    ShuffleOverview,
    WorkerReport,
)


def shuffle_metrics(overview: ShuffleOverview) -> Iterator[Metric]:
    """Yield the metrics of each worker's last heartbeat, with this cluster's jobs. Counters start with its process."""
    states = GaugeMetricFamily(
        "sluice_shuffle_worker_state", "1 for the state that the worker is in.", labels=["worker", "state"]
    )
    for worker in overview.workers:
        states.add_metric((worker.name, worker.state.value), 1)
    yield states
    yield from _of_workers([((worker.name,), worker.report) for worker in overview.workers])
    yield from _of_jobs([((each.name, job.job_id), job) for each in overview.workers for job in each.report.jobs])


def _of_workers(reports: Sequence[tuple[tuple[str, ...], WorkerReport]]) -> Iterator[Metric]:
    gauges = {
        "memory_used": GaugeMetricFamily(
            "sluice_shuffle_memory_bytes", "Memory in use for data that is not on disk yet.", labels=["worker"]
        ),
        "memory_peak": GaugeMetricFamily(
            "sluice_shuffle_memory_peak_bytes", "Peak of sluice_shuffle_memory_bytes.", labels=["worker"]
        ),
        "memory_limit": GaugeMetricFamily(
            "sluice_shuffle_memory_limit_bytes", "Limit of sluice_shuffle_memory_bytes.", labels=["worker"]
        ),
        "metadata_used": GaugeMetricFamily(
            "sluice_shuffle_metadata_bytes",
            "Memory in use for metadata, connections and reads.",
            labels=["worker"],
        ),
        "metadata_limit": GaugeMetricFamily(
            "sluice_shuffle_metadata_limit_bytes", "Limit of sluice_shuffle_metadata_bytes.", labels=["worker"]
        ),
        "connections": GaugeMetricFamily(
            "sluice_shuffle_connections", "Open connections of the data channel.", labels=["worker"]
        ),
    }
    yield from _filled(gauges, reports)
    counters = {
        "refused_connections": CounterMetricFamily(
            "sluice_shuffle_refused_connections_total", "Connections that were not admitted.", labels=["worker"]
        ),
        "written_bytes": CounterMetricFamily(
            "sluice_shuffle_written_bytes_total", "Bytes written to disk.", labels=["worker"]
        ),
        "spilled_bytes": CounterMetricFamily(
            "sluice_shuffle_spilled_bytes_total", "Bytes written because memory was short.", labels=["worker"]
        ),
        "waits": CounterMetricFamily(
            "sluice_shuffle_back_pressure_waits_total", "Pushes that had to wait for memory.", labels=["worker"]
        ),
        "waiting_seconds": CounterMetricFamily(
            "sluice_shuffle_back_pressure_seconds_total", "Time that pushes waited for memory.", labels=["worker"]
        ),
    }
    yield from _filled(counters, reports)
    free = GaugeMetricFamily(
        "sluice_shuffle_disk_free_bytes",
        "Free space of a directory's file system; directories of one device share it.",
        labels=["worker", "disk", "device"],
    )
    usable = GaugeMetricFamily("sluice_shuffle_disk_usable", "Whether it takes new data.", labels=["worker", "disk"])
    for worker, report in reports:
        for disk in report.disks:
            free.add_metric((*worker, disk.path, disk.device), disk.free)
            usable.add_metric((*worker, disk.path), disk.usable)
    yield from (free, usable)


def _of_jobs(reports: Sequence[tuple[tuple[str, ...], JobReport]]) -> Iterator[Metric]:
    gauges = {
        "bytes": GaugeMetricFamily(
            "sluice_shuffle_kept_bytes", "Bytes kept for a job, in memory and on disk.", labels=["worker", "job"]
        ),
    }
    yield from _filled(gauges, reports)
    counters = {
        "pushed_bytes": CounterMetricFamily(
            "sluice_shuffle_pushed_bytes_total", "Bytes pushed by a job's map tasks.", labels=["worker", "job"]
        ),
        "fetched_bytes": CounterMetricFamily(
            "sluice_shuffle_fetched_bytes_total",
            "Bytes fetched by a job's reduce tasks.",
            labels=["worker", "job"],
        ),
        "maps": CounterMetricFamily(
            "sluice_shuffle_committed_maps_total",
            "Map attempts of a job that were committed.",
            labels=["worker", "job"],
        ),
        "refused": CounterMetricFamily(
            "sluice_shuffle_refused_requests_total",
            "Requests of a job that were answered with an error.",
            labels=["worker", "job"],
        ),
        "spilled_bytes": CounterMetricFamily(
            "sluice_shuffle_job_spilled_bytes_total",
            "Bytes of a job written to disk because memory was short.",
            labels=["worker", "job"],
        ),
        "waiting_seconds": CounterMetricFamily(
            "sluice_shuffle_job_back_pressure_seconds_total",
            "Time that pushes of a job waited for memory.",
            labels=["worker", "job"],
        ),
    }
    yield from _filled(counters, reports)
    commits = HistogramMetricFamily(
        "sluice_shuffle_commit_seconds", "Time from a commit to its answer.", labels=["worker", "job"]
    )
    fetches = HistogramMetricFamily(
        "sluice_shuffle_fetch_seconds", "Time from a fetch to its last byte.", labels=["worker", "job"]
    )
    for names, job in reports:
        commits.add_metric(names, _buckets(job.commit_latency), job.commit_latency.total_seconds)
        fetches.add_metric(names, _buckets(job.fetch_latency), job.fetch_latency.total_seconds)
    yield from (commits, fetches)


def _filled(
    families: Mapping[str, GaugeMetricFamily] | Mapping[str, CounterMetricFamily],
    reports: Sequence[tuple[tuple[str, ...], WorkerReport | JobReport]],
) -> Iterator[Metric]:
    """Yield the families, each with one sample per report. The key of a family is the field of the reports to use."""
    for field, family in families.items():
        for labels, report in reports:
            family.add_metric(labels, getattr(report, field))
        yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the cumulative buckets that Prometheus expects."""
    bounds = [*(repr(each) for each in LATENCY_BOUNDS_SECONDS), "+Inf"]
    total, found = 0, []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found
