"""Lines of the proxy's access log as records: bounded and without secrets, whatever the lines contain."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from sluice.core.files.append_log import ChainState
from sluice.gateway.audit_log.access_lines import (
    MALFORMED,
    MAX_ACCESS_LINE_BYTES,
    record_of,
    records_of,
)
from sluice.gateway.audit_log.chain import MAX_LINE_BYTES, AuditRecord, seal
from sluice.gateway.audit_log.secret_removal import record_without_secrets, remove_secrets

LINE = {
    "time": "2026-03-01T12:00:00.000Z",
    "request_id": "r-1",
    "address": "192.0.2.7",
    "method": "GET",
    "path": "/v1/jobs?secret=hunter2",
    "operation": "jobs.list",
    "principal": "ada",
    "credential": "3f9c0a1b2d4e",
    "pass_id": "p-1",
    "roles": "viewer,submitter",
    "decision": "allow",
    "status": 200,
    "reason": "granted by role",
    "duration_ms": 3,
}


def record(**changed: Any) -> AuditRecord:
    return record_of(json.dumps(LINE | changed).encode())


def test_an_access_line_becomes_a_record_without_the_query_string() -> None:
    assert record() == AuditRecord(
        event="traffic",
        at="2026-03-01T12:00:00.000Z",
        request_id="r-1",
        address="192.0.2.7",
        method="GET",
        path="/v1/jobs",
        operation="jobs.list",
        principal="ada",
        credential="3f9c0a1b2d4e",
        pass_id="p-1",  # noqa: S106  a public id
        roles=("viewer", "submitter"),
        decision="allow",
        status=200,
        reason="granted by role",
    )


@pytest.mark.parametrize(
    ("changed", "field", "value"),
    [
        ({"principal": None}, "principal", ""),
        ({"principal": "-"}, "principal", ""),
        ({"principal": {"a": 1}}, "principal", ""),
        ({"principal": "a\nb"}, "principal", "a\ufffdb"),
        ({"principal": "x" * 500}, "principal", "x" * 128),
        ({"roles": ["viewer", "admin"]}, "roles", ("viewer", "admin")),
        ({"roles": '["viewer","admin"]'}, "roles", ("viewer", "admin")),
        ({"roles": "-"}, "roles", msgspec.UNSET),
        ({"status": "403"}, "status", 403),
        ({"status": -7}, "status", 0),
        ({"status": 10**30}, "status", 0),
        ({"status": "many"}, "status", 0),
        ({"decision": "DENIED"}, "decision", "deny"),
        ({"decision": "denied"}, "decision", "deny"),
        ({"decision": "allowed"}, "decision", "allow"),
        ({"decision": "deny"}, "decision", "deny"),
        ({"decision": "Allow"}, "decision", "allow"),
        ({"decision": "perhaps"}, "decision", ""),
    ],
)
def test_unusual_field_values_are_normalized(changed: dict[str, Any], field: str, value: object) -> None:
    assert getattr(record(**changed), field) == value


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"7", b'{"a":', b"\xff\xfe", b"{" + b" " * MAX_ACCESS_LINE_BYTES + b"}", b'{"a":1}{"b":2}']
)
def test_a_malformed_line_becomes_a_record_with_its_size(line: bytes) -> None:
    taken = record_of(line)
    assert (taken.event, taken.reason) == ("traffic", MALFORMED)
    assert isinstance(taken.detail, dict)
    assert taken.detail["bytes"] == str(len(line))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=200), lambda inner: st.lists(inner, max_size=12)
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(list(LINE)), JSON))
def test_the_record_of_any_line_fits_the_size_limit(fields: dict[str, Any]) -> None:
    """A line that could not be recorded would block all lines after it."""
    taken = record_of(json.dumps(fields).encode())
    assert len(seal(record_without_secrets(taken), ChainState())[0]) <= MAX_LINE_BYTES


def test_the_record_of_a_long_line_of_escaped_characters_fits_the_size_limit() -> None:
    for character in ("\x01", "\U0001f512", '"', "\\", "é"):
        fields: dict[str, Any] = dict.fromkeys(LINE, character * 3000)
        taken = record_of(json.dumps(fields | {"roles": [character * 3000] * 50}).encode())
        assert len(seal(record_without_secrets(taken), ChainState())[0]) <= MAX_LINE_BYTES


def test_lines_become_records_with_the_sequence_and_time_of_their_access_record() -> None:
    kept = AuditRecord(event="access", sequence=7, time="2026-03-01T12:00:01.000Z", previous="ab")
    found = list(records_of(json.dumps(LINE).encode() + b'\n{"principal":"eve"}\nnonsense\n', kept))
    assert [each.principal for each in found] == ["ada", "eve", ""]
    assert {(each.event, each.sequence, each.time) for each in found} == {("traffic", 7, kept.time)}
    assert found[2].reason == MALFORMED


def test_records_of_invalid_unicode_can_be_encoded() -> None:
    (found,) = records_of(b'{"principal":"\\ud800","path":"/\xed\xa0\x80"}\n', AuditRecord(event="access"))
    assert msgspec.json.encode(found)


def test_a_long_path_of_beginnings_of_tokens_is_scanned_once() -> None:
    """If each beginning were scanned to the end of the path, this would take an hour."""
    line = b'{"path":"/' + b"eyJ" * 1_000_000 + b'"}\n'
    assert remove_secrets(line) == line
    assert remove_secrets(b'{"path":"/eyJhbGci.eyJzdWI.c2ln"}\n') == b'{"path":"/(jwt)"}\n'
