"""A streaming job is stopped with a savepoint, and a later one goes on from it, with Spark."""

from __future__ import annotations

import pytest

from tests.system.streaming.conftest import Stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_later_job_continues_from_the_savepoint_of_a_stopped_job(stream: Stream) -> None:
    stream.incoming.add(4)
    first = stream.submit()
    stream.until_all_is_there()
    stream.incoming.add(7)  # more than a batch: some of it is for the second job
    made = stream.cluster.json("jobs", "savepoint", first, "--stop")
    assert made["state"] == "COMPLETED"
    job = stream.cluster.job(first)
    assert (job["state"], job["attempt"]) == ("FINISHED", 1)
    completed = stream.checkpoints["completed"]
    stream.incoming.add(3)
    stream.let_others_write()  # as the operator does where each job has a uid of its own

    stream.submit("--from-savepoint", made["path"])
    stream.until_all_is_there()
    stream.until_committed(completed)
    assert stream.checkpoints["restored"]["number"] == completed
    assert [each["id"] for each in stream.cluster.json("savepoints", "list")] == [made["id"]]
    stream.cluster.sluice("jobs", "cancel", stream.job_id)
    stream.cluster.wait_for_state(stream.job_id, "CANCELED")
    stream.cluster.json("savepoints", "dispose", made["id"])
    stream.check()
