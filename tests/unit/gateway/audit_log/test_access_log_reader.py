"""Copying the access log into the audit log: each line once, in order, whatever happens to either."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.gateway.audit_log import access_log_reader
from sluice.gateway.audit_log.access_lines import MALFORMED
from sluice.gateway.audit_log.access_log_reader import AccessLogReader
from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.log import AuditLog
from sluice.gateway.audit_log.verification import read_records, verify_log
from sluice.gateway.errors import AuditLogError


class World:
    """An access log and the audit log that it is copied into."""

    def __init__(self, directory: Path) -> None:
        self.access = directory / "access.jsonl"
        self.audit = directory / "audit" / "current.jsonl"
        self.log = AuditLog(self.audit)

    def write(self, *ids: object, end: str = "\n", **more: object) -> None:
        with self.access.open("a") as file:
            file.write("\n".join(json.dumps({"request_id": str(each), **more}) for each in ids) + end)

    def rotate(self, suffix: str = "1") -> None:
        self.access.rename(self.access.with_name(f"access.jsonl.{suffix}"))

    def drain(self) -> int:
        """Copy all available lines, as a new process would, and return their number."""
        tail, total = AccessLogReader(self.access, AuditLog(self.audit)), 0
        while taken := tail.step():
            total += taken
        return total

    @property
    def records(self) -> list[AuditRecord]:
        return [each for each in read_records(self.audit.parent) if each.event in {"traffic", "gap"}]

    @property
    def ids(self) -> list[str]:
        return [each.request_id or each.reason for each in self.records]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_step_reports_whether_the_reader_is_behind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that looked again after each line of a busy proxy would never rest."""
    monkeypatch.setattr(access_log_reader, "MAX_BATCH_BYTES", 100)
    tail = AccessLogReader(world.access, world.log)
    seen = []
    world.write(1)
    seen.append((tail.step(), tail.behind))
    world.write(*range(10, 14))
    seen.append((tail.step(), tail.behind))
    tail.step()
    world.write(20)
    world.rotate()
    world.write(30)
    seen.append((tail.step(), tail.behind))
    seen.append((tail.step(), tail.behind))
    seen.append((tail.step(), tail.behind))
    assert seen == [(1, False), (4, True), (1, True), (1, False), (0, False)]


def test_a_missing_or_empty_access_log_has_no_records(world: World) -> None:
    assert world.drain() == 0
    world.access.touch()
    assert world.drain() == 0


def test_every_line_is_taken_over_exactly_once(world: World) -> None:
    expected = []
    for number in range(10):
        world.write(number)
        expected.append(str(number))
        world.drain()
        assert world.drain() == 0
        assert world.ids == expected
    verify_log(world.audit.parent)


def test_an_incomplete_line_is_taken_over_when_it_ends(world: World) -> None:
    world.write("a")
    world.write("b", end="")
    world.drain()
    assert world.ids == ["a"]
    world.write(end="\n")
    world.drain()
    assert world.ids == ["a", "b"]


def test_rotation_loses_and_repeats_no_lines(world: World) -> None:
    world.write("a", "b")
    world.drain()
    world.write("c")
    world.rotate()
    world.drain()
    assert world.ids == ["a", "b", "c"], "what was renamed is read to its end"
    world.write("d")
    world.rotate("2")
    world.write("e")
    world.drain()
    assert world.ids == ["a", "b", "c", "d", "e"]
    (world.access.parent / "access.jsonl.1").unlink()
    assert world.drain() == 0


def test_the_incomplete_last_line_of_a_rotated_file_is_taken_over(world: World) -> None:
    world.write("a")
    world.write("b", end="")
    world.rotate()
    world.write("c")
    world.drain()
    assert world.ids == ["a", "b", "c"]


def test_a_log_rotated_by_copy_and_truncate_loses_no_lines(world: World) -> None:
    world.write("a", "b")
    world.drain()
    (world.access.parent / "access.jsonl.1").write_bytes(world.access.read_bytes())
    world.access.write_bytes(b"")
    world.write("c")
    world.drain()
    assert world.ids == ["a", "b", "c"]


def test_a_rotated_file_is_deleted_only_after_it_was_taken_over_completely(world: World) -> None:
    tail = AccessLogReader(world.access, AuditLog(world.audit))
    world.write("a")
    world.rotate("1")
    world.write("b")
    world.rotate("2")
    assert tail.drop_read() == 0
    world.write("c")
    for expected in (["1", "2"], ["2"], []):
        tail.step()
        tail.drop_read()
        assert [each.name[-1] for each in sorted(world.access.parent.glob("access.jsonl.*"))] == expected
    assert world.drain() == 0
    assert world.ids == ["a", "b", "c"]
    assert world.access.exists()


def test_a_deleted_access_log_is_recorded_as_a_gap(world: World) -> None:
    world.write("a")
    world.drain()
    world.access.unlink()
    world.write("b")
    world.drain()
    assert world.ids == ["a", "the access log that was being read is gone", "b"]
    assert world.drain() == 0


def test_a_truncated_access_log_is_recorded_as_a_gap(world: World) -> None:
    world.write("a", "b")
    world.drain()
    world.access.write_bytes(world.access.read_bytes().splitlines(keepends=True)[0])
    world.drain()
    assert world.ids == ["a", "b", "the access log was cut short", "a"]


def test_an_incomplete_line_of_a_killed_proxy_does_not_swallow_the_next_line(world: World) -> None:
    with world.access.open("w") as file:
        file.write('{"request_id":"killed","pat{"request_id":"next"}\n{"request_id":"after"}\n')
    world.drain()
    assert world.ids == [MALFORMED, "next", "after"]


def test_an_overlong_line_is_split_into_several_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log_reader, "MAX_BATCH_BYTES", 100_000)
    with world.access.open("w") as file:
        file.write("x" * 250_000 + "\n")
    world.write("after")
    world.drain()
    assert world.ids == [MALFORMED] * 3 + ["after"]
    details = [each.detail for each in world.records[:3]]
    assert [each["bytes"] for each in details if isinstance(each, dict)] == ["100000", "100000", "50000"]


def test_two_alternating_readers_take_over_no_line_twice(world: World) -> None:
    one, other = (
        AccessLogReader(world.access, AuditLog(world.audit)),
        AccessLogReader(world.access, AuditLog(world.audit)),
    )
    for number in range(20):
        world.write(number)
        (one if number % 2 else other).step()
        other.step()
        one.step()
    assert world.ids == [str(number) for number in range(20)]


def test_a_batch_torn_by_a_crash_is_completed_without_duplicates(world: World) -> None:
    """A crash leaves whole records and part of another: exactly the missing lines are taken over."""
    world.write(*range(10))
    world.drain()
    whole = world.audit.read_bytes()
    lines = whole.splitlines(keepends=True)
    kept = world.audit.with_name("traffic-000000001.jsonl")
    data = kept.read_bytes()
    for cut in range(len(lines[0]) + 1, len(whole), 97):
        world.audit.write_bytes(whole[:cut])
        # Its record is gone: what is there counts for nothing, be it whole or not.
        kept.write_bytes(data[:cut])
        world.drain()
        assert world.ids == [str(number) for number in range(10)], cut
        verify_log(world.audit.parent)


def test_an_access_log_larger_than_one_batch_is_taken_over_completely(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(*range(1200))
    monkeypatch.setattr(access_log_reader, "MAX_BATCH_BYTES", 1000)
    assert world.drain() == 1200
    assert world.ids == [str(number) for number in range(1200)]
    assert verify_log(world.audit.parent).requests == 1200


def test_secrets_in_access_lines_are_redacted(world: World) -> None:
    token = f"slc_0123456789ab_{'f' * 64}"
    world.write("a", path=f"/v1/{token}")
    world.write("b", path="/v1/eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.c2ln")
    world.write("c", path=f"/v1/sls_0123456789ab_{'e' * 64}", reason="Bearer hunter2")
    world.drain()
    kept = b"".join(each.read_bytes() for each in world.audit.parent.iterdir() if each.is_file())
    for secret in (b"ffff", b"eyJ", b"eeee", b"hunter2"):
        assert secret not in kept, secret
    assert world.ids == ["a", "b", "c"]
    assert world.records[0].path == "/v1/slc_0123456789ab_(secret)"


def test_an_unreadable_access_log_is_an_error(world: World) -> None:
    world.access.mkdir()
    with pytest.raises(AuditLogError, match="cannot read"):
        world.drain()
