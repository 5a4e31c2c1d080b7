"""Metric samples in the Prometheus format."""

from __future__ import annotations

from sluice.core.metrics import exposition
from sluice.core.metrics.metric_samples import MAX_LABEL_CHARS, MetricsRegistry, Sample


def test_samples_of_a_metric_are_grouped_and_labels_are_escaped() -> None:
    registry = MetricsRegistry()
    registry.register(lambda: [Sample("a_total", "counter", "An A\nof \\ sorts.", 3, {"x": 'q"\\\n'})])
    forget = registry.register(
        lambda: [Sample("b", "gauge", "B.", 0.25), Sample("a_total", "counter", "An A.", float("inf"))]
    )
    assert exposition(registry.collect()) == (
        "# HELP a_total An A\\nof \\\\ sorts.\n"
        "# TYPE a_total counter\n"
        'a_total{x="q\\"\\\\\\n"} 3.0\n'
        "a_total +Inf\n"
        "# HELP b B.\n"
        "# TYPE b gauge\n"
        "b 0.25\n"
    )
    forget()
    forget()
    assert [sample.name for sample in registry.samples()] == ["a_total"]


def test_long_labels_are_cut() -> None:
    registry = MetricsRegistry()
    registry.register(lambda: [Sample("a", "gauge", "A.", float("nan"), {"x": "y" * 10_000})])
    assert exposition(registry.collect()).endswith('{x="' + "y" * MAX_LABEL_CHARS + '"} NaN\n')
