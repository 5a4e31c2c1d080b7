"""The access report as text, JSON, CSV and Markdown, and its command line."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest

from sluice.pipelines import access_report as report
from sluice.pipelines.access_report import Report, Section

REPORT = Report(
    lines=100,
    requests=42,
    refused=7,
    acts=3,
    principals=2,
    first="2026-03-01 12:00",
    last="2026-03-09 12:00",
    sections=[
        Section("findings", "Findings", ("severity", "finding", "count"), [("high", "log-gap", 2)], 1),
        Section("unusual", "What was unusual", ("principal", "detail"), [("=cmd|x", "a|b <i>*c*</i>")], 1),
        Section("did", "Who did what", ("principal", "requests"), [("ada", 1)] * 25, 60),
        Section("acts_by_kind", "Administrative acts", ("principal", "kind"), [], 0),
    ],
)


def test_text_report_has_totals_and_tables_and_counts_omitted_rows() -> None:
    lines = [line.split() for line in report.render_text(REPORT).splitlines()]
    assert ["requests", "42"] in lines
    assert ["lines", "of", "the", "log,", "verified", "100"] in lines
    assert ["high", "log-gap", "2"] in lines
    assert ["…", "and", "40", "more"] in lines
    assert ["principal", "kind"] in lines


def test_json_has_the_same_numbers() -> None:
    value = json.loads(report.render_json(REPORT))
    assert (value["lines"], value["requests"], value["refused"], value["acts"]) == (100, 42, 7, 3)
    assert value["findings"] == [{"severity": "high", "finding": "log-gap", "count": 2}]
    assert value["not_listed"] == {"did": 35}


def test_csv_is_one_table_without_formulas() -> None:
    rows = list(csv.reader(io.StringIO(report.render_csv(REPORT, "unusual"))))
    assert rows == [["principal", "detail"], ["'=cmd|x", "a|b <i>*c*</i>"]]


def test_markdown_report_escapes_markup_from_the_log() -> None:
    text = report.render_markdown(REPORT)
    assert r"| =cmd\|x | a\|b \<i\>\*c\*\</i\> |" in text
    assert "| principal | kind |" in text
    assert "… and 35 more" in text


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_every_output_format_is_rendered(form: str) -> None:
    assert report.render(REPORT, form, "unusual").endswith("\n") or form == "table"


def test_command_line_times_can_be_relative_or_dates() -> None:
    options = report.arguments(["--log", "x", "--since", "7d", "--until", "2026-03-01"])
    assert abs(options.since - (time.time() - 7 * 86400)) < 60
    assert options.until == 1772323200


@pytest.mark.parametrize(
    "argv", [[], ["--log", "x", "--since", "soon"], ["--log", "x", "--format", "pdf"], ["--log", "x", "--table", "y"]]
)
def test_wrong_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        report.arguments(argv)
    assert raised.value.code == 2
    assert capsys.readouterr().err


def test_an_incomplete_log_exits_with_1_before_spark_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--log", str(tmp_path)]) == 1
    assert "verification-key.pem" in capsys.readouterr().err


def test_every_finding_has_a_severity_and_a_meaning() -> None:
    assert len(report.RANKS) == len(report.SEVERITIES)
    assert all(severity.meaning and severity.severity for severity in report.SEVERITIES)
