"""The auth service's writer of the audit log: in order, bounded, and never on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sluice.core.files.append_log import Disk
from sluice.core.home import Home
from sluice.gateway.audit_log.chain import MAX_LINE_BYTES, AuditRecord
from sluice.gateway.audit_log.log import AuditLog, audit_file
from sluice.gateway.audit_log.segments import LOCK
from sluice.gateway.audit_log.verification import verify_log
from sluice.gateway.audit_log.writer import AuditWriter
from sluice.gateway.credentials.token_last_used import TokensLastUsed, read_last_used
from sluice.gateway.errors import AuditLogError
from sluice.pki.assertions.principal import TokenId

DEADLINE_SECONDS = 30.0


def record(number: int, **fields: str) -> AuditRecord:
    return AuditRecord(event="decision", request_id=f"r-{number}", decision="allow", status=200, **fields)  # type: ignore[arg-type]


class SlowDisk(Disk):
    """A disk that blocks writes until the test allows them, and signals when a write is waiting."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.let.set()
        self.waited_for = threading.Event()
        self.broken = False
        self.threads: set[int] = set()

    def write(self, descriptor: int, data: bytes) -> int:
        self.threads.add(threading.get_ident())
        self.waited_for.set()
        assert self.let.wait(DEADLINE_SECONDS)
        if self.broken:
            raise OSError(28, "No space left on device")
        return super().write(descriptor, data)


@contextlib.asynccontextmanager
async def writing(home: Home, disk: Disk | None = None, limit: int = 100) -> AsyncIterator[AuditWriter]:
    with contextlib.closing(AuditLog(audit_file(home), disk=disk)) as log:
        writer = AuditWriter(log, limit=limit)
        try:
            yield writer
        finally:
            await writer.close()


@contextlib.contextmanager
def locked_by_another_process(home: Home) -> Iterator[None]:
    """Hold the log's lock through another open file, as another process would."""
    descriptor = os.open(audit_file(home).with_name(LOCK), os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def written(home: Home) -> list[str]:
    """The request ids in the log, in order."""
    lines = map(json.loads, audit_file(home).read_text().splitlines())
    return [each["request_id"] for each in lines if each["event"] == "decision"]


async def test_records_are_written_in_order_before_append_returns(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    async with writing(home, limit=1000) as writer:
        await writer.append(record(0))
        assert written(home) == ["r-0"]
        await asyncio.gather(*(writer.append(record(number)) for number in range(1, 900)))
        assert written(home) == [f"r-{number}" for number in range(900)]
        await writer.event("token.created", "local:ada", {"id": "x"})
    assert verify_log(audit_file(home).parent).state.count >= 901


async def test_held_lock_delays_the_record_without_blocking_the_event_loop(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    async with writing(home) as writer:
        with locked_by_another_process(home):
            waiting = asyncio.create_task(writer.append(record(1)))
            turns = 0
            while turns < 1000:  # which the loop could not take, were it the one that waits
                await asyncio.sleep(0)
                turns += 1
            assert not waiting.done()
            assert written(home) == []
        await asyncio.wait_for(waiting, DEADLINE_SECONDS)
        assert written(home) == ["r-1"]


async def test_slow_disk_does_not_block_the_event_loop(tmp_path: Path) -> None:
    home, disk = Home.at(tmp_path).create(), SlowDisk()
    async with writing(home, disk) as writer:
        disk.let.clear()
        disk.waited_for.clear()
        disk.threads.clear()
        waiting = asyncio.create_task(writer.append(record(1)))
        assert await asyncio.to_thread(disk.waited_for.wait, DEADLINE_SECONDS)
        # Those that come meanwhile are written together, after it.
        more = [asyncio.create_task(writer.append(record(number))) for number in range(2, 50)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in (waiting, *more))
        disk.let.set()
        await asyncio.wait_for(asyncio.gather(waiting, *more), DEADLINE_SECONDS)
        assert disk.threads == {thread for thread in disk.threads if thread != threading.get_ident()}
        assert written(home) == [f"r-{number}" for number in range(1, 50)]


async def test_full_disk_fails_all_waiting_records_and_no_later_ones(tmp_path: Path) -> None:
    home, disk = Home.at(tmp_path).create(), SlowDisk()
    async with writing(home, disk) as writer:
        disk.broken = True
        refused = await asyncio.gather(*(writer.append(record(number)) for number in range(20)), return_exceptions=True)
        assert {type(each) for each in refused} == {AuditLogError}
        assert len({id(each) for each in refused}) == 20
        assert all("No space left" in str(each) for each in refused)
        disk.broken = False
        await writer.append(record(99))
        assert written(home) == ["r-99"]


async def test_oversized_record_fails_alone(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    async with writing(home) as writer:
        fields = ("reason", "path", "principal", "method", "address", "credential", "operation", "kind")
        huge = record(1, **dict.fromkeys(fields, "x" * MAX_LINE_BYTES))
        outcomes = await asyncio.gather(
            writer.append(record(0)), writer.append(huge), writer.append(record(2)), return_exceptions=True
        )
        assert [type(each) for each in outcomes] == [type(None), AuditLogError, type(None)]
        assert written(home) == ["r-0", "r-2"]


async def test_records_beyond_the_queue_limit_are_refused_immediately(tmp_path: Path) -> None:
    home, disk = Home.at(tmp_path).create(), SlowDisk()
    async with writing(home, disk, limit=3) as writer:
        disk.let.clear()
        disk.waited_for.clear()
        first = asyncio.create_task(writer.append(record(0)))
        assert await asyncio.to_thread(disk.waited_for.wait, DEADLINE_SECONDS)
        waiting = [asyncio.create_task(writer.append(record(number))) for number in range(1, 4)]
        await asyncio.sleep(0)
        with pytest.raises(AuditLogError, match="3 audit records wait"):
            await writer.append(record(4))
        disk.let.set()
        await asyncio.wait_for(asyncio.gather(first, *waiting), DEADLINE_SECONDS)
        assert written(home) == ["r-0", "r-1", "r-2", "r-3"]


async def test_cancelled_append_does_not_affect_other_records(tmp_path: Path) -> None:
    home, disk = Home.at(tmp_path).create(), SlowDisk()
    async with writing(home, disk) as writer:
        disk.let.clear()
        disk.waited_for.clear()
        gone, stays = (asyncio.create_task(writer.append(record(number))) for number in (1, 2))
        assert await asyncio.to_thread(disk.waited_for.wait, DEADLINE_SECONDS)
        gone.cancel()
        disk.let.set()
        await asyncio.wait_for(stays, DEADLINE_SECONDS)
        assert written(home) == ["r-1", "r-2"]


def test_token_use_is_held_in_memory_until_it_is_flushed(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    now = 1000.0
    use = TokensLastUsed(home, lambda: now)
    use.used(TokenId("t-1"))
    now += 3600
    use.used(TokenId("t-2"))
    assert read_last_used(home) == {}
    use.flush()
    assert read_last_used(home) == {"t-1": 1000.0, "t-2": 4600.0}
    # What could not be written is written the next time.
    path = home.gateway / "token-use.json"
    path.unlink()
    path.mkdir()
    use.used(TokenId("t-3"))
    with pytest.raises(Exception, match="token-use"):
        use.flush()
    path.rmdir()
    use.flush()
    assert read_last_used(home).keys() == {"t-1", "t-2", "t-3"}
