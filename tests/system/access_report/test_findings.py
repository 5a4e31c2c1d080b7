"""Each finding of the access report, computed by Spark itself.

For each there is behaviour that must lead to the finding, and similar behaviour that must not.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sluice.gateway.audit_log.chain import AccessPosition, AuditRecord
from sluice.gateway.audit_log.log import AuditLog, AuditLogLimits
from sluice.pipelines import access_report
from sluice.pipelines.access_report import (
    ROW_SCHEMA,
    LogError,
    Report,
    Row,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

START = int(dt.datetime(2026, 3, 2, tzinfo=dt.UTC).timestamp())
DAY, HOUR = 86_400, 3600


def row(principal: str, at: float, event: str = "decision", **more: Any) -> Row:
    """Return a request of ``principal``, made ``at`` days after the start."""
    values: dict[str, Any] = {
        "sequence": 1,
        "event": event,
        "at": int(START + at * DAY),
        "kind": "",
        "principal": principal,
        "credential": f"token-of-{principal}" if principal else "",
        "address": "192.0.2.1",
        "operation": "jobs.list",
        "refused": False,
        "reason": "",
        "request_id": "",
    }
    return Row(**(values | more))


def office(principal: str, days: Iterable[int], hour: float = 9.5, **more: Any) -> Iterator[Row]:
    """Yield one request on each of ``days``, at ``hour`` (UTC)."""
    for day in days:
        yield row(principal, day + hour / 24, **more)


def history() -> list[Row]:
    """Return twenty days of requests; each principal is a case or a near miss of one finding."""
    denied: dict[str, Any] = {"refused": True, "reason": "no role grants the operation"}
    revoked: dict[str, Any] = {"refused": True, "reason": "the token was revoked"}
    return [
        *office("steady", range(20)),
        # A new address after a week, and one on the sixth day.
        *office("mover", range(20)),
        row("mover", 15.4, address="198.51.100.7"),
        row("mover", 15.41, address="198.51.100.7"),
        *office("settler", range(20)),
        row("settler", 6.4, address="198.51.100.8"),
        # At night after a week; within an hour of the usual time; on the third day, and again later.
        *office("owl", range(20)),
        row("owl", 12 + 2 / 24),
        *office("early", range(20)),
        row("early", 12 + 8.2 / 24),
        *office("always", range(20)),
        row("always", 2 + 2 / 24),
        row("always", 12 + 2 / 24),
        # Around midnight the hours before and after are on other days.
        *office("midnight", range(20), hour=23.5),
        row("midnight", 12.01),
        # Away for a month, and for nearly one.
        *office("sleeper", range(3)),
        row("sleeper", 40.4),
        *office("napper", range(11, 20)),
        row("napper", 40.4),
        # Refusals: 20 in five minutes; 19; 20 in ten minutes; anonymous ones from one address.
        *(row("prober", 10.4 + n * 12 / DAY, **denied) for n in range(20)),
        *(row("clumsy", 10.4 + n * 12 / DAY, **denied) for n in range(19)),
        *(row("patient", 10.4 + n * 31 / DAY, **denied) for n in range(20)),
        *(row("", 10.4 + n / DAY, address="203.0.113.66", **denied) for n in range(50)),
        *(row("", 10.5 + n / DAY, address=f"203.0.113.{n}", **denied) for n in range(30)),
        # One credential at five addresses within an hour; at four; and five in five hours.
        *(row("shared", 10.4 + n / 1000, address=f"198.51.100.{n}") for n in range(5)),
        *(row("roaming", 10.4 + n / 1000, address=f"198.51.100.{n}") for n in range(4)),
        *(row("travelling", 10.4 + n / 24, address=f"198.51.100.{n}") for n in range(5)),
        *(row("", 10.6, credential="dead", **revoked) for _ in range(3)),
        # Both asked the auth service and passed the proxy: one request.
        row("twice", 10.4, request_id="r-1"),
        row("twice", 10.4, event="traffic", request_id="r-1"),
        row("twice", 10.4, event="traffic", request_id="r-2"),
        row("twice", 10.4, event="traffic"),
        row("twice", 10.4, event="traffic"),
        row("local:root", 10.4, event="act", kind="token.created", operation=""),
        row("local:root", 10.5, event="act", kind="token.created", operation=""),
        row("local:root", 10.5, event="act", kind="token.revoked", operation=""),
        row("", 11, event="gap", reason="requests are missing in the access log", operation=""),
        row("", 11, event="recovered", reason="the line after was cut short", operation=""),
        row("", 11, event="traffic", reason="malformed line of the access log", operation="", credential=""),
    ]


@pytest.fixture(scope="module")
def report(spark: SparkSession) -> Report:
    rows = pa.Table.from_pylist([each._asdict() for each in history()], schema=ROW_SCHEMA)
    return access_report.analyse(spark.createDataFrame(rows), len(history()))


def table(report: Report, name: str) -> list[dict[str, Any]]:
    (part,) = (each for each in report.sections if each.name == name)
    assert part.total == len(part.rows)
    return [dict(zip(part.header, values, strict=True)) for values in part.rows]


def unusual(report: Report, finding: str) -> list[tuple[str, str, int]]:
    rows = [each for each in table(report, "unusual") if each["finding"] == finding]
    return [(each["principal"], each["address"], each["count"]) for each in rows]


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        ("new-address", [("mover", "198.51.100.7", 2)]),
        ("off-hours", [("owl", "192.0.2.1", 1)]),
        ("dormant-principal", [("sleeper", "", 1)]),
        ("burst-of-refusals", [("", "203.0.113.66", 50), ("prober", "192.0.2.1", 20)]),
        ("shared-credential", [("shared", "198.51.100.4", 5)]),
        ("revoked-credential", [("", "192.0.2.1", 3)]),
        ("log-gap", [("", "", 1)]),
        ("recovered", [("", "", 1)]),
        ("malformed-line", [("", "", 1)]),
    ],
)
def test_finding_lists_exactly_the_expected_principals_and_addresses(
    report: Report, finding: str, expected: list[tuple[str, str, int]]
) -> None:
    assert sorted(unusual(report, finding)) == expected


def test_counts_of_findings_are_sorted_by_severity(report: Report) -> None:
    counted = table(report, "findings")
    assert {each["finding"] for each in counted} == {each.finding for each in access_report.SEVERITIES}
    assert [each["severity"] for each in counted] == sorted(
        (each["severity"] for each in counted), key=["high", "medium", "low", "info"].index
    )


def test_each_request_is_counted_once(report: Report) -> None:
    by_principal = {each["principal"]: each for each in table(report, "by_principal")}
    assert by_principal["twice"]["requests"] == 4, "one of the two with the same id, and those without one"
    assert by_principal["steady"]["requests"] == 20
    assert by_principal["prober"]["refused"] == 20
    assert by_principal["shared"]["addresses"] == 5
    assert sum(each["requests"] for each in by_principal.values()) == report.requests
    assert sum(each["refused"] for each in by_principal.values()) == report.refused
    assert report.acts == 3


def test_report_counts_allowed_operations_audited_actions_and_refusals(report: Report) -> None:
    did = {(each["principal"], each["operation"]): each["requests"] for each in table(report, "did")}
    assert did["steady", "jobs.list"] == 20
    assert ("prober", "jobs.list") not in did, "what was refused was not done"
    acts = {(each["principal"], each["kind"]): each["acts"] for each in table(report, "acts_by_kind")}
    assert acts == {("local:root", "token.created"): 2, ("local:root", "token.revoked"): 1}
    reasons = {each["reason"]: each["refused"] for each in table(report, "by_reason")}
    assert reasons["the token was revoked"] == 3


def write_log(directory: Path) -> None:
    """Write an audit log of several segments: three weeks of one principal, then a request at night."""
    now = dt.datetime(2026, 3, 2, 9, 30, tzinfo=dt.UTC)
    moments = [now + dt.timedelta(days=day) for day in range(21)]
    moments += [dt.datetime(2026, 3, 23, 2, tzinfo=dt.UTC)]
    log = AuditLog(directory / "current.jsonl", clock=lambda: moments[0], limits=AuditLogLimits(segment_bytes=4000))
    while moments:
        log.append(
            AuditRecord(
                event="decision",
                principal="ada",
                operation="jobs.list",
                decision="allow",
                address="192.0.2.1",
                request_id=str(len(moments)),
            )
        )
        log.event("login", "ada", {"method": "oidc"})
        if len(moments) == 10:
            log.maintain()
        # Seen by the proxy, which asked about the first and decided the second by itself.
        line = b'{"request_id":"%d","principal":"ada","status":200,"time":"%s"}\n'
        at = moments[0].isoformat().encode()
        before = log.position() or AccessPosition("", 0)
        both = line % (len(moments), at) + line % (100 + len(moments), at)
        assert log.append_access_lines(both, after=before, position=AccessPosition("f", before.offset + len(both)))
        if len(moments) == 1:
            break
        moments.pop(0)
    log.close()


def test_log_of_the_gateway_is_verified_and_read(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    write_log(directory)
    log = access_report.open_log(directory, None, "", ())
    assert len(log.sources) >= 4
    rows, lines = access_report.read_log(spark, log)
    found = functools.partial(access_report.analyse, rows, lines)
    whole = found()
    assert (whole.requests, whole.acts, whole.refused, whole.principals) == (44, 22, 0, 1)
    assert (whole.first, whole.last) == ("2026-03-02 09:30", "2026-03-23 02:00")
    assert [(each["finding"], each["at"]) for each in table(whole, "unusual")] == [("off-hours", "2026-03-23 02:00")]


def test_altered_audit_log_is_not_analysed(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    write_log(directory)
    path = directory / "current.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"ada"', b'"eve"', 1))
    with pytest.raises(LogError, match="does not follow"):
        access_report.read_log(spark, access_report.open_log(directory, None, "", ()))


def test_altered_access_log_is_not_analysed(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    write_log(directory)
    (path,) = directory.glob("traffic-*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"ada"', b'"eve"', 1))
    with pytest.raises(LogError, match="other bytes"):
        access_report.read_log(spark, access_report.open_log(directory, None, "", ()))


def test_history_before_the_report_is_used_for_comparison_and_not_reported(spark: SparkSession) -> None:
    rows = [*office("owl", range(20)), row("owl", 12 + 2 / 24), row("owl", 18 + 4 / 24)]
    frame = spark.createDataFrame(pa.Table.from_pylist([each._asdict() for each in rows], schema=ROW_SCHEMA))
    report = access_report.analyse(frame, len(rows), since=START + 15 * DAY, until=START + 19 * DAY)
    assert [each["detail"] for each in table(report, "unusual")] == ["04 h, after 18 days without"]
    assert report.requests == 5
