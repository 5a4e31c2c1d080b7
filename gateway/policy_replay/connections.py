"""Records of connections of jobs to the outside. Pure.

Two writers tell of them: the auth service of what it decided for the proxy (``egress.connect``), and the process beside
the job's box of what it saw. What the second one let through, the first one decided about; what it refused, nobody
else has seen.
"""

from __future__ import annotations

from sluice.gateway.audit_log import AuditRecord
from sluice.gateway.authz import EGRESS_OPERATION

_ONLY_RECORDED = "audit: "
"""How the reason of a connection begins that was let through though the policy does not allow it."""


def is_egress(record: AuditRecord) -> bool:
    """Whether the policy for the way out decided what ``record`` tells."""
    if record.event == "decision":
        return record.operation == EGRESS_OPERATION and record.status in {200, 403}
    return record.event == "egress" and record.method == "TCP" and record.decision == "deny"


def was_allowed(record: AuditRecord) -> bool:
    """Whether the policy of that time allowed it."""
    return record.decision == "allow" and not record.reason.startswith(_ONLY_RECORDED)


def job_of(record: AuditRecord) -> str:
    """The name of the job; empty when nobody wrote it down."""
    return record.detail.get("job", "") if isinstance(record.detail, dict) else ""


def count_of(record: AuditRecord) -> int:
    """For how many connections the record stands."""
    text = record.detail.get("count", "1") if isinstance(record.detail, dict) else "1"
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 1
