"""A job that takes a while, and how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.compose.engine import JOB_SECONDS, Stack, eventually

TOTAL = f"keys 7 total {sum(range(1, 91))}"
"""What the pipeline of the fixture ``slow_sum`` prints when nothing was lost."""
# Of one of its 90 tasks: three executors are busy for 30 times as long.
ONE_FAULT_SECONDS = 0.7
TWO_FAULTS_SECONDS = 2.0


def on(stack: Stack, job_id: str, taskmanager: str) -> Any:
    """The job's executor on ``taskmanager`` once the job is well under way there; else None."""
    job = stack.job(job_id)
    assert job["state"] in {"CREATED", "INITIALIZING", "RUNNING"}, job
    running = [each for each in job["executors"] if each["state"] == "RUNNING"]
    here = [each for each in running if each["taskmanager"] == taskmanager]
    return here if here and job["progress"]["tasks_finished"] >= 5 else None


def under_way(stack: Stack, pipeline: Path, taskmanager: str, seconds: float) -> str:
    """Submit the pipeline and wait until some of it was done, and ``taskmanager`` has a part in it."""
    job_id = stack.submit(pipeline, str(seconds))
    eventually(lambda: on(stack, job_id, taskmanager), f"{taskmanager} works on the job", JOB_SECONDS)
    return job_id


def driver_place(stack: Stack, job_id: str) -> str:
    """The TaskManager on which the job's driver runs."""
    return str(stack.job(job_id)["attempts"][-1]["taskmanager"])


def finished_tasks(stack: Stack, job_id: str) -> int:
    """How far a job is that must not have ended."""
    job = stack.job(job_id)
    assert job["state"] == "RUNNING", job
    return int(job["progress"]["tasks_finished"])


def goes_on(stack: Stack, job_id: str, done: int) -> bool:
    """Whether a job has got further than ``done``."""
    return finished_tasks(stack, job_id) > done
