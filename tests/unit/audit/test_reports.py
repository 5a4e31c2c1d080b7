"""Reports, baselines and targets, built from values and checked as text."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from sluice.audit.baseline import Entry, apply_baseline, read_baseline
from sluice.audit.catalogue import by_id
from sluice.audit.errors import InputError
from sluice.audit.model import (
    Accepted,
    Kind,
    Listener,
    ListenerReport,
    Outcome,
    Report,
    Result,
    Severity,
)
from sluice.audit.reports import RENDERERS, Format, json_schema
from sluice.audit.targets import read_targets

TODAY = dt.date(2026, 11, 21)
EVIL = "<script>alert(1)</script>\x00\x1b[31m]]>&"


def result(check: str, outcome: Outcome = Outcome.FINDING, *, listener: str = "rpc", seen: str = "seen") -> Result:
    """A result of one of the catalogue's checks."""
    of = by_id()[check]
    return Result(
        check=check, title=of.title, listener=listener, place="127.0.0.1:1", severity=of.severity, outcome=outcome,
        done="done", expected=of.expected, references=of.references, seen=seen, remedy=of.remedy,
    )  # fmt: skip


def report(*results: Result) -> Report:
    """A report on two listeners."""
    listeners = (
        Listener(name="rpc", kind=Kind.MUTUAL, host="127.0.0.1", port=1),
        Listener(name=EVIL, kind=Kind.UNDECLARED, host="::1", port=2),
    )
    return Report(
        subject=EVIL,
        started_at=dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
        seconds=1.5,
        listeners=tuple(ListenerReport(listener=each) for each in listeners),
        results=results,
    )


FULL = report(
    result("MTL-02"),
    result("TLS-04", seen=EVIL),
    result("TLS-01", Outcome.PASSED),
    result("MTL-16", Outcome.NOT_EXAMINED),
    msgspec.structs.replace(result("TLS-09"), accepted=Accepted("ticket 4711", TODAY)),
)


def test_findings_are_sorted_by_severity_without_accepted_ones() -> None:
    assert [each.check for each in FULL.findings()] == ["MTL-02", "TLS-04"]


@pytest.mark.parametrize(
    ("check", "fail_on", "failed"),
    [
        ("TLS-04", Severity.MEDIUM, True),
        ("TLS-04", Severity.HIGH, False),
        ("MTL-02", Severity.CRITICAL, True),
        ("TLS-13", Severity.INFO, True),
    ],
)
def test_a_report_fails_with_a_finding_at_or_above_the_threshold(
    check: str, fail_on: Severity, *, failed: bool
) -> None:
    assert report(result(check)).failed(fail_on) is failed


@pytest.mark.parametrize("format_", list(Format))
def test_every_format_contains_each_finding_with_its_evidence_and_remedy(format_: Format) -> None:
    text = RENDERERS[format_](FULL)
    assert "MTL-02" in text
    assert "certificate_required" in text
    assert "mandatory" in " ".join(text.split())


def test_a_json_report_has_the_fields_of_its_schema_and_round_trips() -> None:
    text = RENDERERS[Format.JSON](FULL)
    assert msgspec.json.decode(text, type=Report) == FULL
    definitions = json.loads(json_schema())["$defs"]
    document = json.loads(text)
    assert set(definitions["Report"]["properties"]) == set(document)
    assert set(definitions["Result"]["properties"]) >= set(document["results"][0])
    assert document["schema"] == 1


def test_junit_has_a_case_for_each_check_and_no_forbidden_xml_character() -> None:
    root = ET.fromstring(RENDERERS[Format.JUNIT](FULL))  # noqa: S314  our own document
    assert len(root.findall(".//testcase")) == 5
    assert len(root.findall(".//failure")) == 2
    assert len(root.findall(".//skipped")) == 2
    (suite,) = root.findall("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "2", "2")


def test_sarif_has_a_rule_for_each_result_and_suppresses_accepted_findings() -> None:
    (run,) = json.loads(RENDERERS[Format.SARIF](FULL))["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert [each["ruleId"] for each in run["results"]] == ["MTL-02", "TLS-04", "TLS-09"]
    for each in run["results"]:
        assert rules[each["ruleIndex"]]["id"] == each["ruleId"]
        assert each["level"] in {"error", "warning", "note"}
        assert each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert [bool(each.get("suppressions")) for each in run["results"]] == [False, False, True]


def test_the_html_report_is_self_contained_and_runs_no_text_of_a_listener() -> None:
    page = RENDERERS[Format.HTML](FULL)
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert "default-src 'none'" in page
    picture = page[page.index("<svg") : page.index("</svg>") + 6].replace("\x00", "").replace("\x1b", "")
    rows = ET.fromstring(picture).findall("{http://www.w3.org/2000/svg}g")  # noqa: S314  our own document
    assert [row.get("class") for row in rows] == ["bad", "good"]


@pytest.mark.parametrize("format_", list(Format))
def test_an_unreachable_listener_is_not_reported_as_without_tls_in_any_format(format_: Format) -> None:
    of = by_id()["LSN-03"]
    away = Listener(name="away", kind=Kind.MUTUAL, host="127.0.0.1", port=1)
    found = result("LSN-03", listener="away", seen="unreachable: Connection refused; nothing could be examined")
    made = msgspec.structs.replace(
        report(msgspec.structs.replace(found, problem=of.problem)),
        listeners=(ListenerReport(listener=away, unreachable="Connection refused"),),
    )
    text = RENDERERS[format_](made)
    assert "unreachable" in text
    assert not re.search(r"no TLS(?! 1)", text)
    if format_ is Format.HTML:
        picture = text[text.index("<svg") : text.index("</svg>") + 6]
        (row,) = ET.fromstring(picture).findall("{http://www.w3.org/2000/svg}g")  # noqa: S314  our own document
        assert row.get("class") == "unreachable"
        assert "unreachable" in "".join(row.itertext())
    if format_ is Format.TEXT:
        assert "1 listener (1 unreachable)" in text


def test_a_finding_is_titled_by_its_problem_and_not_by_the_negated_check() -> None:
    told = msgspec.structs.replace(result("TLS-04"), problem=by_id()["TLS-04"].problem)
    for format_ in (Format.TEXT, Format.HTML, Format.SARIF):
        text = RENDERERS[format_](report(told))
        assert "TLS 1.2 accepted" in text
        assert "not so" not in text


def test_rules_of_a_sarif_report_on_a_foreign_server_contain_no_sluice_advice() -> None:
    away = Listener(name="away", kind=Kind.SERVER, host="127.0.0.1", port=1, foreign=True)
    made = msgspec.structs.replace(report(), listeners=(ListenerReport(listener=away),))
    (run,) = json.loads(RENDERERS[Format.SARIF](made))["runs"]
    (rule,) = [rule for rule in run["tool"]["driver"]["rules"] if rule["id"] == "CRT-02"]
    assert "sluice" not in rule["help"]["text"]


def test_the_text_report_does_not_interpret_markup_of_a_listener() -> None:
    assert "[red]x[/]" in RENDERERS[Format.TEXT](report(result("TLS-01", seen="[red]x[/]")))


def test_a_baseline_entry_accepts_only_its_own_finding_until_it_expires() -> None:
    entries = (
        Entry("TLS-04", "rpc", "old client", TODAY),
        Entry("MTL-02", "other", "not this one", TODAY),
        Entry("TLS-09", "*", "too late", TODAY - dt.timedelta(days=1)),
    )
    applied = apply_baseline(report(result("TLS-04"), result("MTL-02"), result("TLS-09")), entries, TODAY)
    assert [each.check for each in applied.report.findings()] == ["MTL-02", "TLS-09"]
    assert len(applied.idle) == 2


def test_a_baseline_entry_applies_to_every_listener_that_matches_its_pattern() -> None:
    entry = Entry("TLS-04", "rp*", "known", TODAY)
    applied = apply_baseline(report(result("TLS-04"), result("TLS-04", listener="rpx")), (entry,), TODAY)
    assert applied.report.findings() == ()
    assert applied.idle == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[accepted]]\ncheck = "TLS-99"\nlistener = "x"\nreason = "r"\nexpires = 2026-12-01', "TLS-99"),
        ('[[accepted]]\ncheck = "TLS-04"\nlistener = "x"\nreason = " "\nexpires = 2026-12-01', "no reason"),
        ('[[accepted]]\ncheck = "TLS-04"\nlistener = "x"\nreason = "r"\nexpires = 2036-12-01', "2036"),
        ('[[accepted]]\ncheck = "TLS-04"\nlistener = "x"\nreason = "r"', "expires"),
        ('[[accepted]]\ncheck = "TLS-04"\nlistener = "x"\nreason = "r"\nexpires = 2026-12-01\nmore = 1', "more"),
        ("[[accepted", "accepted.toml"),
    ],
)
def test_an_invalid_baseline_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "accepted.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_baseline(path, TODAY)


def test_targets_are_read_as_listeners_of_their_expected_kind(tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(
        '[[target]]\nname = "a"\nhost = "h"\nport = 1\nexpected = "mutual"\nchannel = "rpc"\n'
        '[[target]]\nname = "b"\nhost = "h"\nport = 2\nexpected = "http"\n'
    )
    assert [(each.name, each.kind) for each in read_targets(path)] == [("a", Kind.MUTUAL), ("b", Kind.HTTP)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "target = []",
        '[[target]]\nname = "a"\nhost = "h"\nport = 0\nexpected = "mutual"',
        '[[target]]\nname = "a"\nhost = "h"\nport = 1\nexpected = "undeclared"',
        '[[target]]\nname = ""\nhost = "h"\nport = 1\nexpected = "mutual"',
        '[[target]]\nname = "a"\nhost = "h"\nport = 1\nexpected = "mutual"\n' * 2,
    ],
)
def test_invalid_targets_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(text)
    with pytest.raises(InputError):
        read_targets(path)
