"""The content of the pages about jobs, as values. Decisions only; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.runtime.jobmanager import JobDetail, JobSummary
from sluice.runtime.messages import JobState

JOBS_ON_A_PAGE = 50
RECENT_JOBS = 8
MAX_SEARCH_CHARACTERS = 100
ATTENTION_SECONDS = 3600.0
"""How long a failure is shown as recent."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter for jobs. Empty fields match all jobs."""

    state: str = ""
    text: str = ""

    def wants(self, job: JobSummary) -> bool:
        """Whether ``job`` matches the filter."""
        if self.state == "ACTIVE":
            if job.state.terminal:
                return False
        elif self.state and job.state != self.state:
            return False
        text = self.text.lower()
        return not text or text in job.name.lower() or text in job.owner.lower() or job.id.startswith(text)


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a list of jobs. ``number`` starts at 1."""

    jobs: tuple[JobSummary, ...]
    number: int
    pages: int
    found: int


def page_of(jobs: Sequence[JobSummary], wanted: JobFilter, number: int) -> JobPage:
    """Page ``number`` of the matching jobs, or the nearest page that exists."""
    found = [job for job in jobs if wanted.wants(job)]
    pages = max(1, -(-len(found) // JOBS_ON_A_PAGE))
    number = min(max(1, number), pages)
    start = (number - 1) * JOBS_ON_A_PAGE
    return JobPage(tuple(found[start : start + JOBS_ON_A_PAGE]), number, pages, len(found))


def recent(jobs: Sequence[JobSummary]) -> tuple[JobSummary, ...]:
    """The running jobs, newest first, then those that ended last."""
    running = sorted((job for job in jobs if not job.state.terminal), key=lambda job: (-job.start_time, job.id))
    ended = sorted((job for job in jobs if job.state.terminal), key=lambda job: -(job.end_time or 0))
    return tuple((running + ended)[:RECENT_JOBS])


def failures_worth_a_look(jobs: Sequence[JobSummary], now: float) -> tuple[JobSummary, ...]:
    """Jobs that are failing, or failed within :data:`ATTENTION_SECONDS`."""
    since = (now - ATTENTION_SECONDS) * 1000
    return tuple(
        job
        for job in jobs
        if job.state is JobState.FAILING or (job.state is JobState.FAILED and (job.end_time or 0) >= since)
    )[:RECENT_JOBS]


@dataclass(frozen=True, slots=True)
class Step:
    """A state of a job, its start (epoch seconds), and its duration (ms; None for the current state)."""

    state: str
    since: float
    lasted: int | None


def history(detail: JobDetail) -> tuple[Step, ...]:
    """The states of a job in the order in which it entered them."""
    entered = sorted((at, state) for state, at in detail.timestamps.items() if at)
    # States of the same millisecond are in the order of a job's lifecycle, not in alphabetical order.
    order = {state.value: number for number, state in enumerate(JobState)}
    entered.sort(key=lambda entry: (entry[0], order.get(entry[1], 0)))
    steps = []
    for number, (at, state) in enumerate(entered):
        following = entered[number + 1][0] if number + 1 < len(entered) else None
        steps.append(Step(state, at / 1000, None if following is None else following - at))
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class Bar:
    """The progress of one kind of work."""

    name: str
    done: int
    total: int
    failed: int = 0
    running: int = 0


def bars(detail: JobDetail) -> tuple[Bar, ...]:
    """The progress of a job, from coarse to fine."""
    seen = detail.progress
    return (
        Bar("Spark jobs", seen.spark_jobs_finished, seen.spark_jobs_started, failed=seen.spark_jobs_failed),
        Bar("Stages", seen.stages_finished, seen.stages_total, failed=seen.stages_failed),
        Bar("Tasks", seen.tasks_finished, seen.tasks_total, failed=seen.tasks_failed, running=seen.tasks_running),
    )
