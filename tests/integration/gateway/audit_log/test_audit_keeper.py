"""The maintenance tasks that run beside the auth service.

They copy the access log to the audit log, sign checkpoints and compress closed segments.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json

import pytest

from sluice.core.home import Home
from sluice.gateway.audit_log import maintenance as audit_keeper
from sluice.gateway.audit_log.access_log_reader import access_file
from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.log import AuditLog, AuditLogLimits, audit_directory, audit_file
from sluice.gateway.audit_log.maintenance import maintaining
from sluice.gateway.audit_log.segments import CHECKPOINT, segments
from sluice.gateway.audit_log.verification import read_records, verify_log
from tests.waiting import until

DEADLINE_SECONDS = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_keeper, "MAINTENANCE_SECONDS", 0.02)
    monkeypatch.setattr(audit_keeper, "ACCESS_POLL_SECONDS", 0.01)


async def test_the_access_log_is_copied_to_the_audit_log_across_restarts_and_rotation(short_home: Home) -> None:
    access = access_file(short_home)
    access.parent.mkdir()

    def taken() -> list[str]:
        return [each.request_id for each in read_records(audit_directory(short_home)) if each.event == "traffic"]

    def write(*ids: str) -> None:
        with access.open("a") as file:
            file.write("".join(json.dumps({"request_id": each, "principal": "ada"}) + "\n" for each in ids))

    with contextlib.closing(AuditLog(audit_file(short_home))) as log:
        async with maintaining(short_home, log):
            write("1", "2")
            await until(lambda: taken() == ["1", "2"], "the lines do not appear in the audit log")
    write("3")
    access.rename(access.with_name("access.jsonl.1"))
    write("4")
    with contextlib.closing(AuditLog(audit_file(short_home))) as log:
        async with maintaining(short_home, log):
            await until(lambda: taken() == ["1", "2", "3", "4"], "not every line once")
    assert verify_log(audit_directory(short_home)).unsigned == 0


async def test_audit_records_are_signed_by_stored_checkpoints_and_closed_segments_are_compressed(
    short_home: Home,
) -> None:
    directory = audit_directory(short_home)
    limits = AuditLogLimits(checkpoint_age=dt.timedelta(0), segment_bytes=1000)
    log = AuditLog(audit_file(short_home), limits=limits)
    async with maintaining(short_home, log):
        for _ in range(5):
            log.append(AuditRecord(event="decision", decision="allow"))
        await until(lambda: verify_log(directory).unsigned == 0, "no checkpoint")
        aside = directory / CHECKPOINT
        last = f'"sequence":{log.state.count},'.encode()
        await until(lambda: aside.exists() and last in aside.read_bytes(), "the last checkpoint is not put aside")
        closed = segments(directory)
        assert closed
        await until(lambda: all(not each.path.exists() for each in closed), "not compressed")
    log.close()
    verify_log(directory)


async def test_an_unreadable_access_log_does_not_stop_the_other_maintenance(
    short_home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    access_file(short_home).mkdir(parents=True)
    with contextlib.closing(AuditLog(audit_file(short_home))) as log:
        async with maintaining(short_home, log):
            await until(lambda: "cannot copy the access log" in caplog.text, "nobody is told")
            log.append(AuditRecord(event="decision", decision="deny"))
            access_file(short_home).rmdir()
            access_file(short_home).write_text('{"request_id":"1"}\n')
            await until(lambda: b'"access"' in audit_file(short_home).read_bytes(), "not tried again")
