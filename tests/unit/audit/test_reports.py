"""Reports, baselines and targets: values in, text out."""

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
    """One result of a check of the catalogue."""
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


def test_findings_come_worst_first_and_accepted_ones_do_not_count() -> None:
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
def test_what_is_at_or_above_the_bar_fails(check: str, fail_on: Severity, *, failed: bool) -> None:
    assert report(result(check)).failed(fail_on) is failed


@pytest.mark.parametrize("format_", list(Format))
def test_every_format_tells_each_finding_with_its_evidence_and_remedy(format_: Format) -> None:
    text = RENDERERS[format_](FULL)
    assert "MTL-02" in text
    assert "certificate_required" in text
    assert "mandatory" in " ".join(text.split())


def test_json_is_what_its_schema_says_and_comes_back_whole() -> None:
    text = RENDERERS[Format.JSON](FULL)
    assert msgspec.json.decode(text, type=Report) == FULL
    definitions = json.loads(json_schema())["$defs"]
    document = json.loads(text)
    assert set(definitions["Report"]["properties"]) == set(document)
    assert set(definitions["Result"]["properties"]) >= set(document["results"][0])
    assert document["schema"] == 1


def test_junit_has_a_case_for_each_check_and_no_character_that_xml_forbids() -> None:
    root = ET.fromstring(RENDERERS[Format.JUNIT](FULL))  # noqa: S314  our own document
    assert len(root.findall(".//testcase")) == 5
    assert len(root.findall(".//failure")) == 2
    assert len(root.findall(".//skipped")) == 2
    (suite,) = root.findall("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "2", "2")


def test_sarif_names_a_rule_for_each_result_and_suppresses_what_is_accepted() -> None:
    (run,) = json.loads(RENDERERS[Format.SARIF](FULL))["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert [each["ruleId"] for each in run["results"]] == ["MTL-02", "TLS-04", "TLS-09"]
    for each in run["results"]:
        assert rules[each["ruleIndex"]]["id"] == each["ruleId"]
        assert each["level"] in {"error", "warning", "note"}
        assert each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert [bool(each.get("suppressions")) for each in run["results"]] == [False, False, True]


def test_the_page_is_self_contained_and_runs_nothing_that_a_listener_said() -> None:
    page = RENDERERS[Format.HTML](FULL)
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert "default-src 'none'" in page
    picture = page[page.index("<svg") : page.index("</svg>") + 6].replace("\x00", "").replace("\x1b", "")
    rows = ET.fromstring(picture).findall("{http://www.w3.org/2000/svg}g")  # noqa: S314  our own document
    assert [row.get("class") for row in rows] == ["bad", "good"]


@pytest.mark.parametrize("format_", list(Format))
def test_an_unreachable_listener_is_unreachable_in_every_format_and_not_without_tls(format_: Format) -> None:
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


def test_a_finding_is_told_by_the_name_of_its_problem() -> None:
    told = msgspec.structs.replace(result("TLS-04"), problem=by_id()["TLS-04"].problem)
    for format_ in (Format.TEXT, Format.HTML, Format.SARIF):
        text = RENDERERS[format_](report(told))
        assert "TLS 1.2 accepted" in text
        assert "not so" not in text


def test_rules_of_a_sarif_report_on_foreign_servers_advise_nothing_about_ours() -> None:
    away = Listener(name="away", kind=Kind.SERVER, host="127.0.0.1", port=1, foreign=True)
    made = msgspec.structs.replace(report(), listeners=(ListenerReport(listener=away),))
    (run,) = json.loads(RENDERERS[Format.SARIF](made))["runs"]
    (rule,) = [rule for rule in run["tool"]["driver"]["rules"] if rule["id"] == "CRT-02"]
    assert "sluice" not in rule["help"]["text"]


def test_text_is_without_markup_of_what_a_listener_said() -> None:
    assert "[red]x[/]" in RENDERERS[Format.TEXT](report(result("TLS-01", seen="[red]x[/]")))


def test_a_baseline_accepts_its_finding_until_its_end_and_nothing_else() -> None:
    entries = (
        Entry("TLS-04", "rpc", "old client", TODAY),
        Entry("MTL-02", "other", "not this one", TODAY),
        Entry("TLS-09", "*", "too late", TODAY - dt.timedelta(days=1)),
    )
    applied = apply_baseline(report(result("TLS-04"), result("MTL-02"), result("TLS-09")), entries, TODAY)
    assert [each.check for each in applied.report.findings()] == ["MTL-02", "TLS-09"]
    assert len(applied.idle) == 2


def test_a_baseline_accepts_on_every_listener_that_its_pattern_fits() -> None:
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
def test_a_baseline_that_means_nothing_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "accepted.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_baseline(path, TODAY)


def test_targets_are_listeners_of_the_expected_kind(tmp_path: Path) -> None:
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
def test_targets_that_mean_nothing_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "targets.toml"
    path.write_text(text)
    with pytest.raises(InputError):
        read_targets(path)
