"""Clusters whose JobManagers can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.runtime.config import JobManagerConfig, RuntimeConfig, TaskManagerConfig
from sluice.runtime.ha.config import HaConfig
from sluice.runtime.sandbox import IsolationConfig
from tests.free_ports import free_ports
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.shared_folder import shared_folder
from tests.system.ha.ensemble import Ensemble
from tests.system.ha.world import World

SESSION_SECONDS = 5.0
LEASE_SECONDS = 20.0
"""Longer than a standby takes to lead: drivers go on."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Provide a world with one home, in which no process runs yet."""
    config = RuntimeConfig(
        trust_domain=TRUST_DOMAIN,
        jobmanager=JobManagerConfig(heartbeat_interval=0.3, heartbeat_timeout=5.0, cancel_grace=1.0),
        taskmanager=TaskManagerConfig(slots=2),
        isolation=IsolationConfig(writable=(str(shared_folder(tmp_path, "jobs")),)),
    )
    world = World(TestPki(tmp_path), tmp_path, config)
    try:
        yield world
    finally:
        await world.close()


@pytest.fixture
async def machines(ensemble: Ensemble, tmp_path: Path) -> AsyncIterator[World]:
    """JobManagers ``jm-1`` and ``jm-2`` with homes of their own, as on two machines; neither runs yet."""
    await asyncio.to_thread(ensemble.until_whole)
    ports = free_ports(4)
    base = RuntimeConfig(
        trust_domain=TRUST_DOMAIN,
        jobmanager=JobManagerConfig(heartbeat_interval=0.3, heartbeat_timeout=15.0, cancel_grace=1.0),
        taskmanager=TaskManagerConfig(slots=2),
        isolation=IsolationConfig(writable=(str(shared_folder(tmp_path, "jobs")),)),
        ha=HaConfig(
            mode="zookeeper",
            storage=str(tmp_path / "shared"),
            cluster=tmp_path.name.replace("_", "-").strip("-")[-40:].strip("-"),
            session_timeout=SESSION_SECONDS,
            lease=LEASE_SECONDS,
            zookeeper_hosts=ensemble.hosts,
            jobmanagers=("jm-1", "jm-2"),
        ),
    )
    world = World(ensemble.pki, tmp_path, base)
    for number, name in enumerate(("jm-1", "jm-2")):
        world.declare(name, Home.at(tmp_path / name), rpc_port=ports[2 * number], rest_port=ports[2 * number + 1])
    try:
        yield world
    finally:
        await world.close()


@pytest.fixture(scope="session")
def ensemble_pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    """One authority for the ensemble and for all that connects to it."""
    return TestPki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="session")
def ensemble(ensemble_pki: TestPki, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """A running ensemble; tests that kill a server start it again."""
    running = Ensemble(ensemble_pki, tmp_path_factory.mktemp("zookeeper"))
    try:
        running.start()
        yield running
    finally:
        running.close()
