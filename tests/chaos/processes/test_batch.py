"""A batch job whose processes, and whose cluster's, are killed at random writes what a clean run writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.processes.victims import Killer, live_on, patiently, story
from tests.integration.cluster.conftest import LocalCluster, eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).with_name("rounds.py")
DEATHS = int(os.environ.get("SLUICE_CHAOS_DEATHS", "4"))
JOB_SECONDS = 400.0
RESTARTS = ("--restart-strategy", "fixed-delay", "--restart", "attempts=50", "--restart", "delay=0.5")


def submit(cluster: LocalCluster, target: Path, progress: Path) -> str:
    """Start the pipeline as a job that is restarted whenever it fails."""
    done = cluster.sluice("submit", str(PIPELINE), "--executors", "2", *RESTARTS, "--", str(target), str(progress))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ended(cluster: LocalCluster, job_id: str) -> Any:
    """The job when it has ended."""

    def over() -> object:
        job = cluster.job(job_id)
        return job if job["end_time"] is not None else None

    return eventually(patiently(over), "the job ends", JOB_SECONDS)


def rounds(progress: Path) -> int:
    """How many rounds were done so far, by all attempts."""
    return len(progress.read_text().split()) if progress.exists() else 0


def test_it_writes_what_a_clean_run_writes(cluster: LocalCluster, tmp_path: Path, seed: int) -> None:
    clean = submit(cluster, tmp_path / "clean", tmp_path / "clean.rounds")
    assert ended(cluster, clean)["state"] == "FINISHED"

    target, progress = tmp_path / "disturbed", tmp_path / "disturbed.rounds"
    job_id = submit(cluster, target, progress)
    killer = Killer(cluster, PIPELINE.name)
    done = 0
    for death in story(seed, DEATHS, shuffle=killer.shuffle):
        before = done
        eventually(lambda before=before: rounds(progress) > before, "another round is done", JOB_SECONDS)  # type: ignore[misc]
        live_on(death.after)
        if target.exists():
            break  # it was quicker than its murderers
        print(f"seed {seed}: killing {death.kind} {killer.kill(death)} after {rounds(progress)} rounds")  # noqa: T201
        done = rounds(progress)
    job = ended(cluster, job_id)
    assert job["state"] == "FINISHED", job["failure"]
    assert target.read_text() == (tmp_path / "clean").read_text()
    numbers = [each["number"] for each in job["attempts"]]
    assert numbers == list(range(1, job["attempt"] + 1)), "an attempt is forgotten"
    assert [each["outcome"] for each in job["attempts"]][-1] == "FINISHED"
