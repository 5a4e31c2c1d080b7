"""Record numbers: no two records of an audit log have the same number."""

from __future__ import annotations

from sluice.gateway.audit_log.access_lines import records_of
from sluice.gateway.audit_log.chain import AuditRecord


def test_traffic_records_of_one_access_record_are_numbered() -> None:
    line = AuditRecord(event="access", sequence=7, time="2026-01-01T00:00:00Z")
    found = list(records_of(b'{"path": "/a"}\n{"path": "/b"}\nnot JSON\n', line))
    assert [each.number for each in found] == ["7.1", "7.2", "7.3"]
    assert {each.sequence for each in found} == {7}


def test_a_record_with_its_own_line_has_its_sequence_as_number() -> None:
    assert AuditRecord(event="act", sequence=8).number == "8"
