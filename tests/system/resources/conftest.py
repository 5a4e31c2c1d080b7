"""A cluster started by the ``sluice`` command, for Spark jobs that need more and then fewer resources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.conftest import LocalCluster, start_cluster
from tests.shared_folder import shared_folder

CONFIG = """
[taskmanager]
count = 2
slots = 2
slot_memory_mb = 512

[spark]
driver_memory_mb = 512
executors = 1

[jobmanager]
heartbeat_interval = 1.0
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two TaskManagers of two slots, shared by the tests of a module."""
    home = tmp_path_factory.mktemp("resources") / "home"
    home.mkdir(mode=0o700)
    (home / "sluice.toml").write_text(CONFIG)
    running = start_cluster(home)
    yield running
    running.sluice("down")


def running_executors(job: dict[str, object]) -> list[dict[str, object]]:
    """The job's executors that are running."""
    executors = job["executors"]
    assert isinstance(executors, list)
    return [each for each in executors if each["state"] == "RUNNING"]


@pytest.fixture
def flags(cluster: LocalCluster, tmp_path: Path) -> Path:
    """Where a pipeline and its test tell each other how far they are."""
    return shared_folder(cluster.shared, tmp_path.name)
