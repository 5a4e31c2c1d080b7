"""Audit records as syslog messages (RFC 5424), framed for TLS (RFC 5425). No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sluice.gateway.audit_export.reader import Message
from sluice.gateway.audit_log import AuditRecord

FACILITY_LOG_AUDIT = 13
"""RFC 5424, table 1."""
ERROR, WARNING, NOTICE, INFORMATIONAL = 3, 4, 5, 6
"""Severities: RFC 5424, table 2."""
APPLICATION = "sluice"
NONE = "-"
MAX_HOST_CHARACTERS = 255

_NOT_PRINTABLE = re.compile(r"[^\x21-\x7e]")


def severity_of(record: AuditRecord) -> int:
    """The severity of a record: gaps first, then denied requests, then administrative acts."""
    if record.event == "gap":
        return ERROR
    if record.event == "recovered" or record.decision == "deny":
        return WARNING
    return NOTICE if record.event == "act" else INFORMATIONAL


def frames(messages: Iterable[Message], host: str) -> bytes:
    """The messages of ``host`` as a byte stream. Each is preceded by its length (RFC 5425, 4.3)."""
    framed = []
    for each in messages:
        text = encode(each, host)
        framed.append(b"%d %b" % (len(text), text))
    return b"".join(framed)


def encode(message: Message, host: str) -> bytes:
    """One syslog message. MSG is the record's JSON, MSGID its event."""
    record = message.record
    priority = FACILITY_LOG_AUDIT * 8 + severity_of(record)
    name = _NOT_PRINTABLE.sub("", host)[:MAX_HOST_CHARACTERS] or NONE
    header = f"<{priority}>1 {record.time or NONE} {name} {APPLICATION} {NONE} {record.event} {NONE} "
    return header.encode() + message.data
