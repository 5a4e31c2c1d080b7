"""What an earlier leader may have left running: ended before its jobs start again, so that none runs twice.

On this machine drivers are found by their working directories and killed. On others they end by themselves: a driver
that gets no word from a leading JobManager for its lease kills its processes, so waiting for that long is enough.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

import psutil

from sluice.core import SluiceError
from sluice.runtime.jobmanager.attempt import clean_attempt_directory
from sluice.runtime.jobmanager.store import Attempt

_LOG = logging.getLogger(__name__)

LEASE_MARGIN_SECONDS = 5.0
"""What a driver whose lease is over may need to end its processes (see sluice.runtime.spark.driver.agent)."""
GONE_SECONDS = 10.0
"""How long killed processes may take to go."""


class OrphansRemain(SluiceError):
    """Processes of an earlier driver do not end, even killed."""


def seconds_until_gone(attempt: Attempt | None, *, origin: str, granted_at: float, lease: float, now: float) -> float:
    """Seconds until the driver of ``attempt`` is surely gone.

    Args:
        attempt: the latest of the job, None when it never started.
        origin: the home of this JobManager; what ran there is killed by :func:`kill_orphans`.
        granted_at: when this leadership began: no driver got a new lease from an earlier one since.
        lease: seconds of it.
        now: by the same monotonic clock.
    """
    if attempt is None or not attempt.running or attempt.origin == origin:
        return 0.0
    return max(0.0, granted_at + lease + LEASE_MARGIN_SECONDS - now)


def kill_orphans(jobs: Path) -> int:
    """Kill every process whose working directory is below ``jobs``, and keep only logs there; returns how many.

    To be called while no driver of this process runs.

    Raises:
        OrphansRemain: one of them did not end.
    """
    killed = kill_orphans_below(jobs)
    for directory in jobs.glob("*/attempt-*"):
        clean_attempt_directory(directory)
    return killed


def kill_orphans_below(directory: Path) -> int:
    """Kill every process whose working directory is below ``directory``; returns how many.

    Raises:
        OrphansRemain: one of them did not end.
    """
    killed = 0
    deadline = time.monotonic() + GONE_SECONDS
    while found := _below(directory.resolve()):
        for process in found:
            _LOG.warning("killing process %d, which an earlier JobManager left behind", process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed += len(found)
        _, alive = psutil.wait_procs(found, timeout=max(0.1, deadline - time.monotonic()))
        if alive and time.monotonic() > deadline:
            raise OrphansRemain(f"process {alive[0].pid} of an earlier driver does not end", "end it by hand")
    return killed


def _below(root: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and Path(process.cwd()).is_relative_to(root):
                found.append(process)
    return found
