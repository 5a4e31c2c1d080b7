"""Fixtures: clusters whose processes are killed.

``SLUICE_CHAOS_SEEDS=4,5,6`` selects other seeds than the default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.processes.victims import OPTIONS
from tests.integration.cluster.conftest import LocalCluster, start_cluster
from tests.system.ha.conftest import ensemble, ensemble_pki, machines

__all__ = ["cluster", "ensemble", "ensemble_pki", "machines"]


def seeds() -> list[int]:
    """Return the seeds to run. The default ones together kill every kind of process in each plot."""
    return [int(each) for each in os.environ.get("SLUICE_CHAOS_SEEDS", "1,2,3").split(",")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that has a ``seed`` argument once for each seed."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Provides a cluster with two JobManagers, two TaskManagers and the shuffle service."""
    running = start_cluster(tmp_path / "home", *OPTIONS)
    try:
        yield running
    finally:
        running.sluice("down")
