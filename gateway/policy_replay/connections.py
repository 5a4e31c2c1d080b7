"""Records of connections of jobs to the outside. Pure.

Two writers tell of them: the auth service of what it decided for the proxy (``egress.connect``), and the process beside
the job's box of what it saw. What the second one let through, the first one decided about; what it refused, nobody
else has seen.
"""

from __future__ import annotations

from sluice.gateway.audit_log import AuditRecord
from sluice.gateway.authz import EGRESS_OPERATION

NAME_REFUSED = "not_allowed"
"""The reason of rows about names that do not exist for the job because the policy allows no port of them."""
_ONLY_RECORDED = "audit: "
"""How the reason of a connection begins that was let through though the policy does not allow it."""


def is_egress(record: AuditRecord) -> bool:
    """Whether the policy for the way out decided what ``record`` tells."""
    if record.event == "decision":
        return record.operation == EGRESS_OPERATION and record.status in {200, 403}
    return record.event == "egress" and record.decision == "deny" and (record.method == "TCP" or is_name(record))


def is_name(record: AuditRecord) -> bool:
    """Whether a name was refused before anybody connected to it: its port is not known."""
    return record.event == "egress" and record.method == "DNS" and record.reason == NAME_REFUSED


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
