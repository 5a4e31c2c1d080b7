"""Alert rules, dashboard and units: they refer to things that exist, and say what to do."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.cli.reference.metrics import MetricFacts, defined_metrics
from sluice.cli.run.commands import app

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
METRICS = {each.name: each for each in defined_metrics()}
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "sluice.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "sluice.json").read_text())
_SERIES = re.compile(r"(sluice_[a-z_]+)(?:\{([^}]*)\})?")


def metric_of(name: str) -> MetricFacts:
    """Return the metric that a series belongs to; raises KeyError if it does not exist."""
    plain = re.sub(r"_(bucket|count|sum)$", "", name)
    return METRICS[plain] if plain in METRICS and METRICS[plain].kind == "histogram" else METRICS[name]


def check(expression: str) -> None:
    """Check that every metric exists and has the labels used for selection or grouping."""
    series = _SERIES.findall(expression)
    known = {"process", "le"} | {label for name, _ in series for label in metric_of(name).labels}
    for name, matchers in series:
        assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= {*metric_of(name).labels, "process"}, expression
    for group in re.findall(r"by \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= known, expression
    for name in re.findall(r"(?:rate|increase)\((sluice_[a-z_]+)", expression):
        assert metric_of(name).kind in {"counter", "histogram"}, f"{name} goes down as well"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_is_about_metrics_that_exist_and_says_what_to_do(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "action"}
    for page in re.findall(r"docs/[a-z/-]+\.md", rule["annotations"]["action"]):
        assert (ROOT / page).is_file(), page


def test_alert_names_are_unique() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)


def test_every_alert_has_a_rule_test_that_raises_it_and_one_that_does_not() -> None:
    """The cases themselves are checked by ``promtool test rules``."""
    tests = yaml.safe_load((DEPLOY / "prometheus" / "sluice.test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in RULES}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names


def test_the_dashboard_shows_metrics_that_exist() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    for each in expressions:
        check(each)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(set(places)) == len(ids)


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.name)
def test_a_systemd_unit_runs_an_existing_verb_without_privileges(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False, delimiters="=")
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep upper case
    unit.read(path)
    service = unit["Service"]
    assert service["User"] == "sluice"
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"], service["UMask"]) == ("yes", "", "0077")
    verb = re.match(r"/opt/sluice/bin/sluice (\S+)(?: (\S+))?", service["ExecStart"])
    assert verb is not None
    if verb[1] == "run":
        named = set(re.findall(r"sluice@([a-z-]+)", path.read_text())) if verb[2] == "%i" else {verb[2]}
        assert named
        assert named <= {command.name for command in app.registered_commands} | {
            str(command.callback.__name__) for command in app.registered_commands if command.callback
        }
    else:
        assert (verb[1], verb[2]) in {("up", None), ("audit-log", "checkpoint")}
