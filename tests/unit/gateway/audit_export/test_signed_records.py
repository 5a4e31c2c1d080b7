"""What is exported from a log: each signed message once and in order, nothing of another log.

An export can continue from any position.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.gateway.audit_export import reader
from sluice.gateway.audit_export.cursor import Cursor, CursorFile
from sluice.gateway.audit_export.reader import Message, SignedRecords
from sluice.gateway.audit_log.access_log_reader import AccessLogReader
from sluice.gateway.audit_log.chain import AuditRecord, verify
from sluice.gateway.audit_log.keys import VERIFICATION_KEY, VerificationKey
from sluice.gateway.audit_log.log import AuditLog, AuditLogLimits
from sluice.gateway.audit_log.segments import CHECKPOINT, segments
from sluice.gateway.errors import AuditLogError

SMALL = AuditLogLimits(segment_bytes=1500, checkpoint_age=dt.timedelta(0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "current.jsonl"


def write(path: Path, count: int, requests: int = 0, limits: AuditLogLimits = SMALL) -> None:
    """Write records and proxy requests, then close the log, which signs and flushes them."""
    access = path.parents[1] / "access.jsonl"
    with contextlib.closing(AuditLog(path, limits=limits)) as log:
        begin = log.state.count
        for number in range(count):
            log.append(AuditRecord(event="decision", path=f"/{begin + number}"))
        if requests:
            with access.open("a") as file:
                file.write("".join(json.dumps({"request_id": f"{begin}-{n}"}) + "\n" for n in range(requests)))
            AccessLogReader(access, log).step()
        log.maintain()


@contextlib.contextmanager
def records(path: Path, cursor: Cursor | None = None, *, requests: bool = True) -> Iterator[SignedRecords]:
    with contextlib.closing(SignedRecords(path.parent, cursor or Cursor(), requests=requests)) as found:
        yield found


def all_of(path: Path, cursor: Cursor | None = None, *, requests: bool = True) -> tuple[list[Message], Cursor]:
    """Return all messages after ``cursor`` and the position after them."""
    found: list[Message] = []
    with records(path, cursor, requests=requests) as source:
        while (batch := source.read()).messages:
            found += batch.messages
        return found, batch.end


def numbers(messages: list[Message]) -> list[str]:
    return [each.record.number for each in messages]


def test_exported_lines_are_unchanged_and_verify_as_a_chain(path: Path) -> None:
    for _ in range(4):
        write(path, 5, requests=3)
    assert len(segments(path.parent)) > 2
    messages, end = all_of(path)
    lines = [each.data for each in messages if each.record.part is not None and each.record.event != "traffic"]
    key = VerificationKey.read(path.parent / VERIFICATION_KEY)
    assert verify(lines, key.checker()) == end.state
    assert sum(each.record.event == "traffic" for each in messages) == 12
    assert [json.loads(each.data)["sequence"] for each in messages] == [each.record.sequence for each in messages]


def test_an_export_can_continue_from_every_position(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        write(path, 3, requests=3)
    whole, last = all_of(path)
    monkeypatch.setattr(reader, "MAX_BATCH_MESSAGES", 1)
    cursor = Cursor()
    found: list[Message] = []
    while cursor != last:
        with records(path, cursor) as source:
            batch = source.read()
        found += batch.messages
        cursor = batch.end
    assert numbers(found) == numbers(whole)
    assert all_of(path, last) == ([], last)


def test_records_written_later_are_read_next(path: Path) -> None:
    write(path, 3)
    with records(path) as source:
        first = source.read()
        assert not source.read().messages
        write(path, 10, requests=2)
        second = [message for _ in range(3) for message in source.read().messages]
        assert not source.read().messages
    assert numbers([*first.messages, *second]) == numbers(all_of(path)[0])


def test_a_batch_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, 40, limits=AuditLogLimits())
    monkeypatch.setattr(reader, "MAX_BATCH_BYTES", 2000)
    with records(path) as source:
        batches = list(iter(lambda: source.read().messages, ()))
    assert len(batches) > 3
    assert all(sum(len(each.data) for each in batch[:-1]) < 2000 for batch in batches)


def test_only_signed_records_are_exported(path: Path) -> None:
    write(path, 2)
    _, end = all_of(path)
    with contextlib.closing(AuditLog(path)) as log:
        log.append(AuditRecord(event="decision"))
        assert all_of(path, end)[0] == []
    assert [each.record.event for each in all_of(path, end)[0]] == ["decision", "checkpoint"]


def test_traffic_records_can_be_left_out(path: Path) -> None:
    write(path, 1, requests=5)
    messages, end = all_of(path, requests=False)
    assert [each.record.event for each in messages].count("access") == 1
    assert not [each for each in messages if each.record.event == "traffic"]
    assert end == all_of(path)[1]


def test_a_log_without_records_exports_nothing(path: Path) -> None:
    assert all_of(path) == ([], Cursor())


def test_a_log_that_replaced_another_is_refused(path: Path) -> None:
    write(path, 4)
    _, end = all_of(path)
    shutil.rmtree(path.parent)
    with pytest.raises(AuditLogError, match="now there is no checkpoint"):
        all_of(path, end)
    write(path, 2)
    with pytest.raises(AuditLogError, match="its end was removed, or it was replaced"):
        all_of(path, end)
    write(path, 20)
    with pytest.raises(AuditLogError, match="does not follow the line before it"):
        all_of(path, end)


def test_a_replaced_log_of_the_same_length_is_refused(path: Path) -> None:
    write(path, 4)
    _, end = all_of(path)
    shutil.rmtree(path.parent)
    write(path, 4)
    with pytest.raises(AuditLogError, match="has no line"):
        all_of(path, end)


def test_a_truncated_log_is_refused(path: Path) -> None:
    write(path, 6, limits=AuditLogLimits())
    _, middle = all_of(path)
    write(path, 6, limits=AuditLogLimits())
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))
    with pytest.raises(AuditLogError, match="has no line"):
        all_of(path, middle)


def test_a_changed_line_is_never_sent(path: Path) -> None:
    write(path, 6, limits=AuditLogLimits())
    path.write_bytes(path.read_bytes().replace(b'"/4"', b'"/x"'))
    with records(path) as source, pytest.raises(AuditLogError, match="does not follow"):
        source.read()


def test_a_forged_checkpoint_is_refused(path: Path) -> None:
    write(path, 2)
    aside = path.parent / CHECKPOINT
    aside.write_bytes(aside.read_bytes().replace(b'"signature":"', b'"signature":"AA'))
    with pytest.raises(AuditLogError, match="not one that this log's key has signed"):
        all_of(path)


def test_a_stored_position_is_locked_private_and_refused_when_damaged(tmp_path: Path) -> None:
    file = CursorFile(tmp_path / "export" / "siem.json")
    with file.lock() as mine:
        assert mine
        assert file.read() == Cursor()
        file.write(Cursor(7, "a" * 64, 3))
        with CursorFile(tmp_path / "export" / "siem.json").lock() as also:
            assert not also
    assert file.read() == Cursor(7, "a" * 64, 3)
    assert (tmp_path / "export" / "siem.json").stat().st_mode & 0o077 == 0
    for damaged in (b"", b"{}}", b'{"lines":-1}', b'{"lines":1,"digest":"0"}', b'{"line":1}'):
        (tmp_path / "export" / "siem.json").write_bytes(damaged)
        with pytest.raises(AuditLogError, match="damaged"):
            file.read()
