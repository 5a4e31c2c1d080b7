"""TaskManagers that serve one job only, so that the sandbox of a TaskManager also confines its job. Decisions only.

A TaskManager belongs to the first job that gets a slot on it, of either kind, and never to another: it leaves when that
job is over. A TaskManager that registers counts as unused only if this leader started it; an earlier leader may have
given it to a job that has ended since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

MAX_REMEMBERED = 50_000
"""Most TaskManagers whose job is remembered; the earliest are forgotten first, long after they have left."""

_NOBODY_KNOWS = "?"


class Dedication:
    """Which job each TaskManager belongs to.

    Args:
        is_new: whether this leader started the TaskManager of this name, so that no job has used it yet.
    """

    def __init__(self, is_new: Callable[[str], bool]) -> None:
        self._is_new = is_new
        self._jobs: dict[str, str] = {}

    def registered(self, name: str, holders: Iterable[str]) -> None:
        """Note that a TaskManager has registered, on which these jobs hold slots."""
        if name in self._jobs:
            return
        holder = next(iter(sorted(holders)), "")
        if holder or not self._is_new(name):
            self._remember(name, holder or _NOBODY_KNOWS)

    def take(self, name: str, job_id: str) -> None:
        """Note that the job gets a slot there."""
        if name not in self._jobs:
            self._remember(name, job_id)

    def admits(self, name: str, job_id: str) -> bool:
        """Whether the job may have slots there."""
        return self._jobs.get(name, job_id) == job_id

    def belongs(self, name: str, job_id: str) -> bool:
        """Whether the TaskManager belongs to the job already."""
        return self._jobs.get(name) == job_id

    def unused(self, name: str) -> bool:
        """Whether the TaskManager belongs to no job yet."""
        return name not in self._jobs

    def over(self, name: str, wanting: Callable[[str], bool]) -> bool:
        """Whether the TaskManager is no longer needed: its job wants nothing, or is unknown."""
        job_id = self._jobs.get(name)
        return job_id is not None and not wanting(job_id)

    def _remember(self, name: str, job_id: str) -> None:
        while len(self._jobs) >= MAX_REMEMBERED:
            del self._jobs[next(iter(self._jobs))]
        self._jobs[name] = job_id
