"""Clusters whose processes are killed. ``SLUICE_CHAOS_SEEDS=7,8,9`` tells other stories than the default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.conftest import LocalCluster, start_cluster


def seeds() -> list[int]:
    """The seeds to run."""
    return [int(each) for each in os.environ.get("SLUICE_CHAOS_SEEDS", "1").split(",")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that want a seed run once for each."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two JobManagers and two TaskManagers."""
    running = start_cluster(tmp_path / "home", "--taskmanagers", "2", "--jobmanagers", "2")
    try:
        yield running
    finally:
        running.sluice("down")
