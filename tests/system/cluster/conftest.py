"""A separate cluster for each test, which the test may damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.conftest import LocalCluster, start_cluster, without_shuffle


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster that one test may mistreat."""
    running = start_cluster(without_shuffle(tmp_path / "home"), "--taskmanagers", "1")
    yield running
    running.sluice("down")
