"""What ends a process that may lead, and what makes it a standby again."""

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
    """Leads as scripted: each entry is an error that is raised, or None for success."""

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
    """An election that has stood by for another process before it leads."""

    async def elect(self, standing_by: Callable[[], None]) -> Leadership:
        standing_by()
        await asyncio.sleep(0)
        return await super().elect(standing_by)


async def test_a_term_lost_at_its_beginning_is_followed_by_another(tmp_path: Path) -> None:
    lead = Leading(LeadershipLost("too slow"), None)
    async with run_terms(EmbeddedElection(tmp_path), lead, what="JobManager") as task:
        assert lead.began.is_set()
        assert not task.done()


async def test_unavailable_storage_ends_a_process_that_has_never_led_or_stood_by(tmp_path: Path) -> None:
    lead = Leading(StorageUnavailable("not mounted"))
    with pytest.raises(StorageUnavailable):
        async with run_terms(EmbeddedElection(tmp_path), lead, what="JobManager"):
            pytest.fail("it neither leads nor stands by")


async def test_a_standby_that_finds_the_storage_unavailable_gives_up_its_lead_and_stands_by_again(
    tmp_path: Path,
) -> None:
    lead = Leading(StorageUnavailable("not mounted"), StorageUnavailable("still not"), None)
    async with run_terms(Standby(tmp_path), lead, what="JobManager", pause=0.01) as task:
        await asyncio.wait_for(lead.began.wait(), 30)
        assert not task.done()


async def test_a_standby_keeps_waiting_while_the_epoch_in_its_home_cannot_be_written(tmp_path: Path) -> None:
    """A first start reports the error; a process that stands by waits, as others rely on it."""
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


async def test_removed_pointers_of_a_home_are_detected(tmp_path: Path) -> None:
    """They are not taken for those of a new home: the storage bears a mark."""
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
