"""A streaming job writes each row once although random processes are killed.

The victims are processes of the job and of the cluster.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.chaos.processes.story import story
from tests.chaos.processes.test_batch import RESTARTS
from tests.chaos.processes.victims import Killer, live_on, patiently
from tests.integration.cluster.conftest import LocalCluster, eventually
from tests.system.streaming.certificates import Incoming
from tests.system.streaming.conftest import PIPELINE, Stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DEATHS = int(os.environ.get("SLUICE_CHAOS_DEATHS", "6"))
STREAM_SECONDS = 300.0


def test_a_streaming_job_with_killed_processes_writes_each_row_exactly_once(cluster: LocalCluster, seed: int) -> None:
    stream = Stream(
        cluster, Incoming(cluster.shared / "incoming"), cluster.shared / "certificates", cluster.shared / "expiry.db"
    )
    stream.incoming.add(4)
    stream.submit(*RESTARTS)
    killer = Killer(cluster, PIPELINE.name)
    began = time.monotonic()
    seen = 0

    def more() -> bool:
        return bool(stream.checkpoints["completed"] > seen)

    for death in story("stream", seed, DEATHS):
        if not death.hasty:
            eventually(patiently(more), f"a batch after the first {seen} is committed", STREAM_SECONDS)
        stream.incoming.add(7)  # more than a batch: the next one is in its middle
        live_on(death.after)
        victim = killer.kill(death)
        seen = eventually(patiently(lambda: stream.checkpoints), "somebody leads")["completed"]
        print(f"seed {seed}: {time.monotonic() - began:.0f} s, {seen} batches: killed {death} {victim}")  # noqa: T201
        stream.incoming.add(1)
    stream.until_all_is_there(STREAM_SECONDS)

    job = eventually(patiently(lambda: cluster.job(stream.job_id)), "somebody leads")
    print(f"seed {seed}: {time.monotonic() - began:.0f} s, {job['attempt']} attempts")  # noqa: T201
    assert job["state"] == "RUNNING"
    assert cluster.sluice("jobs", "cancel", stream.job_id).returncode == 0
    eventually(patiently(lambda: cluster.job(stream.job_id)["state"] == "CANCELED"), "the job is cancelled")
    stream.check()
    numbers = [each["number"] for each in stream.checkpoints["history"]]
    assert numbers == sorted(set(numbers))
