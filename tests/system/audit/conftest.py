"""One cluster for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.audit.broken_cluster import BrokenCluster


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokenCluster]:
    """Provide a real cluster, with nothing broken yet."""
    cluster = BrokenCluster(tmp_path_factory.mktemp("broken") / "home")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
