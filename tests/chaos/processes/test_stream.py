"""A streaming job whose processes, and whose cluster's, are killed at random writes each row once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.processes.test_batch import RESTARTS
from tests.chaos.processes.victims import Killer, live_on, patiently, story
from tests.integration.cluster.conftest import LocalCluster, eventually
from tests.system.streaming.certificates import Incoming
from tests.system.streaming.conftest import PIPELINE, Stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DEATHS = int(os.environ.get("SLUICE_CHAOS_DEATHS", "4"))
STREAM_SECONDS = 300.0


def test_no_row_is_lost_or_written_twice(cluster: LocalCluster, tmp_path: Path, seed: int) -> None:
    stream = Stream(cluster, Incoming(tmp_path / "incoming"), tmp_path / "certificates", tmp_path / "expiry.db")
    stream.incoming.add(4)
    stream.submit(*RESTARTS)
    killer = Killer(cluster, PIPELINE.name)
    seen = 0
    for death in story(seed + 1000, DEATHS, shuffle=killer.shuffle):
        stream.until_committed(seen)
        stream.incoming.add(7)  # more than a batch: the next one is in its middle
        live_on(death.after)
        print(f"seed {seed}: killing {death.kind} {killer.kill(death)} after {seen} batches")  # noqa: T201
        seen = eventually(patiently(lambda: stream.checkpoints["completed"]), "somebody leads")
        stream.incoming.add(1)
    stream.until_all_is_there(STREAM_SECONDS)

    job = eventually(patiently(lambda: cluster.job(stream.job_id)), "somebody leads")
    assert job["state"] == "RUNNING"
    assert cluster.sluice("jobs", "cancel", stream.job_id).returncode == 0
    eventually(patiently(lambda: cluster.job(stream.job_id)["state"] == "CANCELED"), "the job is cancelled")
    stream.check()
