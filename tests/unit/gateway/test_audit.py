"""The audit log: what was written can be proved whole, and what was touched is found."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.audit_chain import GENESIS, MAX_LINE_BYTES, AuditRecord, ChainState, digest_of, seal, verify
from gateway.audit_log import AuditLog, verify_file
from gateway.errors import AuditLogError


def decision(path: str = "/v1/jobs") -> AuditRecord:
    return AuditRecord(event="decision", sequence=0, time="", previous="", path=path, decision="allow", status=200)


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond ``size`` (setrlimit(2)): a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def chain(count: int) -> list[bytes]:
    lines, state = [], ChainState()
    for number in range(count):
        line, state = seal(decision(f"/{number}"), state)
        lines.append(line)
    return lines


def test_empty_log_is_whole() -> None:
    assert verify([]) == ChainState(0, GENESIS)


def test_whole_log_is_counted() -> None:
    assert verify(chain(5)).count == 5


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(lambda lines: lines[1:], 1, id="first removed"),
        pytest.param(lambda lines: [*lines[:2], *lines[3:]], 3, id="one removed"),
        pytest.param(lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2, id="two swapped"),
        pytest.param(lambda lines: [*lines[:2], lines[1], *lines[2:]], 3, id="one repeated"),
        pytest.param(lambda lines: [lines[0].replace(b"allow", b"deny"), *lines[1:]], 2, id="one changed"),
        pytest.param(lambda lines: [lines[0].replace(b'"/0"', b'"/9"'), *lines[1:]], 2, id="path changed"),
        pytest.param(lambda lines: [*lines[:2], b"{}\n", *lines[2:]], 3, id="one inserted"),
        pytest.param(lambda lines: [*lines[:4], lines[4][:20]], 5, id="last cut short"),
        pytest.param(lambda lines: [*lines, *chain(1)], 6, id="another log appended"),
        pytest.param(lambda lines: [*lines[:2], b"\n", *lines[2:]], 3, id="empty line"),
    ],
)
def test_touched_log_is_found_at_the_line(change: Callable[[list[bytes]], list[bytes]], line: int) -> None:
    with pytest.raises(AuditLogError, match=f"line {line} "):
        verify(change(chain(5)))


def test_cut_end_shows_in_the_state() -> None:
    """The chain alone cannot show it: whoever keeps count and digest elsewhere can."""
    assert verify(chain(5)[:4]) != verify(chain(5))


def test_log_is_continued_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(3):
        log = AuditLog(path)
        log.append(decision())
        log.close()
    assert verify_file(path).count == 3
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", [1, 20, 150])
def test_log_is_continued_after_a_line_that_a_crash_cut_short(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.append(decision())
    log.append(decision())
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    log = AuditLog(path)
    log.append(decision())
    log.close()
    assert verify_file(path).count == 4
    assert path.read_bytes().startswith(whole[:-cut])
    assert b'"recovered"' in path.read_bytes()


def test_damaged_line_is_not_excused_by_an_ordinary_record_after_it() -> None:
    """Only the writer's own "recovered" record, chained over the very bytes, explains a damaged line."""
    damaged = b"garbage"
    after_damage = ChainState(3, digest_of(damaged))
    ordinary, _ = seal(decision(), after_damage)
    recovered, _ = seal(AuditRecord(event="recovered", sequence=0, time="", previous=""), after_damage)
    other, _ = seal(AuditRecord(event="recovered", sequence=0, time="", previous=""), ChainState(3, GENESIS))
    lines = [*chain(2), damaged + b"\n"]
    assert verify([*lines, recovered]).count == 4
    with pytest.raises(AuditLogError, match="line 3 is damaged"):
        verify([*lines, ordinary])
    with pytest.raises(AuditLogError, match="line 4 does not follow"):
        verify([*lines, other])
    with pytest.raises(AuditLogError, match="line 3 is damaged"):
        verify([*lines, damaged, recovered])


def test_second_writer_is_refused(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    with pytest.raises(AuditLogError, match="another process"):
        AuditLog(tmp_path / "audit.jsonl")
    log.close()


def test_record_that_is_too_large_is_refused_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    with pytest.raises(AuditLogError, match="larger than"):
        log.append(decision("/" + "a" * MAX_LINE_BYTES))
    log.append(decision())
    log.close()
    assert verify_file(path).count == 1


@pytest.mark.parametrize("room", [0, 40])
def test_record_that_does_not_fit_on_the_disk_is_an_error_and_leaves_no_trace(tmp_path: Path, room: int) -> None:
    """Whoever asks for a decision must not get one that is not on record."""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path)
    log.append(decision())
    with file_size_limit(path.stat().st_size + room), pytest.raises(AuditLogError, match="cannot write"):
        log.append(decision())
    log.append(decision())
    log.close()
    assert verify_file(path).count == 2


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditLogError, match="cannot open"):
        AuditLog(tmp_path / "audit.jsonl")
