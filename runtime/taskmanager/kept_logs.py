"""Removes old logs: how many logs of ended jobs, executors and drivers a TaskManager keeps."""

from __future__ import annotations

from collections.abc import Iterable, Set as AbstractSet
from pathlib import Path

from sluice.core import remove_untrusted
from sluice.runtime.spark.driver import CUT, EVENT_LOG

KEPT_JOBS = 100
"""Number of ended jobs whose logs are kept."""
KEPT_EXECUTORS = 100
"""Number of latest executors of a job whose logs are kept; a job may be restarted any number of times."""
KEPT_DRIVERS = 5
"""Number of latest drivers of a job whose logs are kept; a streaming job may be restarted any number of times."""


KEPT_EVENT_LOGS = 10
"""Number of ended jobs whose Spark event log is kept; the history has copied it long before."""


def trim_logs(directory: Path, running: AbstractSet[str]) -> None:
    """Remove all logs but those of the latest jobs.


    Args:
        directory: contains a directory per job.
        running: ids of the jobs that have not ended.
    """
    ended = [path for path in directory.iterdir() if path.is_dir() and path.name not in running]
    ended.sort(key=lambda path: path.stat().st_mtime)
    surplus = max(0, len(ended) - KEPT_JOBS)
    for job in ended[surplus : max(surplus, len(ended) - KEPT_EVENT_LOGS)]:
        _drop_event_logs(job.glob("driver-*"))
    for path in ended[:surplus]:
        remove_untrusted(directory, path.name)
    for job in ended[surplus:]:
        _trim(job, "executor-", KEPT_EXECUTORS)
    for job in directory.iterdir():
        _trim(job, "driver-", KEPT_DRIVERS)
        drivers = sorted(job.glob("driver-*"), key=lambda path: int(path.name.removeprefix("driver-")))
        _drop_event_logs(drivers[:-1])


def _drop_event_logs(drivers: Iterable[Path]) -> None:
    for driver in drivers:
        for name in (EVENT_LOG, CUT):
            remove_untrusted(driver, name)


def _trim(job: Path, prefix: str, kept: int) -> None:
    """Keep the ``kept`` highest-numbered of a job's directories that are named ``prefix`` and a number."""
    numbers = sorted(int(path.name.removeprefix(prefix)) for path in job.glob(f"{prefix}*"))
    for number in numbers[: max(0, len(numbers) - kept)]:
        remove_untrusted(job, f"{prefix}{number}")
