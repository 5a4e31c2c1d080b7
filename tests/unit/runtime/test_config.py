"""Settings that are derived from other settings."""

from __future__ import annotations

import pytest

from sluice.runtime.config import JobManagerConfig, RuntimeConfig
from sluice.runtime.ha.config import HaConfig


@pytest.mark.parametrize(("timeout", "lease", "seconds"), [(50.0, 20.0, 50.0), (10.0, 60.0, 60.0)])
def test_a_taskmanager_fences_itself_after_the_longer_of_heartbeat_timeout_and_lease(
    timeout: float, lease: float, seconds: float
) -> None:
    """Otherwise a new leader would find nothing to continue with while the driver still held its lease."""
    config = RuntimeConfig(jobmanager=JobManagerConfig(heartbeat_timeout=timeout), ha=HaConfig(lease=lease))
    assert config.fence_after == seconds
