"""When a candidate that was elected by ZooKeeper begins to lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.pki.spiffe_id import Role
from sluice.runtime.ha import HaConfig
from sluice.runtime.ha.zookeeper import election as zookeeper_election
from tests.hostile import TestPki


class RecordingSession:
    """A session that answers at once, and whose only latch is the candidate's."""

    connected, timeout = True, 10.0

    def __init__(self, *arguments: Any) -> None:
        self.asked: list[str] = []
        self.latch = ""

    def start(self) -> None: ...
    async def close(self) -> None: ...
    async def set_access(self, path: str, acl: Any) -> None: ...

    async def create(self, path: str, value: bytes, acl: Any, **flags: bool) -> str:
        if not flags:
            return path
        self.latch = f"{path}0000000000"
        return self.latch

    async def children(self, path: str) -> list[str]:
        return [self.latch.rpartition("/")[2]] if path.endswith("latches") else ["pointer"]

    async def access(self, path: str) -> list[Any]:
        self.asked.append(path)
        return []

    async def exists(self, path: str, watch: Any = None) -> bool:
        self.asked.append(path)
        return True


async def test_a_leader_confirms_its_latch_after_it_has_secured_all_pointers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many pointers, the leadership would otherwise be over before it begins, each time."""
    session = RecordingSession()
    monkeypatch.setattr(zookeeper_election, "ZooKeeperSession", lambda *_: session)
    election = zookeeper_election.ZooKeeperElection(HaConfig(), TestPki(tmp_path).process(Role.JOBMANAGER))
    leadership = await election.elect(lambda: None)
    asked = list(session.asked)  # before the leadership confirms itself again
    await leadership.resign()
    assert "pointer" in asked[-2]
    assert asked[-1] == session.latch
