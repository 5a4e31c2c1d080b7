"""A leader's view of pointer folders that were removed from ZooKeeper, with a fake session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError  # type: ignore[import-untyped]  # has no types

from sluice.runtime.ha.errors import StorageUnavailable
from sluice.runtime.ha.zookeeper.pointers import ZooKeeperPointers


class Transaction:
    """A transaction that accepts every operation."""

    def check(self, path: str, version: int) -> None: ...

    def create(self, path: str, value: bytes, **_: object) -> None: ...


class Session:
    """A session in which only the latch exists; the first ``lost`` answers are lost."""

    def __init__(self, lost: int) -> None:
        self.lost = lost

    def transaction(self) -> Transaction:
        return Transaction()

    async def commit(self, _: Transaction) -> list[Any]:
        self._answer()
        return [True, NoNodeError()]

    async def children(self, path: str) -> list[str]:
        self._answer()
        raise NoNodeError(path)

    async def get(self, path: str) -> tuple[bytes, int]:
        raise NoNodeError(path)

    def _answer(self) -> None:
        if self.lost:
            self.lost -= 1
            raise ConnectionLoss


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_removed_folder_of_pointers_raises_storage_unavailable(lost: int) -> None:
    """Once, listing it was retried for ever, and a new pointer failed with an error of kazoo."""
    session: Any = Session(lost)
    pointers = ZooKeeperPointers(session, "/sluice/c", "/sluice/c/latches/1", [], lambda: None)
    with pytest.raises(StorageUnavailable, match="/sluice/c"):
        await asyncio.wait_for(pointers.names("jobs"), 30)
    session.lost = lost
    with pytest.raises(StorageUnavailable, match="removed"):
        await asyncio.wait_for(pointers.create("jobs", "a", b"1"), 30)
