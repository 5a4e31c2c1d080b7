"""Which drivers of an earlier leader may still run, and for how long. Until then none of their jobs starts again.

A driver whose lease no leading JobManager renews ends its processes, wherever it runs. Until then it may register at
the new leader and continue (ADR 103).
"""

from __future__ import annotations

from sluice.runtime.jobmanager.attempt import LEASE_MARGIN_SECONDS
from sluice.runtime.jobmanager.store import AcceptedJob, JobHistory


def may_run(job: AcceptedJob, history: JobHistory) -> bool:
    """Whether the driver of the latest attempt may run: it was about to be launched, and no end was recorded.

    Args:
        job: as an earlier leader stored it.
        history: of its attempts; an outcome in it was written after the end of the driver.
    """
    attempt = job.attempt
    if job.submission is None or attempt is None or not attempt.running or not attempt.taskmanager:
        return False
    return not any(each.number == attempt.number and each.outcome for each in history.attempts)


def seconds_until_gone(*, granted_at: float, lease: float, now: float) -> float:
    """Seconds until every driver that has not registered at this leader is surely gone.

    Args:
        granted_at: when this leadership began: since then no earlier leader has renewed a lease.
        lease: seconds of it.
        now: by the same monotonic clock.
    """
    return max(0.0, granted_at + lease + LEASE_MARGIN_SECONDS - now)
