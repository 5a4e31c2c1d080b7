"""Submits a job that runs for a while, and observes its progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.compose.engine import JOB_SECONDS, Stack, eventually

TOTAL = f"keys 7 total {sum(range(1, 91))}"
"""What the pipeline of the fixture ``slow_sum`` prints when nothing was lost."""
# Of one of its 90 tasks: three executors are busy for 30 times as long.
ONE_FAULT_SECONDS = 0.7
AUDIT_SECONDS = 1.4
TWO_FAULTS_SECONDS = 2.0
EXECUTORS = 3
"""Of each job that :meth:`Stack.submit` submits."""


def on(stack: Stack, job_id: str, taskmanager: str) -> Any:
    """Return the job's running executors on ``taskmanager``; else None.

    None also until Spark has known all executors and five tasks are finished.
    """
    job = stack.job(job_id)
    assert job["state"] in {"CREATED", "INITIALIZING", "RUNNING"}, job
    running = [each for each in job["executors"] if each["state"] == "RUNNING"]
    here = [each for each in running if each["taskmanager"] == taskmanager]
    progress = job["progress"]
    begun = progress["executors_added"] >= EXECUTORS and progress["tasks_finished"] >= 5
    return here if here and begun else None


def under_way(stack: Stack, pipeline: Path, taskmanager: str, seconds: float) -> str:
    """Submit the pipeline and wait until it has made progress; returns the job id.

    Then some of its tasks are finished and it has an executor on ``taskmanager``.
    """
    job_id = stack.submit(pipeline, str(seconds))
    eventually(lambda: on(stack, job_id, taskmanager), f"{taskmanager} works on the job", JOB_SECONDS)
    return job_id


def driver_place(stack: Stack, job_id: str) -> str:
    """Return the TaskManager on which the job's driver runs."""
    return str(stack.job(job_id)["attempts"][-1]["taskmanager"])


def finished_tasks(stack: Stack, job_id: str) -> int:
    """Return the number of finished tasks of a job; fails unless it is RUNNING."""
    job = stack.job(job_id)
    assert job["state"] == "RUNNING", job
    return int(job["progress"]["tasks_finished"])


def goes_on(stack: Stack, job_id: str, done: int) -> bool:
    """Whether more than ``done`` tasks of a job are finished."""
    return finished_tasks(stack, job_id) > done
