"""Converts rows about connections of jobs to records of the audit log. No I/O."""

from __future__ import annotations

import datetime as dt

import msgspec

from sluice.core import EgressJob, EgressVerdict, ReportedRow, rfc3339
from sluice.gateway.audit_log import AuditRecord

CONNECTION = "egress.connection"
"""The operation of these records. Requests to the proxy have the operation ``egress.connect``."""
ROW_ID = "id"
"""Key in the detail: id of the row from which the record was made."""
LOST = "connections of jobs to the outside were not recorded: too many waited"


def record_of(told: ReportedRow, job: EgressJob) -> AuditRecord:
    """The record of a row. The principal is the job's owner, the credential is the job's id."""
    row = told.row
    detail = {
        ROW_ID: row.id,
        "job": job.name,
        "attempt": str(row.attempt),
        "process": row.process,
        "reporter": told.reporter,
        "verdict": row.verdict.value,
        "count": str(row.count),
        "bytes_up": str(row.bytes_up),
        "bytes_down": str(row.bytes_down),
        "duration_ms": str(row.duration_ms),
    }
    return AuditRecord(
        event="egress",
        at=rfc3339(dt.datetime.fromtimestamp(row.opened_at, dt.UTC)),
        address=row.address,
        principal=job.owner,
        credential=row.job_id,
        method=row.protocol.upper(),
        path=row.target,
        operation=CONNECTION,
        decision="deny" if row.verdict is EgressVerdict.REFUSED else "allow",
        reason=row.reason,
        roles=job.roles or msgspec.UNSET,
        groups=job.groups or msgspec.UNSET,
        detail={name: text for name, text in detail.items() if text},
    )


def record_of_loss(reporter: str, rows: int) -> AuditRecord:
    """The record of a gap of ``rows`` missing rows."""
    return AuditRecord(event="gap", reason=LOST, detail={"reporter": reporter, "rows": str(rows)})


def row_id(record: AuditRecord) -> str:
    """The id of the row from which ``record`` was made; empty if there is none."""
    if record.event != "egress" or not isinstance(record.detail, dict):
        return ""
    return record.detail.get(ROW_ID, "")
