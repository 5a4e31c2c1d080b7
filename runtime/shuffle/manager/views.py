"""The views of workers and jobs that a ShuffleManager reports. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from sluice.runtime.shuffle.control_plane import JobReport, ShuffleJobView, WorkerState, WorkerView
from sluice.runtime.shuffle.manager.jobs import Job
from sluice.runtime.shuffle.manager.workers import Worker

MAX_REASONS = 5
"""Maximum workers whose reasons an error message lists."""


def job_view(job: Job, workers: Iterable[Worker], lease_left: float) -> ShuffleJobView:
    """Return the view of a job, summed over the connected ``workers``; ``lease_left`` is in seconds."""
    connected = [worker for worker in workers if worker.connected]
    reports = [each for worker in connected for each in worker.report.jobs if each.job_id == job.job_id]
    return ShuffleJobView(
        **msgspec.structs.asdict(sum(reports, start=JobReport(job_id=job.job_id, bytes=0))),
        shuffles=len(job.shuffles),
        lease_left=round(lease_left, 1),
    )


def worker_view(
    worker: Worker, state: WorkerState, reason: str, visible: Collection[str], heard_at: float
) -> WorkerView:
    """Return the view of a worker without the jobs that are not ``visible``.

    ``heard_at`` is the time of its last heartbeat, in epoch seconds.
    """
    jobs = tuple(each for each in worker.report.jobs if each.job_id in visible)
    return WorkerView(
        name=worker.name,
        host=worker.registration.host,
        port=worker.registration.port,
        state=state,
        reason=reason,
        last_heartbeat=int(heard_at * 1000),
        bytes=worker.bytes_kept,
        report=msgspec.structs.replace(worker.report, jobs=jobs),
    )


def bytes_of_jobs(workers: Iterable[Worker]) -> Mapping[str, int]:
    """Return how many bytes the connected workers keep of each job."""
    kept: Counter[str] = Counter()
    for worker in workers:
        for each in worker.report.jobs if worker.connected else ():
            kept[each.job_id] += each.bytes
    return kept


def explain_shortage(states: Collection[tuple[Worker, tuple[WorkerState, str]]], replicas: int) -> str:
    """Return the message that explains why a shuffle with this number of replicas gets no workers."""
    active = sum(state is WorkerState.ACTIVE for _, (state, _) in states)
    reasons = [f"{worker.name} {state}: {reason}" for worker, (state, reason) in states if reason]
    others = f" ({'; '.join(reasons[:MAX_REASONS])})" if reasons else ""
    return f"{active} ShuffleWorkers can take a shuffle, and {replicas} are needed{others}"
