"""How long the driver of an earlier leader may still run. Its job starts again afterwards, so that none runs twice.

A driver that gets no word from a leading JobManager for its lease ends its processes, wherever it runs.
"""

from __future__ import annotations

from sluice.runtime.jobmanager.attempt import LEASE_MARGIN_SECONDS
from sluice.runtime.jobmanager.store import Attempt


def seconds_until_gone(attempt: Attempt | None, *, granted_at: float, lease: float, now: float) -> float:
    """Seconds until the driver of ``attempt`` is surely gone.

    Args:
        attempt: the latest of the job, None when it never started.
        granted_at: when this leadership began: no driver got a new lease from an earlier one since.
        lease: seconds of it.
        now: by the same monotonic clock.
    """
    if attempt is None or not attempt.running:
        return 0.0
    return max(0.0, granted_at + lease + LEASE_MARGIN_SECONDS - now)
