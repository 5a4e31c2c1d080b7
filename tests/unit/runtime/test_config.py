"""Settings of which one follows from others."""

from __future__ import annotations

import pytest

from sluice.runtime.config import JobManagerConfig, RuntimeConfig
from sluice.runtime.ha.config import HaConfig


@pytest.mark.parametrize(("timeout", "lease", "seconds"), [(50.0, 20.0, 50.0), (10.0, 60.0, 60.0)])
def test_a_taskmanager_keeps_what_it_runs_for_as_long_as_a_driver_holds_its_lease(
    timeout: float, lease: float, seconds: float
) -> None:
    """Else a new leader would find nothing to go on with, although the driver was still its job's."""
    config = RuntimeConfig(jobmanager=JobManagerConfig(heartbeat_timeout=timeout), ha=HaConfig(lease=lease))
    assert config.fence_after == seconds
