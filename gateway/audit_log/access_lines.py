"""Converts lines of the proxy's access log to records of the audit log. No I/O.

The proxy decides most requests itself and writes one JSON object per line: ``time``, ``request_id``, ``address``,
``method``, ``path``, ``operation``, ``principal``, ``credential``, ``pass_id``, ``roles``, ``decision``, ``asked``,
``status``, ``reason``. Unknown fields are dropped. A line that is not a JSON object becomes a record with its size and
digest, so no line disappears because it is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from sluice.gateway.audit_log.chain import AccessPosition, AuditRecord, digest_of
from sluice.gateway.audit_log.secret_removal import record_without_secrets
from sluice.gateway.credentials import redact

MAX_ACCESS_LINE_BYTES = 64 << 10
"""Of a longer line only the size and digest are recorded."""
MALFORMED = "malformed line of the access log"
AUTH_SERVICE_OPERATION = "asked"
"""Detail of a request for which the proxy called the auth service: the operation that the auth service granted."""
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


def records_of(data: bytes, kept: AuditRecord) -> Iterator[AuditRecord]:
    """One record for each line in ``data``. ``kept`` is the record of the chain that stands for these lines."""
    pieces = (piece for line in data.removesuffix(b"\n").split(b"\n") for piece in _pieces(line))
    for part, piece in enumerate(pieces, 1):
        yield msgspec.structs.replace(
            record_without_secrets(record_of(piece)),
            sequence=kept.sequence,
            part=part,
            time=kept.time,
            previous=kept.previous,
        )


def record_of(line: bytes) -> AuditRecord:
    """The record of one ``line`` (without the newline)."""
    try:
        fields = msgspec.json.decode(line) if len(line) <= MAX_ACCESS_LINE_BYTES else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        fields = None
    if not isinstance(fields, dict):
        detail = {"bytes": str(len(line)), "sha256": digest_of(line)}
        return AuditRecord(event="traffic", reason=MALFORMED, detail=detail)
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
        detail=_detail(fields) or msgspec.UNSET,
    )


def _detail(fields: dict[str, Any]) -> dict[str, str]:
    """The operation that the auth service granted, and the host name from TLS or from plain HTTP."""
    return {name: text for name in (AUTH_SERVICE_OPERATION, "server_name") if (text := _text(fields, name))}


def gap(reason: str, before: AccessPosition, position: AccessPosition) -> AuditRecord:
    """The record of a gap: lines are missing between two positions. ``reason`` says how this was detected."""
    facts = {"after_file": before.file, "after_offset": str(before.offset)}
    return AuditRecord(event="gap", reason=reason, detail=facts, position=position)


def _pieces(line: bytes) -> Iterator[bytes]:
    """Split a line in two if a killed proxy left an incomplete line and the next one appended to it."""
    if line.startswith(b"{") and (second := line.find(b'{"', 1)) > 0 and not _is_json(line):
        while second > 0 and not _is_json(line[second:]):
            second = line.find(b'{"', second + 1)
        if second > 0:
            yield line[:second]
            yield line[second:]
            return
    yield line


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


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
    """The proxy's decision; empty if the line has none."""
    return _DECISIONS.get(_text(fields, "decision").lower(), "")
