"""Lines of the proxy's access log as records of the audit log. Pure.

The proxy decides most requests by itself and writes one JSON object per line: ``time``, ``request_id``, ``address``,
``method``, ``path``, ``operation``, ``principal``, ``credential``, ``pass_id``, ``roles``, ``decision``, ``asked``,
``status``, ``reason``. Unknown fields are left out; a line that is no JSON object becomes a record of its own with its
size and digest, for a line must not disappear because it is strange.
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
"""A longer line is recorded by size and digest alone."""
MALFORMED = "malformed line of the access log"
ASKED = "asked"
"""In the detail of a request about which the proxy has asked: the operation that the auth service granted."""
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
    """A record for each line in ``data``, for which ``kept`` stands in the chain."""
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
    """The record of one ``line`` (without its newline)."""
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
    """What the auth service was asked, and the host that was shown in TLS or in plain HTTP."""
    return {name: text for name in (ASKED, "server_name") if (text := _text(fields, name))}


def gap(reason: str, before: AccessPosition, position: AccessPosition) -> AuditRecord:
    """The record that says that lines are missing between two positions, and how it is known."""
    facts = {"after_file": before.file, "after_offset": str(before.offset)}
    return AuditRecord(event="gap", reason=reason, detail=facts, position=position)


def _pieces(line: bytes) -> Iterator[bytes]:
    """One line; or two, when a proxy that was killed left one without its end and the next one wrote after it."""
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
    """As the proxy says; nothing when it does not say."""
    return _DECISIONS.get(_text(fields, "decision").lower(), "")
