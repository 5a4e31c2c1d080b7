"""Jobs that exceed a limit end with a reason; their neighbour on the same TaskManager is unaffected."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest

from tests.integration.cluster.conftest import LocalCluster, start_cluster

CONFIG = """
[taskmanager]
count = 1
slots = 2
slot_memory_mb = 512

[spark]
driver_memory_mb = 512
executors = 1

[shuffle]
enabled = false

[egress]
mode = "off"  # the neighbour talks to the test over TCP

[isolation]
max_processes = 500
disk_mb = 50
log_mb = 20
tmp_mb = 40
driver_python_memory_mb = 400
python_worker_memory_mb = 300
"""
HERE = Path(__file__).parent
ROWS = 300_000
SECONDS = 240

PIPELINE = "the pipeline's Python process"
EXCESSES = (
    ("driver", "memory", (f"out of memory: {PIPELINE} and its child", "driver_python_memory_mb in [isolation]")),
    ("driver", "forks", (f"too many processes: {PIPELINE}", "max_processes in [isolation]")),
    ("driver", "disk", ("50 MiB", "disk_mb in [isolation]")),  # of one file or of all: whichever is met first
    ("driver", "prints", (f"too much output: a log of {PIPELINE}", "log_mb in [isolation]")),
    ("driver", "tmp", ("No space left on device", "tmp_mb in [isolation]")),
    ("driver", "shm", ("No space left on device", "tmp_mb in [isolation]")),
    ("udf", "memory", ("out of memory: the executor and its child", "python_worker_memory_mb in [isolation]")),
    ("udf", "forks", ("too many processes: the executor", "max_processes in [isolation]")),
    ("udf", "disk", ("50 MiB", "disk_mb in [isolation]")),  # as above
    ("udf", "prints", ("too much output: a log of the executor", "log_mb in [isolation]")),
    ("udf", "tmp", ("No space left on device", "tmp_mb in [isolation]")),
    ("udf", "shm", ("No space left on device", "tmp_mb in [isolation]")),
)

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home = tmp_path_factory.mktemp("bounds") / "home"
    home.mkdir(mode=0o700)
    (home / "sluice.toml").write_text(CONFIG)
    running = start_cluster(home)
    yield running
    running.sluice("down")


@dataclass(frozen=True)
class Neighbour:
    """A job that keeps running next to the others."""

    id: str
    lines: TextIO

    def sum_of(self, rows: int) -> int:
        """Have the job compute a sum over ``rows`` rows; returns the result."""
        self.lines.write(f"{rows}\n")
        self.lines.flush()
        return int(self.lines.readline())


@pytest.fixture(scope="module")
def neighbour(cluster: LocalCluster) -> Iterator[Neighbour]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(SECONDS)
        job_id = cluster.submit(HERE / "neighbour.py", str(listening.getsockname()[1]))
        connection, _ = listening.accept()
    connection.settimeout(SECONDS)
    with connection, connection.makefile("rw") as lines:
        yield Neighbour(job_id, lines)
    job = cluster.wait_for_state(job_id, "FINISHED", "FAILED", "CANCELED")
    assert (job["state"], job["attempt"]) == ("FINISHED", 1), job["failure"]


@pytest.mark.parametrize(("place", "what", "said"), EXCESSES, ids=[f"{place}-{what}" for place, what, _ in EXCESSES])
def test_a_job_over_its_limits_fails_with_a_reason_and_its_neighbour_continues(
    cluster: LocalCluster, neighbour: Neighbour, place: str, what: str, said: tuple[str, ...]
) -> None:
    greedy = cluster.submit(HERE / "greedy.py", place, what)
    expected = ROWS * (ROWS - 1) // 2
    assert neighbour.sum_of(ROWS) == expected
    job = cluster.wait_for_state(greedy, "FAILED", "FINISHED", seconds=SECONDS)
    assert neighbour.sum_of(ROWS) == expected
    assert job["state"] == "FAILED"
    for each in said:
        assert each in job["failure"]["error"], job["failure"]
    assert [each["state"] for each in cluster.job(neighbour.id)["executors"]] == ["RUNNING"]
