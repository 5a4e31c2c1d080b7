"""Following a log while it is written: each record once.

This holds across segments that are closed and compressed meanwhile.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.log import AuditLog, AuditLogLimits
from sluice.gateway.audit_log.log_reader import Filter, follow
from sluice.gateway.audit_log.segments import segments
from sluice.gateway.audit_log.verification import read_records
from sluice.gateway.errors import AuditLogError


class Enough(Exception):
    """Stops an endless iteration."""


def watched(directory: Path, wait: Callable[[], None]) -> list[AuditRecord | None]:
    """Return what a follower yields until ``wait`` raises :class:`Enough`."""
    seen: list[AuditRecord | None] = []
    with contextlib.suppress(Enough):
        for record in follow(directory, wait=wait):
            seen.append(record)  # noqa: PERF402  what came before the end is wanted
    return seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "current.jsonl"


def decision(number: int) -> AuditRecord:
    return AuditRecord(event="decision", path=f"/{number}")


def test_following_yields_every_record_once_in_order_across_segments(path: Path) -> None:
    log = AuditLog(path, limits=AuditLogLimits(segment_bytes=1500))
    for number in range(10):
        log.append(decision(number))
    rounds = iter(range(10, 60, 5))

    def more() -> None:
        begin = next(rounds, None)
        if begin is None:
            raise Enough
        for number in range(begin, begin + 5):
            log.append(decision(number))
        if begin % 3 == 0:
            log.maintain()

    seen = watched(path.parent, more)
    assert len(segments(path.parent)) > 5
    paths = [each.path for each in seen if each is not None and each.event == "decision"]
    assert paths == [f"/{number}" for number in range(60)]
    assert seen.count(None) == 1


def test_records_written_while_following_come_after_the_end_marker(path: Path) -> None:
    log = AuditLog(path, limits=AuditLogLimits(segment_bytes=900))
    log.append(decision(0))
    waits = iter(range(1, 7))

    def more() -> None:
        number = next(waits, None)
        if number is None:
            raise Enough
        log.append(decision(number))
        log.maintain()

    seen = ["mark" if record is None else record.path for record in watched(path.parent, more)]
    assert [each for each in seen if each] == ["/0", "mark", "/1", "/2", "/3", "/4", "/5", "/6"]


def test_a_line_that_breaks_the_chain_ends_following_with_an_error(path: Path) -> None:
    log = AuditLog(path)
    log.append(decision(0))

    def harm() -> None:
        with path.open("ab") as file:
            file.write(b'{"event":"decision","sequence":3,"previous":"0"}\n')

    with pytest.raises(AuditLogError, match="line 3 does not follow"):
        for _ in follow(path.parent, wait=harm):
            pass


@pytest.mark.parametrize("last", [0, 1, 3, 10, 1000])
def test_the_last_records_are_read_without_reading_the_whole_log(path: Path, last: int) -> None:
    log = AuditLog(path, limits=AuditLogLimits(segment_bytes=1500))
    for number in range(30):
        log.append(decision(number))
    log.maintain()
    whole = [record.sequence for record in read_records(path.parent)]
    read = [record.sequence for record in read_records(path.parent, last=last)]
    assert read == whole[len(whole) - len(read) :]
    assert len(read) >= min(last, len(whole))
    assert len(read) < len(whole) or last >= 10


NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("wanted", "admitted"),
    [
        (Filter(), True),
        (Filter(principal="ada"), True),
        (Filter(principal="ad"), False),
        (Filter(principal="a?a"), True),
        (Filter(operation="jobs.*"), True),
        (Filter(operation="Jobs.*"), False),
        (Filter(decision="deny"), False),
        (Filter(since=NOON), True),
        (Filter(since=NOON + dt.timedelta(seconds=1)), False),
        (Filter(until=NOON), False),
        (Filter(until=NOON + dt.timedelta(seconds=1)), True),
    ],
)
def test_filter_admits_matching_records_only(wanted: Filter, admitted: bool) -> None:
    record = AuditRecord(
        event="decision", principal="ada", operation="jobs.list", decision="allow", time="2026-03-01T12:00:00.000Z"
    )
    assert wanted.admits(record) is admitted


@pytest.mark.parametrize("at", ["2026-03-01T11:59:00Z", "2026-03-01T11:59:00"])
def test_filter_uses_the_time_of_the_request(at: str) -> None:
    record = AuditRecord(event="traffic", at=at, time="2026-03-01T12:00:00.000Z")
    assert not Filter(since=NOON).admits(record)
    assert Filter(until=NOON).admits(record)


def test_filter_uses_the_record_time_if_the_request_time_is_invalid() -> None:
    record = AuditRecord(event="traffic", at="noonish", time="2026-03-01T12:00:00.000Z")
    assert Filter(since=NOON).admits(record)
