"""Exporting audit records: at least once and in order despite failures, and with matching metrics."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from sluice.core import REGISTRY, StoreError
from sluice.gateway.audit_export import exporter as module, reader
from sluice.gateway.audit_export.cursor import Cursor, CursorFile
from sluice.gateway.audit_export.exporter import Exporter
from sluice.gateway.audit_export.reader import Message
from sluice.gateway.audit_export.senders import DeliveryFailed
from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.log import AuditLog
from sluice.gateway.errors import AuditLogError
from tests.waiting import until

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


class Receiver:
    """A collector that accepts messages or fails as the test says."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.failing: BaseException | None = None
        self.rejects = 0

    async def send(self, messages: Sequence[Message]) -> int:
        if self.failing is not None:
            raise self.failing
        self.got += [each.record.number for each in messages]
        return self.rejects


class FullDisk(CursorFile):
    """A cursor file that cannot be written while ``full`` is set."""

    full = False

    def write(self, cursor: Cursor) -> None:
        if self.full:
            raise StoreError(f"cannot write: {os.strerror(errno.ENOSPC)}")
        super().write(cursor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "current.jsonl"


@pytest.fixture
def file(tmp_path: Path) -> FullDisk:
    file = FullDisk(tmp_path / "export" / "siem.json")
    (tmp_path / "export").mkdir(mode=0o700)
    return file


def write(path: Path, count: int) -> int:
    with contextlib.closing(AuditLog(path, clock=lambda: NOW)) as log:
        for _ in range(count):
            log.append(AuditRecord(event="decision"))
        log.maintain()
    return log.state.count


def value(metric: str) -> float | None:
    return REGISTRY.get_sample_value(f"sluice_audit_export_{metric}", {"export": "siem"})


def numbers(last: int, first: int = 1) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def exporter_of(path: Path, file: CursorFile, receiver: Receiver) -> Exporter:
    return Exporter("siem", path.parent, file, receiver)


async def test_an_outage_of_the_collector_loses_and_repeats_no_records(
    path: Path, file: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_BATCH_MESSAGES", 4)
    last = write(path, 10)
    receiver = Receiver()
    exporter = exporter_of(path, file, receiver)
    assert await exporter.step()
    receiver.failing = DeliveryFailed("down")
    for _ in range(3):
        with pytest.raises(DeliveryFailed):
            await exporter.step()
    assert (value("behind_lines"), value("behind_since_seconds")) == (last - 4, NOW.timestamp())
    last = write(path, 10)
    with pytest.raises(DeliveryFailed):
        await exporter.step()
    assert value("behind_lines") == last - 4
    receiver.failing = None
    while await exporter.step():
        pass
    assert receiver.got == numbers(last)
    assert (value("behind_lines"), value("behind_since_seconds")) == (0, 0)


async def test_another_process_continues_the_export_at_the_stored_position(path: Path, file: FullDisk) -> None:
    first, second = Receiver(), Receiver()
    half = write(path, 5)
    assert await exporter_of(path, file, first).step()
    last = write(path, 5)
    assert await exporter_of(path, file, second).step()
    assert (first.got, second.got) == (numbers(half), numbers(last, half + 1))


async def test_an_export_stops_after_one_batch_if_its_position_cannot_be_stored(path: Path, file: FullDisk) -> None:
    receiver = Receiver()
    half = write(path, 5)
    exporter = exporter_of(path, file, receiver)
    file.full = True
    for _ in range(3):
        with pytest.raises(StoreError, match="No space"):
            await exporter.step()
    last = write(path, 5)
    with pytest.raises(StoreError):
        await exporter.step()
    assert receiver.got == numbers(half), "sent once, and nothing after it"
    file.full = False
    assert await exporter.step()
    assert receiver.got == numbers(last)


async def test_a_replaced_log_is_reported_and_not_sent(path: Path, file: FullDisk) -> None:
    receiver = Receiver()
    half = write(path, 5)
    exporter = exporter_of(path, file, receiver)
    await exporter.step()
    aside = path.parent.rename(path.parent.with_name("evidence"))
    write(path, 20)
    for _ in range(2):
        with pytest.raises(AuditLogError, match="does not follow"):
            await exporter.step()
    assert value("log_refused") == 1
    assert receiver.got == numbers(half)
    path.parent.rename(path.parent.with_name("forged"))
    aside.rename(path.parent)
    last = write(path, 1)
    assert await exporter.step()
    assert (value("log_refused"), receiver.got) == (0, numbers(last))


async def test_records_rejected_by_the_collector_are_counted_and_not_resent(path: Path, file: FullDisk) -> None:
    receiver = Receiver()
    receiver.rejects = 2
    last = write(path, 5)
    before, sent = value("rejected_total") or 0, value("sent_total") or 0
    exporter = exporter_of(path, file, receiver)
    assert await exporter.step()
    assert not await exporter.step()
    assert receiver.got == numbers(last)
    assert (value("rejected_total"), value("sent_total")) == (before + 2, sent + last - 2)


async def test_the_exporter_backs_off_after_failures_and_stops_when_cancelled(path: Path, file: FullDisk) -> None:
    receiver = Receiver()
    receiver.failing = ConnectionResetError()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 6:
            receiver.failing = None
        await asyncio.sleep(0)
        if receiver.got:
            await asyncio.Event().wait()

    last = write(path, 3)
    exporter = Exporter("siem", path.parent, file, receiver, sleep=sleep, chance=lambda: 0.0)
    running = asyncio.create_task(exporter.run())
    await until(lambda: receiver.got and waits[-1] == module.POLL_SECONDS)
    assert waits[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert receiver.got == numbers(last)
    assert value("behind_lines") == 0
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert value("behind_lines") is None, "nobody knows it any more"


async def test_one_process_at_a_time_exports(path: Path, file: FullDisk) -> None:
    receiver = Receiver()
    write(path, 3)
    turns = asyncio.Semaphore(0)

    async def sleep(_: float) -> None:
        turns.release()
        await asyncio.sleep(0)

    with file.lock():
        second = CursorFile(file._path)
        running = asyncio.create_task(Exporter("siem", path.parent, second, receiver, sleep=sleep).run())
        for _ in range(3):
            await turns.acquire()
        assert not receiver.got
    async with asyncio.timeout(60):
        while not receiver.got:
            await turns.acquire()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
