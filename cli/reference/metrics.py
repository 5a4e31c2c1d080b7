"""The reference page of all metrics, generated from the calls that define them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("sluice.core", "sluice.pki", "sluice.runtime", "sluice.gateway")
PREFIX = "sluice_"
_CLIENT = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram", "Summary": "summary"}
_FAMILIES = {"CounterMetricFamily": "counter", "GaugeMetricFamily": "gauge", "HistogramMetricFamily": "histogram"}
_SAMPLE = "Sample"


@dataclass(frozen=True, slots=True, order=True)
class MetricFacts:
    """One metric; ``labels`` besides ``process``, which all have."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]


def metrics_reference() -> str:
    """The page, in Markdown."""
    lines = [
        "# Metrics",
        "",
        "The metrics of all processes, which `GET /v1/metrics` returns in Prometheus' text format.",
        "[Monitor a cluster](../howto/monitoring.md) says how to collect them. Each also has the label `process`.",
        "Every process also has the usual `process_…` and `python_…` metrics.",
        "",
        "| Metric | Kind | Labels | Meaning |",
        "|---|---|---|---|",
    ]
    for each in defined_metrics():
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help} |")
    return "\n".join(lines) + "\n"


def defined_metrics() -> tuple[MetricFacts, ...]:
    """All metrics of :data:`PACKAGES`, by name, each once."""
    found: dict[str, MetricFacts] = {}
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(package)
        for file in sorted(Path(spec.origin).parent.rglob("*.py")):
            for metric in metrics_in(file.read_text(encoding="utf-8")):
                found.setdefault(metric.name, metric)
    return tuple(sorted(found.values()))


def metrics_in(source: str) -> Iterator[MetricFacts]:
    """The metrics that one module defines."""
    if PREFIX not in source:
        return
    tree = ast.parse(source)
    tables = {
        node.targets[0].id: _keys(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if not texts or not texts[0].startswith(PREFIX):
            continue
        if node.func.id == _SAMPLE:
            name, kind, words = texts[:3]
            yield MetricFacts(name, kind, words, _labels_of_sample(node, tables))
        elif node.func.id in _FAMILIES:
            yield MetricFacts(texts[0], _FAMILIES[node.func.id], texts[1], _labels_of_family(node))
        elif node.func.id in _CLIENT:
            listed = next((each for each in node.args if isinstance(each, ast.List)), ast.List(elts=[]))
            labels = tuple(str(each.value) for each in listed.elts if isinstance(each, ast.Constant))
            yield MetricFacts(texts[0], _CLIENT[node.func.id], texts[1], labels)


def _labels_of_sample(call: ast.Call, tables: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    last = call.args[-1]
    if isinstance(last, ast.Dict):
        return _keys(last)
    return tables.get(last.id, ()) if isinstance(last, ast.Name) else ()


def _labels_of_family(call: ast.Call) -> tuple[str, ...]:
    listed = next((each.value for each in call.keywords if each.arg == "labels"), None)
    elements = listed.elts if isinstance(listed, ast.List) else []
    return tuple(str(each.value) for each in elements if isinstance(each, ast.Constant))


def _keys(table: ast.Dict) -> tuple[str, ...]:
    return tuple(str(key.value) for key in table.keys if isinstance(key, ast.Constant))


if __name__ == "__main__":
    print(metrics_reference(), end="")
