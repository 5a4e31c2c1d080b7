"""The shuffle service's figures in Prometheus' format."""

from __future__ import annotations

from sluice.core.metrics import exposition, merge
from sluice.runtime.shuffle.control_plane.messages import (
    NOTHING_MEASURED,
    DiskReport,
    ShuffleOverview,
    WorkerReport,
    WorkerState,
    WorkerView,
)
from sluice.runtime.shuffle.control_plane.metrics import shuffle_metrics
from sluice.runtime.shuffle.worker.storage.job_counters import JobCounters

JOB = "a" * 32


def overview() -> ShuffleOverview:
    """Return an overview of two workers, one of which has served a job."""
    counters = JobCounters()
    for seconds in (0.0005, 0.004, 0.004, 99.0):
        counters.committed(seconds)
    counters.pushed(90)
    counters.fetched(50)
    counters.refuse()
    counters.spilled(30)
    counters.held_back(0.125)
    job = counters.report(JOB, 70)
    busy = WorkerReport(
        memory_used=64,
        memory_limit=128,
        disks=(DiskReport(path="/disk1", total=1000, free=900),),
        jobs=(job,),
        spilled_bytes=33,
        waits=2,
        waiting_seconds=0.25,
    )
    views = [
        WorkerView(
            name=name,
            host="h",
            port=1,
            state=state,
            reason="",
            last_heartbeat=0,
            bytes=report.memory_used,
            report=report,
        )
        for name, state, report in (
            ("sw-1", WorkerState.ACTIVE, busy),
            ("sw-2", WorkerState.LOST, WorkerReport()),
        )
    ]
    return ShuffleOverview(manager="m", workers=tuple(views), jobs=())


def test_bytes_latency_spill_and_back_pressure_are_exported_for_each_worker_and_job() -> None:
    lines = exposition(shuffle_metrics(overview()), "jobmanager/jm-1").splitlines()
    worker, job = 'process="jobmanager/jm-1",worker="sw-1"', f'job="{JOB}",process="jobmanager/jm-1",worker="sw-1"'
    expected = {
        f"sluice_shuffle_spilled_bytes_total{{{worker}}} 33.0",
        f"sluice_shuffle_back_pressure_waits_total{{{worker}}} 2.0",
        f"sluice_shuffle_back_pressure_seconds_total{{{worker}}} 0.25",
        f"sluice_shuffle_memory_limit_bytes{{{worker}}} 128.0",
        f"sluice_shuffle_kept_bytes{{{job}}} 70.0",
        f"sluice_shuffle_pushed_bytes_total{{{job}}} 90.0",
        f"sluice_shuffle_fetched_bytes_total{{{job}}} 50.0",
        f"sluice_shuffle_commit_seconds_count{{{job}}} 4.0",
        f"sluice_shuffle_job_spilled_bytes_total{{{job}}} 30.0",
        f"sluice_shuffle_job_back_pressure_seconds_total{{{job}}} 0.125",
    }
    sorted_lines = {_sorted(line) for line in lines}
    assert {_sorted(line) for line in expected} <= sorted_lines
    assert (
        _sorted('sluice_shuffle_worker_state{process="jobmanager/jm-1",state="LOST",worker="sw-2"} 1.0') in sorted_lines
    )


def test_latency_classes_are_cumulative() -> None:
    text = exposition(shuffle_metrics(overview()))
    counts = [
        line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("sluice_shuffle_commit_seconds_b")
    ]
    assert counts[:3] == ["1.0", "1.0", "3.0"]
    assert counts[-2:] == ["3.0", "4.0"]


def test_shuffle_metrics_can_be_merged_with_those_of_other_processes() -> None:
    text = exposition(shuffle_metrics(overview()), "jobmanager/jm-1")
    assert merge([text]) == text


def test_a_service_without_workers_has_no_samples() -> None:
    empty = ShuffleOverview(manager="m", workers=(), jobs=())
    assert all(line.startswith("#") for line in exposition(shuffle_metrics(empty)).splitlines())
    assert sum(NOTHING_MEASURED.counts) == 0


def _sorted(line: str) -> str:
    """Return the line with its labels in alphabetical order."""
    name, _, rest = line.partition("{")
    labels, _, value = rest.partition("}")
    return f"{name}{{{','.join(sorted(labels.split(',')))}}}{value}"
