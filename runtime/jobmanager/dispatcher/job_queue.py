"""Which jobs may run and which wait for their turn: first come, first served, within limits for each user.

A job that waits has no driver and holds no slots. A job whose owner has reached the limit of running jobs is skipped
until one of these has ended, so it delays nobody else's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sluice.runtime.jobmanager.errors import TooManyJobs


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits on numbers of jobs; 0: no limit.

    Attributes:
        running: that run.
        per_user: that run of one user.
        queued: that wait.
        queued_per_user: that wait of one user.
    """

    running: int = 100
    per_user: int = 0
    queued: int = 1000
    queued_per_user: int = 100


class JobQueue:
    """Admits jobs in the order in which they came. An admitted job counts as running at once."""

    def __init__(self, limits: JobLimits) -> None:
        self._limits = limits
        self._running: dict[str, str] = {}
        self._waiting: dict[str, str] = {}

    def enter(self, job_id: str, owner: str) -> None:
        """Add a new job; raises :class:`TooManyJobs` when not even the queue has room."""
        limits, waiting = self._limits, Counter(self._waiting.values())
        if self._obstacle(owner):
            if limits.queued and sum(waiting.values()) >= limits.queued:
                raise TooManyJobs(f"{limits.queued} jobs are waiting already", "try again when one has ended")
            if limits.queued_per_user and waiting[owner] >= limits.queued_per_user:
                raise TooManyJobs(
                    f"{limits.queued_per_user} jobs of {owner} are waiting already", "try again when one has ended"
                )
        self.enter_again(job_id, owner)

    def enter_again(self, job_id: str, owner: str) -> None:
        """Add a job that was accepted before."""
        self._waiting[job_id] = owner
        self._admit()

    def enter_running(self, job_id: str, owner: str) -> None:
        """Add a job that runs already, whatever the limits are now."""
        self._running[job_id] = owner

    def may_run(self, job_id: str) -> bool:
        """Whether it is the job's turn."""
        return job_id in self._running

    def leave(self, job_id: str) -> list[str]:
        """Remove a job that has ended, or will never run; returns the jobs that may run now."""
        self._running.pop(job_id, None)
        self._waiting.pop(job_id, None)
        return self._admit()

    def reason(self, job_id: str) -> str:
        """Why a job waits; empty when it does not."""
        owner = self._waiting.get(job_id)
        if owner is None:
            return ""
        ahead = list(self._waiting).index(job_id)
        return f"queued, {ahead} jobs ahead of it: {self._obstacle(owner)}"

    def _admit(self) -> list[str]:
        admitted = []
        for job_id, owner in list(self._waiting.items()):
            if not self._obstacle(owner):
                del self._waiting[job_id]
                self._running[job_id] = owner
                admitted.append(job_id)
        return admitted

    def _obstacle(self, owner: str) -> str:
        limits = self._limits
        if limits.running and len(self._running) >= limits.running:
            return f"{limits.running} jobs run, as many as may"
        mine = sum(each == owner for each in self._running.values())
        if limits.per_user and mine >= limits.per_user:
            return f"{mine} jobs of {owner} run, as many as one user may have"
        return ""
