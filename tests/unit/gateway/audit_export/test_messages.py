"""Records as syslog messages and OpenTelemetry logs, checked against independent definitions."""

from __future__ import annotations

import re

import msgspec
import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from sluice.gateway.audit_export import otlp
from sluice.gateway.audit_export.reader import Message
from sluice.gateway.audit_export.syslog import encode, frames
from sluice.gateway.audit_log.chain import AuditRecord

TIME = "2026-03-01T12:00:00.123Z"
RFC_5424 = re.compile(
    rb"<(\d{1,3})>1 (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}Z) ([!-~]{1,255}) ([!-~]{1,48}) ([!-~]{1,128}) "
    rb"([!-~]{1,32}) - (.*)",
    re.DOTALL,
)


def message(record: AuditRecord) -> Message:
    dated = msgspec.structs.replace(record, time=TIME)
    return Message(dated, msgspec.json.encode(dated))


@pytest.mark.parametrize(
    ("record", "severity"),
    [
        (AuditRecord(event="decision", decision="allow"), 6),
        (AuditRecord(event="decision", decision="deny"), 4),
        (AuditRecord(event="egress", decision="deny"), 4),
        (AuditRecord(event="act", kind="policy.changed"), 5),
        (AuditRecord(event="recovered"), 4),
        (AuditRecord(event="gap"), 3),
        (AuditRecord(event="checkpoint"), 6),
    ],
)
def test_a_record_becomes_an_rfc_5424_syslog_message(record: AuditRecord, severity: int) -> None:
    sent = message(record)
    match = RFC_5424.fullmatch(encode(sent, "gw-1.example.com"))
    assert match is not None
    priority, time, host, application, process, kind, text = match.groups()
    assert (int(priority) >> 3, int(priority) & 7) == (13, severity)
    assert (time, host, application, process) == (TIME.encode(), b"gw-1.example.com", b"sluice", b"-")
    assert (kind, text) == (record.event.encode(), sent.data)


@pytest.mark.parametrize(("name", "shown"), [("", b"-"), ("höst name\n", b"hstname"), ("h" * 300, b"h" * 255)])
def test_the_syslog_host_name_is_printable_and_bounded(name: str, shown: bytes) -> None:
    assert encode(message(AuditRecord(event="gap")), name).split(b" ")[2] == shown


def test_a_syslog_frame_starts_with_its_length_in_octets() -> None:
    sent = [message(AuditRecord(event="decision", path="/größe\n2 <13>1")), message(AuditRecord(event="gap"))]
    data, found = frames(sent, "gw-1"), []
    while data:
        length, _, rest = data.partition(b" ")
        found.append(rest[: int(length)])
        data = rest[int(length) :]
    assert found == [encode(each, "gw-1") for each in sent]
    assert b"\n" not in found[0], "JSON escapes it: a record cannot end a line of a receiver"


def test_an_export_request_is_valid_by_the_opentelemetry_schema() -> None:
    sent = [
        message(AuditRecord(event="decision", principal="ada", operation="jobs.list", decision="deny", sequence=7)),
        message(AuditRecord(event="act", kind="policy.changed", sequence=8)),
        message(AuditRecord(event="traffic", request_id="r-1", sequence=9, part=2)),
    ]
    request = Parse(otlp.request(sent, "gw-1"), ExportLogsServiceRequest())
    (resource,) = request.resource_logs
    assert {each.key: each.value.string_value for each in resource.resource.attributes} == {
        "service.name": "sluice",
        "host.name": "gw-1",
    }
    (scope,) = resource.scope_logs
    assert [each.body.string_value.encode() for each in scope.log_records] == [each.data for each in sent]
    assert [each.severity_text for each in scope.log_records] == ["WARN", "INFO2", "INFO"]
    assert {each.time_unix_nano for each in scope.log_records} == {1772366400123000000}
    attributes = [{a.key: a.value.string_value for a in each.attributes} for each in scope.log_records]
    assert attributes == [
        {"sluice.number": "7", "sluice.principal": "ada", "sluice.operation": "jobs.list", "sluice.decision": "deny"},
        {"sluice.number": "8", "sluice.kind": "policy.changed"},
        {"sluice.number": "9.2", "sluice.request_id": "r-1"},
    ]


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (b"{}", 0),
        (b'{"partialSuccess":{}}', 0),
        (b'{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"too old"}}', 3),
        (b'{"partialSuccess":{"rejectedLogRecords":3}}', 3),
        (b'{"partialSuccess":{"rejectedLogRecords":"-3"}}', 0),
        (b"<html>", 0),
        (b"", 0),
    ],
)
def test_the_number_of_rejected_records_is_read_from_the_answer(answer: bytes, count: int) -> None:
    assert otlp.rejected(answer) == count
