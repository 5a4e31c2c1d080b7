"""The audit log's files: continued by the next writer, repaired after a crash, refused if touched."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.audit_log.chain import MAX_LINE_BYTES, AccessPosition, AuditRecord
from sluice.gateway.audit_log.keys import SIGNING_KEY, VERIFICATION_KEY
from sluice.gateway.audit_log.log import AuditLog, AuditLogLimits
from sluice.gateway.audit_log.segments import CHECKPOINT, segments
from sluice.gateway.audit_log.verification import read_records, verify_log
from sluice.gateway.errors import AuditLogError


def decision(path: str = "/v1/jobs") -> AuditRecord:
    return AuditRecord(event="decision", path=path, decision="allow", status=200)


def events(path: Path) -> list[str]:
    return [record.event for record in read_records(path.parent)]


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit files of this process to ``size`` bytes with setrlimit(2), like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)

    def __call__(self) -> dt.datetime:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += dt.timedelta(seconds=seconds)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "current.jsonl"


def test_log_begins_and_ends_with_a_checkpoint_and_is_continued(path: Path) -> None:
    for _ in range(3):
        log = AuditLog(path)
        log.append(decision())
        log.close()
    assert events(path) == ["checkpoint", *["decision", "checkpoint"] * 3]
    assert verify_log(path.parent).unsigned == 0


def test_files_of_the_log_are_private_except_verification_key_and_checkpoint(path: Path) -> None:
    AuditLog(path).close()
    modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    public = {VERIFICATION_KEY, CHECKPOINT}
    assert all(mode == (0o644 if name in public else 0o600) for name, mode in modes.items())
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert SIGNING_KEY in modes


@pytest.mark.parametrize("cut", [1, 20, 150])
def test_log_is_continued_after_a_line_truncated_by_a_crash(path: Path, cut: int) -> None:
    log = AuditLog(path, clock=Clock())
    log.append(decision())
    log.append(decision())
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    other = AuditLog(path, clock=Clock())
    other.append(decision())
    other.close()
    assert events(path) == ["checkpoint", "decision", "recovered", "checkpoint", "decision", "checkpoint"]
    (recovered,) = (record for record in read_records(path.parent) if record.event == "recovered")
    assert recovered.detail == {
        "dropped_bytes": str(len(whole.splitlines(keepends=True)[-1]) - cut),
        "dropped_sha256": recovered.detail["dropped_sha256"],  # type: ignore[index]
    }
    verify_log(path.parent)


def test_running_writer_notices_that_the_log_was_cut(path: Path) -> None:
    log = AuditLog(path)
    log.append(decision())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(AuditLogError, match="was cut short"):
        log.append(decision())


@pytest.mark.parametrize("gone", [("current.jsonl",), ("current.jsonl", SIGNING_KEY)], ids=["log", "log and key"])
def test_running_writer_starts_no_new_log_when_its_files_were_deleted(path: Path, gone: tuple[str, ...]) -> None:
    log = AuditLog(path)
    log.append(decision())
    for name in gone:
        (path.parent / name).unlink()
    for _ in range(2):
        with pytest.raises(AuditLogError, match=r"had 2 lines before|is gone"):
            log.append(decision())


def test_log_whose_end_was_removed_is_not_continued(path: Path) -> None:
    log = AuditLog(path)
    log.append(decision())
    log.close()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(AuditLogError, match="ends at line 2, but line 3 was signed"):
        AuditLog(path)


def test_log_with_a_changed_end_is_not_continued(path: Path) -> None:
    log = AuditLog(path, clock=Clock())
    log.append(decision("/one"))
    log.append(decision("/two"))
    path.write_bytes(path.read_bytes().replace(b"/one", b"/eno"))
    with pytest.raises(AuditLogError, match="line 3 does not follow"):
        AuditLog(path)


def test_log_whose_signing_key_was_deleted_is_not_continued(path: Path) -> None:
    AuditLog(path).close()
    (path.parent / SIGNING_KEY).unlink()
    with pytest.raises(AuditLogError, match="which signs the audit log, is missing"):
        AuditLog(path)


def test_signing_key_readable_by_others_is_refused(path: Path) -> None:
    AuditLog(path).close()
    (path.parent / SIGNING_KEY).chmod(0o644)
    with pytest.raises(Exception, match="others can read"):
        AuditLog(path)


def test_several_writers_continue_one_chain(path: Path) -> None:
    """Each writer reads what the others wrote; nothing is lost or written twice."""
    limits = AuditLogLimits(checkpoint_records=7, segment_bytes=20_000)
    logs = [AuditLog(path, limits=limits) for _ in range(4)]

    def write(log: AuditLog, name: str) -> None:
        for number in range(100):
            log.append(decision(f"/{name}/{number}"))
        log.close()

    threads = [threading.Thread(target=write, args=(log, str(index))) for index, log in enumerate(logs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = [record.path for record in read_records(path.parent) if record.event == "decision"]
    assert sorted(paths) == sorted(f"/{name}/{number}" for name in range(4) for number in range(100))
    for name in range(4):
        assert [each for each in paths if each.startswith(f"/{name}/")] == [f"/{name}/{n}" for n in range(100)]
    assert len(segments(path.parent)) > 3
    verify_log(path.parent)


def test_writer_that_waits_too_long_for_the_lock_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = AuditLog(path), AuditLog(path)
    monkeypatch.setattr("sluice.gateway.audit_log.segments.LOCK_TIMEOUT_SECONDS", 0.01)
    with one._writing(), pytest.raises(AuditLogError, match="another process has been writing"):
        other.append(decision())
    other.append(decision())


def test_checkpoints_are_written_after_a_number_of_records_and_after_a_time(path: Path) -> None:
    clock = Clock()
    log = AuditLog(path, clock=clock, limits=AuditLogLimits(checkpoint_records=3))
    for _ in range(4):
        log.append(decision())
    assert events(path) == ["checkpoint", *["decision"] * 3, "checkpoint", "decision"]
    log.maintain()
    assert verify_log(path.parent).unsigned == 1, "not due yet"
    clock.move(10)
    log.maintain()
    assert verify_log(path.parent).unsigned == 0
    clock.move(10)
    log.maintain()
    assert events(path)[-2:] == ["decision", "checkpoint"], "a quiet log does not grow"
    clock.move(10)
    log.append(decision())
    assert events(path)[-2:] == ["decision", "checkpoint"]


def test_checkpoint_file_holds_the_last_checkpoint_of_all_writers(path: Path) -> None:
    one, other = AuditLog(path), AuditLog(path)
    one.event("token.created", "local:ada", {"id": "3f9c0a1b2d4e"})
    other.event("token.revoked", "local:ada", {"id": "3f9c0a1b2d4e"})
    other.close()
    one.close()
    assert (path.parent / CHECKPOINT).read_bytes() == path.read_bytes().splitlines(keepends=True)[-1]


def test_audited_actions_are_signed_immediately(path: Path) -> None:
    log = AuditLog(path)
    log.event("login", "ada", {"method": "oidc", "empty": "", "count": 3})
    log.event("policy.changed", "local:root", "3 rules")
    records = [record for record in read_records(path.parent) if record.event == "act"]
    assert [(record.kind, record.principal) for record in records] == [
        ("login", "ada"),
        ("policy.changed", "local:root"),
    ]
    assert records[0].detail == {"method": "oidc", "count": "3"}
    assert records[1].detail == {"text": "3 rules"}
    assert verify_log(path.parent).unsigned == 0


SECRETS = [
    "slc_0123456789ab_" + "5ec2e7" * 10 + "5ec2",
    "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2VjcmV0c2lnbmF0dXJl",
    "Bearer hunter2hunter2",
    "-----BEGIN EC PRIVATE KEY-----\nhunter2hunter2",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_redacted_from_records(path: Path, secret: str) -> None:
    log = AuditLog(path)
    log.append(AuditRecord(event="decision", path=f"/v1/{secret}", reason=secret, principal=secret, address=secret))
    log.event("token.created", secret, {"token": secret, secret: "x"})
    log.event("token.created", "ada", secret)
    written = path.read_bytes()
    for part in ("5ec2e75ec2e7", "c2VjcmV0", "hunter2"):
        assert part.encode() not in written


def test_invalid_unicode_is_recorded(path: Path) -> None:
    """What a client sends need not be UTF-8, and a refusal must be on record all the same."""
    log = AuditLog(path)
    log.append(decision("/v1/\udcff\x00\n\u2028"))
    verify_log(path.parent)
    assert b"udcff" in path.read_bytes()


def test_large_detail_of_an_audited_action_is_truncated(path: Path) -> None:
    log = AuditLog(path)
    log.event("x", "ada", {f"name{number}" * 50: "v" * 10_000 for number in range(100)})
    (record,) = (record for record in read_records(path.parent) if record.event == "act")
    assert isinstance(record.detail, dict)
    assert len(record.detail) == 16
    assert max(map(len, record.detail.values())) == 512


def test_segments_are_closed_and_compressed_and_the_chain_continues(path: Path) -> None:
    clock = Clock()
    log = AuditLog(path, clock=clock, limits=AuditLogLimits(segment_bytes=3000, segment_age=dt.timedelta(hours=1)))
    for number in range(30):
        log.append(decision(f"/{number}"))
    before = segments(path.parent)
    assert len(before) == 2
    log.maintain()
    assert all(each.compressed.exists() and not each.path.exists() for each in before)
    clock.move(3600)
    log.append(decision("/30"))
    assert len(segments(path.parent)) == len(before) + 1, "by age too"
    log.append(decision("/31"))
    log.close()
    AuditLog(path, clock=clock).close()
    paths = [record.path for record in read_records(path.parent) if record.event == "decision"]
    assert paths == [f"/{number}" for number in range(32)]
    proved = verify_log(path.parent)
    assert proved.segments == len(before) + 1


def test_age_of_a_segment_counts_from_its_first_record_for_every_writer(path: Path) -> None:
    clock, limits = Clock(), AuditLogLimits(segment_age=dt.timedelta(hours=1))
    log = AuditLog(path, clock=clock, limits=limits)
    for _ in range(300):
        log.append(decision())
    assert path.stat().st_size > 64 << 10, "more than is read back at once"
    clock.move(3500)
    other = AuditLog(path, clock=clock, limits=limits)
    other.append(decision())
    assert segments(path.parent) == []
    clock.move(100)
    other.append(decision())
    assert len(segments(path.parent)) == 1
    log.append(decision())
    verify_log(path.parent)


def test_log_is_continued_after_a_compressed_segment(path: Path) -> None:
    """The current segment is still empty: the end of the chain is in the segment before it."""
    log = AuditLog(path, limits=AuditLogLimits(segment_bytes=500))
    log.append(decision())
    log.maintain()
    log.close()
    assert path.read_bytes() == b""
    log = AuditLog(path)
    log.append(decision("/next"))
    log.close()
    assert verify_log(path.parent).state.count == log.state.count


def test_position_of_the_access_log_is_found_again_across_segments(path: Path) -> None:
    clock = Clock()
    log = AuditLog(path, clock=clock, limits=AuditLogLimits(checkpoint_records=10, segment_bytes=6000))
    assert log.position() is None
    nowhere, reached = AccessPosition("", 0), AccessPosition("f", 2)
    assert log.append_access_lines(b"1\n", after=nowhere, position=reached)
    assert not log.append_access_lines(b"1\n", after=nowhere, position=reached), "somebody was quicker"
    for _ in range(50):
        log.append(decision())
        again = AuditLog(path, clock=clock)
        assert again.position() == reached
        again._release()
    assert len(segments(path.parent)) >= 2


def test_oversized_record_is_refused_and_the_chain_continues(path: Path) -> None:
    log = AuditLog(path)
    text = "é" * 2000
    large = AuditRecord(
        event="decision", path=text, reason=text, principal=text, address=text, operation=text, request_id=text
    )
    with pytest.raises(AuditLogError, match="larger than"):
        log.append(large)
    log.append(decision())
    log.close()
    assert max(map(len, path.read_bytes().splitlines())) <= MAX_LINE_BYTES
    verify_log(path.parent)


@pytest.mark.parametrize("room", [0, 40])
def test_record_that_a_full_disk_truncates_is_an_error_and_leaves_no_trace(path: Path, room: int) -> None:
    """A decision that is not on record must not be given to its requester."""
    log = AuditLog(path)
    log.append(decision())
    with file_size_limit(path.stat().st_size + room), pytest.raises(AuditLogError, match="cannot write"):
        log.append(decision())
    log.append(decision())
    log.close()
    assert events(path) == ["checkpoint", "decision", "decision", "checkpoint"]


def test_symbolic_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    path.parent.mkdir(mode=0o700)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AuditLogError, match="cannot open"):
        AuditLog(path)


def test_required_fields_are_always_written_and_unset_ones_are_left_out(path: Path) -> None:
    log = AuditLog(path)
    log.append(decision())
    line: dict[str, Any] = json.loads(path.read_bytes().splitlines()[-1])
    assert {"event", "sequence", "time", "previous", "request_id", "principal", "operation", "decision"} <= line.keys()
    assert not {"kind", "detail", "position", "signature"} & line.keys()


def test_records_are_signed_although_the_clock_was_set_back(path: Path) -> None:
    clock = Clock()
    with contextlib.closing(AuditLog(path, clock=clock)) as log:
        clock.now -= dt.timedelta(hours=1)
        log.append(decision())
        log.maintain()
        assert verify_log(path.parent).unsigned == 0
