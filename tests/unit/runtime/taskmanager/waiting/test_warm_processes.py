"""Tests of which drivers and executors may use a warm process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice.runtime.messages import WarmJvms
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox
from sluice.runtime.taskmanager import WarmProcesses, objection
from sluice.runtime.warm import WarmConfig
from tests.unit.runtime.taskmanager.launches import LAUNCH

DRIVER = msgspec.structs.replace(LAUNCH, driver_memory_mb=640, checkpoints="file:///checkpoints/" + "0" * 32)
NOTHING: Any = None
"""Networks and launcher: nothing is started here."""


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE))


@pytest.fixture
def warm(tmp_path: Path, sandbox: Sandbox) -> WarmProcesses:
    return WarmProcesses(WarmConfig(jvms=2), tmp_path, sandbox, NOTHING, NOTHING)


def test_a_driver_without_a_waiting_process_is_counted_as_a_miss(warm: WarmProcesses) -> None:
    assert warm.driver(DRIVER) is None
    assert warm.figures() == WarmJvms(waiting=0, hits=0, misses=1)


def test_a_driver_that_must_not_have_waited_is_not_counted_as_a_miss(warm: WarmProcesses) -> None:
    assert warm.driver(msgspec.structs.replace(DRIVER, may_have_waited=False)) is None
    assert warm.figures().misses == 0


def test_warm_processes_require_job_networks_and_job_uids(sandbox: Sandbox) -> None:
    assert "networks" in objection(sandbox, None)
    networks: Any = object()
    assert "uids" in objection(sandbox, networks)
