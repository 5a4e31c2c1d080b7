"""The reference pages are generated from the code and match its current state."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import msgspec

from sluice.cli.config import SECTIONS
from sluice.cli.main import VERBS, app
from sluice.cli.reference.config import configuration_reference
from sluice.cli.reference.man import manual_pages
from sluice.cli.reference.metrics import metrics_in, metrics_reference
from sluice.cli.reference.rest import rest_reference
from sluice.runtime.rest_server.routes import ROUTES

ROOT = Path(__file__).parents[4]


def test_the_reference_pages_are_current(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "make-reference", tmp_path], check=True, timeout=300)
    written = {each.name: each.read_text() for each in sorted(tmp_path.glob("*.md"))}
    assert written
    kept = {name: (ROOT / "docs" / "reference" / name).read_text() for name in written}
    assert kept == written, "run scripts/make-reference and commit docs/reference"
    pages = {each.name: each.read_text() for each in (ROOT / "man" / "man1").iterdir()}
    assert pages == {each.name: each.read_text() for each in (tmp_path / "man" / "man1").iterdir()}
    assert pages == manual_pages(app)


def test_every_verb_is_in_a_manual_page_with_its_options() -> None:
    pages = manual_pages(app)
    assert pages.keys() == {"sluice.1", *(f"sluice-{verb}.1" for verb in VERBS)}
    for verb in VERBS:
        assert f"sluice-{verb}".replace("-", r"\-") + r"\fR(1)" in pages["sluice.1"]
    issue = pages["sluice-pki.1"].partition('.SS "sluice pki issue"\n')[2].partition("\n.SS")[0]
    assert issue.startswith(r"\fBsluice pki issue\fR [OPTIONS] [identity]")
    assert "\n.TP\n\\fB\\-\\-dns <list[str]>\\fR\nHost name by which a listener is reached; repeatable.\n" in issue
    assert "Examples: sluice pki issue taskmanager/tm\\-7 " in issue


def test_manual_pages_are_valid_roff_without_accidental_requests() -> None:
    for name, text in manual_pages(app).items():
        assert text.isascii(), name
        for line in text.splitlines():
            assert line, name
            assert line[0] not in ".'" or re.match(r"\.(TH|SH|SS|PP|TP)( |$)", line), (name, line)


def test_the_configuration_reference_shows_the_actual_defaults() -> None:
    text = configuration_reference()
    sections = [block for block in text.split("\n\n") if not re.search(r"^# \[+\w+\.", block, flags=re.MULTILINE)]
    active = re.sub(r"^#(?=\w+ = )", "", "\n\n".join(sections), flags=re.MULTILINE)
    document = tomllib.loads(active)
    assert list(document) == list(SECTIONS)
    for name, struct in SECTIONS.items():
        scalars = {key: value for key, value in msgspec.to_builtins(struct()).items() if key in document[name]}
        assert document[name] == msgspec.json.decode(msgspec.json.encode(scalars))


def test_every_setting_is_in_the_reference() -> None:
    text = configuration_reference()
    for struct in SECTIONS.values():
        for field in struct.__struct_fields__:
            assert re.search(rf"(^#{field} = |\.{field}\]+$)", text, flags=re.MULTILINE), field


def test_every_route_is_in_the_rest_reference_with_its_types() -> None:
    text = rest_reference()
    for route in ROUTES:
        assert f"\n## {route.method} {route.path}\n" in text
    assert "| `present` | query | boolean | whether to begin with all existing jobs; default `true` |" in text
    named = set(re.findall(r"\]\(#(\w+)\)", text.partition("\n## ")[2]))
    assert named <= set(re.findall(r"^### (\w+)$", text.lower(), flags=re.MULTILINE)), "each type is explained"


def test_every_metric_is_in_the_reference() -> None:
    text = metrics_reference()
    for package in ("pki", "runtime", "gateway"):
        for file in (ROOT / package).rglob("*.py"):
            for name in re.findall(r'"(sluice_[a-z_]+)"', file.read_text()):
                if name.count("_") > 1 or name in {"sluice_jobs", "sluice_slots"}:
                    assert f"| `{name}` |" in text, f"{file} has {name}"
    assert (
        "| `sluice_auth_decisions_total` | counter | `decision`, `status` | Requests that were decided about. |" in text
    )
    assert "| `sluice_rpc_mailbox_depth` | gauge | `endpoint` | Messages that wait in a mailbox. |" in text


def test_metrics_are_extracted_from_the_calls_that_define_them() -> None:
    source = """
label = {PROCESS: process, "kind": kind}
Sample("sluice_one_total", "counter", "One.", 1, label)
Sample("sluice_two", "gauge", "Two.", 1, {**label, "state": state})
Histogram("sluice_three_seconds", "Three.", ["operation"], registry=REGISTRY)
Counter("no_metric_of_ours")
GaugeMetricFamily("sluice_four", "Four.", labels=["worker"])
"""
    assert [(each.name, each.kind, each.labels) for each in metrics_in(source)] == [
        ("sluice_one_total", "counter", ("kind",)),
        ("sluice_two", "gauge", ("state",)),
        ("sluice_three_seconds", "histogram", ("operation",)),
        ("sluice_four", "gauge", ("worker",)),
    ]


def test_the_configuration_reference_has_no_docstring_markup() -> None:
    text = configuration_reference()
    assert "``" not in text
    assert ":mod:" not in text
    assert "# Port of Envoy's HTTPS listener; 0 means any free port.\n#port = 8443" in text
