"""How many logs of ended jobs, executors and drivers a TaskManager keeps."""

from __future__ import annotations

from collections.abc import Iterable, Set as AbstractSet
from pathlib import Path

from sluice.core import remove_untrusted
from sluice.runtime.spark.driver import CUT, EVENT_LOG

KEPT_JOBS = 100
"""Of how many ended jobs logs are kept."""
KEPT_EXECUTORS = 100
"""Latest executors of one job whose logs are kept: a job may be restarted for ever."""
KEPT_DRIVERS = 5
"""Latest drivers of one job whose logs are kept: a streaming job may be restarted for ever."""


KEPT_EVENT_LOGS = 10
"""Of how many ended jobs Spark's event log is kept, which the history has taken long since."""


def trim_logs(directory: Path, running: AbstractSet[str]) -> None:
    """Keep the logs of the latest jobs only.

    Args:
        directory: has a directory for each job.
        running: jobs that have not ended.
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
    """Keep the last ``kept`` of a job's directories that begin with ``prefix`` and end with a number."""
    numbers = sorted(int(path.name.removeprefix(prefix)) for path in job.glob(f"{prefix}*"))
    for number in numbers[: max(0, len(numbers) - kept)]:
        remove_untrusted(job, f"{prefix}{number}")
