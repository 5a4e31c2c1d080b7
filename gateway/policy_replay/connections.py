"""Reads audit log records about external connections of jobs. No I/O.

There are two kinds: records of the auth service about its decisions for the proxy (``egress.connect``), and records of
the process beside the job's sandbox about what it saw. What that process let through was decided by the auth service.
What it refused is only in its own records.
"""

from __future__ import annotations

from sluice.gateway.audit_log import AuditRecord
from sluice.gateway.authz import EGRESS_OPERATION

NAME_REFUSED = "not_allowed"
"""Reason of rows about names that were not resolved for the job because the policy allows no port of them."""
_ONLY_RECORDED = "audit: "
"""Prefix of the reason of connections that were let through although the policy does not allow them."""


def is_egress(record: AuditRecord) -> bool:
    """Whether ``record`` is about a decision of the egress policy."""
    if record.event == "decision":
        return record.operation == EGRESS_OPERATION and record.status in {200, 403}
    return record.event == "egress" and record.decision == "deny" and (record.method == "TCP" or is_name(record))


def is_name(record: AuditRecord) -> bool:
    """Whether a name was refused before any connection. The port is then unknown."""
    return record.event == "egress" and record.method == "DNS" and record.reason == NAME_REFUSED


def was_allowed(record: AuditRecord) -> bool:
    """Whether the policy at that time allowed it."""
    return record.decision == "allow" and not record.reason.startswith(_ONLY_RECORDED)


def job_of(record: AuditRecord) -> str:
    """The name of the job; empty if it was not recorded."""
    return record.detail.get("job", "") if isinstance(record.detail, dict) else ""


def count_of(record: AuditRecord) -> int:
    """The number of connections for which the record stands."""
    text = record.detail.get("count", "1") if isinstance(record.detail, dict) else "1"
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 1
