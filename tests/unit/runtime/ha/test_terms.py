"""What ends a process that may lead, and after what it stands by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.runtime.ha.embedded import EmbeddedElection
from sluice.runtime.ha.errors import HaError, LeadershipLost, StorageUnavailable
from sluice.runtime.ha.leadership import Leadership
from sluice.runtime.ha.storage import LocalStorage
from sluice.runtime.ha.storage_identity import check_storage
from sluice.runtime.ha.terms import Ready, run_terms


class Leading:
    """Each term begins as the list says: with an error, or ("") well."""

    def __init__(self, *beginnings: HaError | None) -> None:
        self.left = list(beginnings)
        self.began = asyncio.Event()

    async def __call__(self, stack: AsyncExitStack, leadership: Leadership, ready: Ready) -> None:
        del stack
        leadership.check()
        error = self.left.pop(0)
        if error is not None:
            raise error
        ready()
        self.began.set()
        if self.left:
            raise self.left.pop(0) or AssertionError


class Standby(EmbeddedElection):
    """It has stood by for another one before it leads."""

    async def elect(self, standing_by: Callable[[], None]) -> Leadership:
        standing_by()
        await asyncio.sleep(0)
        return await super().elect(standing_by)


async def test_a_term_that_is_lost_while_it_begins_is_followed_by_another(tmp_path: Path) -> None:
    lead = Leading(LeadershipLost("too slow"), None)
    async with run_terms(EmbeddedElection(tmp_path), lead, what="JobManager") as task:
        assert lead.began.is_set()
        assert not task.done()


async def test_a_storage_that_is_away_ends_what_has_never_led_or_stood_by(tmp_path: Path) -> None:
    lead = Leading(StorageUnavailable("not mounted"))
    with pytest.raises(StorageUnavailable):
        async with run_terms(EmbeddedElection(tmp_path), lead, what="JobManager"):
            pytest.fail("it neither leads nor stands by")


async def test_a_standby_that_finds_the_storage_away_gives_the_lead_back_and_stands_by(tmp_path: Path) -> None:
    lead = Leading(StorageUnavailable("not mounted"), StorageUnavailable("still not"), None)
    async with run_terms(Standby(tmp_path), lead, what="JobManager", pause=0.01) as task:
        await asyncio.wait_for(lead.began.wait(), 30)
        assert not task.done()


async def test_a_standby_whose_home_is_full_for_a_while_stands_by(tmp_path: Path) -> None:
    """The first start tells it; a process on which others rely waits."""
    holder = await EmbeddedElection(tmp_path).elect(lambda: None)
    standing_by = asyncio.Event()
    waiting = asyncio.create_task(EmbeddedElection(tmp_path, pause=0.01).elect(standing_by.set))
    await asyncio.wait_for(standing_by.wait(), 30)
    (tmp_path / "epoch").unlink()
    (tmp_path / "epoch").mkdir()
    await holder.resign()
    with pytest.raises(StoreError):
        await EmbeddedElection(tmp_path).elect(lambda: None)
    assert not waiting.done()
    (tmp_path / "epoch").rmdir()
    leadership = await asyncio.wait_for(waiting, 30)
    await leadership.resign()


async def test_pointers_of_a_home_that_somebody_removed_are_missed(tmp_path: Path) -> None:
    """Not taken for those of a new home: the storage bears a mark."""
    storage = LocalStorage(tmp_path / "storage")
    first = await EmbeddedElection(tmp_path).elect(lambda: None)
    await check_storage(first.pointers, storage)
    await first.resign()
    for path in sorted((tmp_path / "pointers").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    second = await EmbeddedElection(tmp_path).elect(lambda: None)
    with pytest.raises(StorageUnavailable, match="pointers"):
        await check_storage(second.pointers, storage)
    (tmp_path / "pointers" / "jobs").rmdir()
    with pytest.raises(StorageUnavailable, match="jobs"):
        await second.pointers.names("jobs")
    await second.resign()
