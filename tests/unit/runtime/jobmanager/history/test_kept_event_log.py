"""Spark's event log in the history: unchanged bytes, bounded in size, readable by the next leader."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluice.runtime.config import HistoryConfig
from sluice.runtime.ha.errors import EntryDamaged, StorageUnavailable
from sluice.runtime.ha.storage import HaStorage, LocalStorage
from sluice.runtime.jobmanager.errors import JobNotFound, LogNotFound
from sluice.runtime.jobmanager.history import archive as archive_module, event_log
from sluice.runtime.jobmanager.history.archive import JOBS, JobArchive
from sluice.runtime.messages import EventLogChunk
from tests.unit.runtime.ha.simulated import MemoryStorage
from tests.unit.runtime.jobmanager.history.test_history import NO_LOGS, NOW, ONE, leads, record


@dataclass
class Events:
    """A fake event log as a TaskManager returns it."""

    content: bytes
    piece: int = 1 << 20
    cut: bool = False
    lost_at: int | None = None

    async def read(self, offset: int) -> EventLogChunk:
        if self.lost_at is not None and offset >= self.lost_at:
            raise LogNotFound("its TaskManager is gone")
        data = self.content[offset : offset + self.piece]
        return EventLogChunk(data=data, end=offset + len(data) >= len(self.content), cut=self.cut)


def archive_in(storage: HaStorage, **settings: float) -> JobArchive:
    return JobArchive(storage, msgspec.structs.replace(HistoryConfig(), **settings), leads, lambda: NOW / 1000)


def below(root: Path, pattern: str) -> list[Path]:
    return list(root.rglob(pattern))


async def kept(archive: JobArchive) -> tuple[bytes, bool]:
    log = await archive.event_log(ONE)
    return b"".join([await archive.read_events(block) for block in log.blocks]), log.cut


async def test_the_next_leader_finds_the_event_log_and_its_size_is_counted(tmp_path: Path) -> None:
    storage, content = LocalStorage(tmp_path), b"\x1f\x8b" + bytes(range(256)) * 40
    await archive_in(storage).put(record(), NO_LOGS, Events(content, piece=999).read)
    archive = archive_in(storage)
    await archive.load()
    assert await kept(archive) == (content, False)
    assert (await archive.event_log(ONE)).size == len(content)
    assert archive.page(None, 1)[0][0].size > len(content)
    assert archive.kept_until(ONE) == NOW + 30 * 86_400_000


@given(
    content=st.binary(max_size=300),
    piece=st.integers(1, 60),
    budget=st.integers(1, 400),
    block=st.integers(1, 100),
    lost_at=st.none() | st.integers(0, 300),
)
async def test_the_beginning_of_an_event_log_is_kept_and_marked_as_cut_if_there_was_more(
    content: bytes, piece: int, budget: int, block: int, lost_at: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_log, "EVENT_BLOCK_BYTES", block)
        archive = archive_in(MemoryStorage(), max_ui_bytes=budget)
        await archive.put(record(), NO_LOGS, Events(content, piece, lost_at=lost_at).read)
        data, cut = await kept(archive)
    assert content.startswith(data)
    assert len(data) <= budget
    assert cut or data == content


async def test_an_event_log_that_the_driver_cut_is_marked_as_cut() -> None:
    archive = archive_in(MemoryStorage())
    await archive.put(record(), NO_LOGS, Events(b"events", cut=True).read)
    assert await kept(archive) == (b"events", True)


@pytest.mark.parametrize("settings", [{"max_ui_bytes": 0}, {"days": 0}])
async def test_no_event_log_is_kept_if_the_settings_switch_it_off(settings: dict[str, float]) -> None:
    storage = MemoryStorage()
    archive = archive_in(storage, **settings)
    await archive.put(record(), NO_LOGS, Events(b"events").read)
    if ONE in archive:
        assert await kept(archive) == (b"", False)
    else:
        with pytest.raises(JobNotFound):
            await archive.event_log(ONE)


async def test_a_slow_taskmanager_does_not_block_archiving_and_its_event_log_is_marked_as_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_module, "COLLECT_SECONDS", 0.0)
    archive = archive_in(MemoryStorage())

    async def never(_: int) -> EventLogChunk:
        return await asyncio.Event().wait() and EventLogChunk(data=b"", end=True)

    await archive.put(record(), NO_LOGS, never)
    assert await kept(archive) == (b"", True)


async def test_a_changed_block_is_noticed(tmp_path: Path) -> None:
    archive = archive_in(LocalStorage(tmp_path))
    await archive.put(record(), NO_LOGS, Events(b"events").read)
    (block,) = below(tmp_path, "events-*.gz")
    block.write_bytes(b"forged")
    with pytest.raises(EntryDamaged):
        await kept(archive)


async def test_a_full_disk_leaves_nothing_of_the_job_behind() -> None:
    class Full(MemoryStorage):
        def write(self, name: str, data: bytes) -> None:
            if "events-" in name or name.startswith("history/index"):
                raise StorageUnavailable("no space left")
            super().write(name, data)

    storage = Full()
    archive = archive_in(storage)
    with pytest.raises(StorageUnavailable):
        await archive.put(record(), NO_LOGS, Events(b"events").read)
    assert ONE not in archive
    assert storage.names(f"{JOBS}/{ONE}") == []
