"""The overview's list of jobs."""

from __future__ import annotations

from sluice.runtime.jobmanager.views import JobSummary
from sluice.runtime.messages import JobState
from sluice.runtime.ui.job_pages import recent


def job(name: str, state: JobState, start: int, end: int | None = None) -> JobSummary:
    return JobSummary(id=name, name=name, owner="ada", state=state, start_time=start, end_time=end, duration_ms=0)


def test_running_jobs_come_first_and_newer_jobs_before_older() -> None:
    jobs = [
        job("old", JobState.RUNNING, 10),
        job("ended early", JobState.FAILED, 90, 100),
        job("new", JobState.RUNNING, 30),
        job("ended late", JobState.FINISHED, 5, 200),
        job("middle", JobState.CREATED, 20),
    ]
    assert [each.name for each in recent(jobs)] == ["new", "middle", "old", "ended late", "ended early"]
