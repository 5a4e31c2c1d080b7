"""A line of the proxy's access log as a record of the audit log. Pure.

The proxy decides most requests by itself and writes one JSON object per line: ``time``, ``request_id``, ``address``,
``method``, ``path``, ``operation``, ``principal``, ``credential``, ``pass_id``, ``roles``, ``decision``, ``status``,
``reason``, and, where the proxy can count, ``counter``. Unknown fields are left out; a line that is no JSON object
becomes a record of its own with its size and digest, for a line must not disappear because it is strange.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from gateway.audit_chain import AccessPosition, AuditRecord, digest_of
from gateway.token_book import redact

MAX_ACCESS_LINE_BYTES = 64 << 10
"""A longer line is recorded by size and digest alone."""
MALFORMED = "malformed line of the access log"
_FIELD_CHARACTERS = 128
_PATH_CHARACTERS = 1024
_ROLE_CHARACTERS = 64
_MAX_ROLES = 8
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SPLIT = re.compile(r'[,\s"\[\]]+')
_DECISIONS: dict[str, Literal["allow", "deny"]] = {
    "allow": "allow",
    "allowed": "allow",
    "deny": "deny",
    "denied": "deny",
}


def record_of(line: bytes, position: AccessPosition) -> AuditRecord:
    """The record of one ``line`` (without its newline) that ends at ``position``."""
    try:
        fields = msgspec.json.decode(line) if len(line) <= MAX_ACCESS_LINE_BYTES else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        fields = None
    if not isinstance(fields, dict):
        detail = {"bytes": str(len(line)), "sha256": digest_of(line)}
        return AuditRecord(event="traffic", reason=MALFORMED, detail=detail, position=position)
    counter = fields.get("counter")
    if type(counter) is int and counter > 0:
        position = msgspec.structs.replace(position, counter=counter)
    roles = _roles(fields.get("roles"))
    return AuditRecord(
        event="traffic",
        at=_text(fields, "time") or msgspec.UNSET,
        request_id=_text(fields, "request_id"),
        address=_text(fields, "address"),
        principal=_text(fields, "principal"),
        credential=_text(fields, "credential"),
        pass_id=_text(fields, "pass_id") or msgspec.UNSET,
        roles=roles or msgspec.UNSET,
        method=_text(fields, "method"),
        path=redact(_text(fields, "path", _PATH_CHARACTERS).partition("?")[0]),
        operation=_text(fields, "operation"),
        decision=_decision(fields),
        status=_status(fields.get("status")),
        reason=_text(fields, "reason"),
        position=position,
    )


def missing_before(before: AccessPosition, record: AuditRecord) -> AuditRecord | None:
    """A ``gap`` when lines are missing between ``before`` and ``record``, by the proxy's own count.

    It starts at 1, and again whenever the proxy does.
    """
    here = record.position
    if not isinstance(here, AccessPosition) or not here.counter or not before.counter:
        return None
    if here.counter in {before.counter + 1, 1}:
        return None
    reached = msgspec.structs.replace(before, counter=here.counter - 1)
    return gap("requests are missing in the access log", before, reached, found_counter=here.counter)


def gap(reason: str, before: AccessPosition, position: AccessPosition, **detail: object) -> AuditRecord:
    """The record that says that lines are missing between two positions, and how it is known."""
    facts = {"after_file": before.file, "after_offset": str(before.offset), "after_counter": str(before.counter)}
    facts |= {name: str(value) for name, value in detail.items()}
    return AuditRecord(event="gap", reason=reason, detail=facts, position=position)


def _text(fields: dict[str, Any], name: str, limit: int = _FIELD_CHARACTERS) -> str:
    value = fields.get(name)
    if value is None or value == "-" or isinstance(value, dict | list):
        return ""
    return _CONTROL.sub("�", str(value)[:limit])


def _roles(value: object) -> tuple[str, ...]:
    if isinstance(value, str) and value != "-":
        value = [role for role in _SPLIT.split(value) if role]
    if not isinstance(value, list):
        return ()
    return tuple(_CONTROL.sub("", str(role)[:_ROLE_CHARACTERS]) for role in value[:_MAX_ROLES])


def _status(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:4])
    return value if isinstance(value, int) and 0 <= value <= 999 else 0


def _decision(fields: dict[str, Any]) -> Literal["", "allow", "deny"]:
    """As the proxy says; nothing when it does not say."""
    return _DECISIONS.get(_text(fields, "decision").lower(), "")
