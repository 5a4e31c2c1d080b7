"""Rows about connections of jobs as records of the audit log. Pure."""

from __future__ import annotations

import datetime as dt

import msgspec

from sluice.core import EgressJob, EgressVerdict, ReportedRow, rfc3339
from sluice.gateway.audit_log import AuditRecord

CONNECTION = "egress.connection"
"""The operation of these records; what the proxy was asked is ``egress.connect``."""
ROW_ID = "id"
"""In the detail: the row that a record was made of."""
LOST = "connections of jobs to the outside were not recorded: too many waited"


def record_of(told: ReportedRow, job: EgressJob) -> AuditRecord:
    """The record of a row; the job's owner is its principal, the job's id its credential."""
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
    """The record that says that ``rows`` are missing."""
    return AuditRecord(event="gap", reason=LOST, detail={"reporter": reporter, "rows": str(rows)})


def row_id(record: AuditRecord) -> str:
    """The row that a record was made of; empty: none."""
    if record.event != "egress" or not isinstance(record.detail, dict):
        return ""
    return record.detail.get(ROW_ID, "")
