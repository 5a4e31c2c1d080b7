"""Which TaskManagers refused slots to which jobs, and how long those jobs ask them for none."""

from __future__ import annotations

from dataclasses import dataclass

MAX_REPORTS = 64
"""After each refusal in a row, a job waits for twice as many reports of the TaskManager, up to this many."""


@dataclass(slots=True)
class Refusal:
    """The refusals of one job by one TaskManager: the job asks it for no slot for a while; others do.

    ``refusals``: how many in a row, at most one between two reports; ``reports``: how many to wait for.
    """

    refusals: int = 0
    reports: int = 0

    def refused(self) -> None:
        """Count another refusal; requests that were under way at the same time count as one."""
        if not self.reports:
            self.refusals += 1
            self.reports = min(1 << (self.refusals - 1), MAX_REPORTS)

    def reported(self) -> None:
        """The TaskManager has said what it has."""
        self.reports = max(0, self.reports - 1)


class Refusals:
    """The refusals of all TaskManagers."""

    def __init__(self) -> None:
        self._by_taskmanager: dict[str, dict[str, Refusal]] = {}

    def __len__(self) -> int:
        return sum(len(jobs) for jobs in self._by_taskmanager.values())

    def avoids(self, job_id: str, taskmanager: str) -> bool:
        """Whether the job must not ask this TaskManager for slots now."""
        refusal = self._by_taskmanager.get(taskmanager, {}).get(job_id)
        return refusal is not None and refusal.reports > 0

    def refused(self, taskmanager: str, job_id: str) -> None:
        """A TaskManager did not reserve a slot."""
        self._by_taskmanager.setdefault(taskmanager, {}).setdefault(job_id, Refusal()).refused()

    def accepted(self, taskmanager: str, job_id: str) -> None:
        """A TaskManager has reserved a slot."""
        self._by_taskmanager.get(taskmanager, {}).pop(job_id, None)

    def reported(self, taskmanager: str) -> None:
        """A TaskManager has said what it has."""
        for refusal in self._by_taskmanager.get(taskmanager, {}).values():
            refusal.reported()

    def taskmanager_lost(self, taskmanager: str) -> None:
        """A TaskManager is gone."""
        self._by_taskmanager.pop(taskmanager, None)

    def job_ended(self, job_id: str) -> None:
        """A job wants nothing any more."""
        for jobs in self._by_taskmanager.values():
            jobs.pop(job_id, None)
