"""A streaming job writes each row once although its processes are killed one after the other."""

from __future__ import annotations

import pytest

from tests.system.streaming.conftest import Stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DRIVER_JVM = ("org.apache.spark.api.python.PythonGatewayServer",)
PYTHON = ("cert_stream.py",)
TASKMANAGER = ("run", "taskmanager")


def leader(stream: Stream) -> tuple[str, ...]:
    """Words of the command line of the leading JobManager."""
    name = stream.cluster.get("/v1/overview")["jobmanager"].rsplit("/", 1)[1]
    return ("run", "jobmanager", name)


def test_each_row_is_written_exactly_once_when_processes_are_killed(stream: Stream) -> None:
    stream.incoming.add(4)
    stream.submit()
    seen = 0
    for victim in (DRIVER_JVM, TASKMANAGER, PYTHON, None):
        stream.until_committed(seen)
        stream.incoming.add(7)  # more than a batch: the next one is in its middle
        seen = stream.checkpoints["completed"]
        stream.kill(*(victim or leader(stream)))
        stream.incoming.add(1)
    stream.until_committed(seen)
    stream.until_all_is_there()
    job = stream.cluster.job(stream.job_id)
    assert job["attempt"] >= 3, "the leader costs none"
    assert job["state"] == "RUNNING"
    checkpoints = stream.checkpoints
    assert checkpoints["restored"]["number"] >= seen - 1
    numbers = [each["number"] for each in checkpoints["history"]]
    assert numbers == sorted(set(numbers))
    assert {each["name"] for each in checkpoints["queries"]} == {"certificates", "expiry"}
    stream.cluster.sluice("jobs", "cancel", stream.job_id)
    stream.cluster.wait_for_state(stream.job_id, "CANCELED")
    stream.check()
    assert stream.checkpoints["completed"] >= seen
