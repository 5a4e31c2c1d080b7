"""A candidate opens a new session if its session ends before it connects.

That happens when kazoo's thread has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.core import end_tasks
from sluice.pki import Role
from sluice.runtime.ha.config import HaConfig
from sluice.runtime.ha.zookeeper import election as zookeeper_election
from sluice.runtime.ha.zookeeper.session import LOST
from tests.hostile import TestPki
from tests.waiting import until


class DeadSession:
    """A session that ends as soon as it is started, as after a failed authentication."""

    made = 0
    connected = False

    def __init__(self, *arguments: Any) -> None:
        self._changed: Callable[[str], None] = arguments[-1]
        DeadSession.made += 1

    def start(self) -> None:
        asyncio.get_running_loop().call_soon(self._changed, LOST)

    async def close(self) -> None: ...


async def test_a_session_that_never_connects_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_election, "ZooKeeperSession", DeadSession)
    monkeypatch.setattr(zookeeper_election, "RETRY_SECONDS", 0.01)
    identity = TestPki(tmp_path).process(Role.JOBMANAGER)
    election = zookeeper_election.ZooKeeperElection(HaConfig(), identity)
    electing = asyncio.create_task(election.elect(lambda: None))
    try:
        await until(lambda: DeadSession.made >= 3)
    finally:
        await end_tasks(electing)
