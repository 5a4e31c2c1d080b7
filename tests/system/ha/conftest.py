"""A cluster of killable JobManagers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime.config import JobManagerConfig, RuntimeConfig, TaskManagerConfig
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.system.ha.world import World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """No process runs yet."""
    config = RuntimeConfig(
        trust_domain=TRUST_DOMAIN,
        jobmanager=JobManagerConfig(heartbeat_interval=0.3, heartbeat_timeout=5.0, cancel_grace=1.0),
        taskmanager=TaskManagerConfig(slots=2),
    )
    world = World(TestPki(tmp_path), tmp_path, config)
    try:
        yield world
    finally:
        await world.close()
