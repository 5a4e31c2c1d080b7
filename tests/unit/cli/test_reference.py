"""The reference pages come from the code, and are those of this code."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import msgspec

from sluice.cli.config import SECTIONS
from sluice.cli.reference.config import configuration_reference
from sluice.cli.reference.metrics import metrics_in, metrics_reference
from sluice.cli.reference.rest import rest_reference
from sluice.runtime.rest_server.routes import ROUTES

ROOT = Path(__file__).parents[3]


def test_the_reference_pages_are_current(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "make-reference", tmp_path], check=True, timeout=300)
    written = {each.name: each.read_text() for each in sorted(tmp_path.iterdir())}
    assert written
    kept = {name: (ROOT / "docs" / "reference" / name).read_text() for name in written}
    assert kept == written, "run scripts/make-reference and commit docs/reference"


def test_what_the_reference_says_are_the_defaults() -> None:
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


def test_every_route_is_in_the_reference_with_what_it_answers() -> None:
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


def test_a_metric_is_read_from_the_call_that_defines_it() -> None:
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


def test_words_of_the_code_become_words_for_people() -> None:
    text = configuration_reference()
    assert "``" not in text
    assert ":mod:" not in text
    assert "# Port of Envoy's HTTPS listener; 0 means any free port.\n#port = 8443" in text
