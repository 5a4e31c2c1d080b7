"""Audit records as OpenTelemetry logs: requests and responses of OTLP/HTTP in JSON encoding. No I/O.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: names in lowerCamelCase, 64-bit numbers as strings.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from sluice.gateway.audit_export.reader import Message
from sluice.gateway.audit_export.syslog import ERROR, INFORMATIONAL, NOTICE, WARNING, severity_of
from sluice.gateway.audit_log import AuditRecord

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SEVERITIES = {INFORMATIONAL: (9, "INFO"), NOTICE: (10, "INFO2"), WARNING: (13, "WARN"), ERROR: (17, "ERROR")}
"""Severity number and text for each syslog severity."""
_ATTRIBUTES = ("principal", "operation", "decision", "request_id")


class _PartialSuccess(msgspec.Struct):
    rejected: int = msgspec.field(name="rejectedLogRecords", default=0)


class _Answer(msgspec.Struct):
    partial: _PartialSuccess = msgspec.field(name="partialSuccess", default_factory=_PartialSuccess)


def request(messages: Iterable[Message], host: str) -> bytes:
    """The body of one export request. Each log record's body is the audit record's JSON; attributes are for search."""
    resource = {"service.name": "sluice", "host.name": host}
    logs = {"scope": {"name": "sluice.audit"}, "logRecords": [_log_record(each) for each in messages]}
    return msgspec.json.encode(
        {"resourceLogs": [{"resource": {"attributes": _attributes(resource)}, "scopeLogs": [logs]}]}
    )


def rejected(answer: bytes) -> int:
    """How many records the collector rejected according to its response; 0 if the response does not say.

    OTLP forbids resending a request that was partially accepted.
    """
    try:
        return max(0, msgspec.json.decode(answer, type=_Answer, strict=False).partial.rejected)
    except msgspec.MsgspecError:
        return 0


def _log_record(message: Message) -> dict[str, Any]:
    record = message.record
    number, text = _SEVERITIES[severity_of(record)]
    named = {f"sluice.{name}": str(getattr(record, name)) for name in _ATTRIBUTES if getattr(record, name)}
    if isinstance(record.kind, str):
        named["sluice.kind"] = record.kind
    return {
        "timeUnixNano": str(_nanoseconds(record)),
        "observedTimeUnixNano": str(_nanoseconds(record)),
        "severityNumber": number,
        "severityText": text,
        "eventName": f"sluice.audit.{record.event}",
        "body": {"stringValue": message.data.decode()},
        "attributes": _attributes({"sluice.number": record.number, **named}),
    }


def _attributes(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]


def _nanoseconds(record: AuditRecord) -> int:
    try:
        since = dt.datetime.fromisoformat(record.time) - _EPOCH
    except (ValueError, TypeError):
        return 0
    return since // dt.timedelta(microseconds=1) * 1000
