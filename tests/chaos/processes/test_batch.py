"""A batch job writes the output of a clean run although random processes are killed.

The victims are processes of the job and of the cluster.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.processes.story import story
from tests.chaos.processes.victims import Killer, live_on, patiently
from tests.integration.cluster.conftest import LocalCluster, eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).with_name("rounds.py")
DEATHS = int(os.environ.get("SLUICE_CHAOS_DEATHS", "6"))
JOB_SECONDS = 300.0
RESTARTS = ("--restart-strategy", "fixed-delay", "--restart", "attempts=50", "--restart", "delay=0.5")


def submit(cluster: LocalCluster, target: Path, progress: Path, hold: Path) -> str:
    """Submit the pipeline as a job that is restarted whenever it fails; returns the job's id."""
    arguments = (str(target), str(progress), str(hold))
    done = cluster.sluice("submit", str(PIPELINE), "--executors", "2", *RESTARTS, "--", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ended(cluster: LocalCluster, job_id: str) -> Any:
    """Wait until the job has ended, and return it."""

    def over() -> object:
        job = cluster.job(job_id)
        return job if job["end_time"] is not None else None

    return eventually(patiently(over), "the job ends", JOB_SECONDS)


def rounds(progress: Path) -> int:
    """Return how many rounds all attempts together have completed so far."""
    return len(progress.read_text().split()) if progress.exists() else 0


def test_a_batch_job_with_killed_processes_writes_the_same_output_as_a_clean_run(
    cluster: LocalCluster, seed: int
) -> None:
    clean = submit(cluster, cluster.shared / "clean", cluster.shared / "clean.rounds", cluster.shared / "never")
    assert ended(cluster, clean)["state"] == "FINISHED"

    target, progress, hold = cluster.shared / "disturbed", cluster.shared / "disturbed.rounds", cluster.shared / "hold"
    hold.touch()
    job_id = submit(cluster, target, progress, hold)
    killer = Killer(cluster, PIPELINE.name)
    began = time.monotonic()
    done = 0
    for death in story("batch", seed, DEATHS):
        if not death.hasty:
            eventually(lambda before=done: rounds(progress) > before, "another round is done", JOB_SECONDS)  # type: ignore[misc]
        live_on(death.after)
        victim = killer.kill(death)
        done = rounds(progress)
        print(f"seed {seed}: {time.monotonic() - began:.0f} s, {done} rounds: killed {death} {victim}")  # noqa: T201
    eventually(lambda: rounds(progress) > done, "a round is done after the last death", JOB_SECONDS)
    hold.unlink()
    job = ended(cluster, job_id)
    print(f"seed {seed}: {time.monotonic() - began:.0f} s, {rounds(progress)} rounds, {job['attempt']} attempts")  # noqa: T201
    assert job["state"] == "FINISHED", job["failure"]
    assert target.read_text() == (cluster.shared / "clean").read_text()
    assert not (cluster.shared / "disturbed.twice").exists(), "two drivers ran at the same time"
    numbers = [each["number"] for each in job["attempts"]]
    assert numbers == list(range(1, job["attempt"] + 1)), "an attempt is forgotten"
    assert [each["outcome"] for each in job["attempts"]][-1] == "FINISHED"
    jobs = {each["id"]: each["state"] for each in cluster.get("/v1/jobs")["jobs"]}
    assert jobs == {clean: "FINISHED", job_id: "FINISHED"}, "a job is lost, or there is one more"
