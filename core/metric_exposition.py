"""What a process counts and measures, as plain values, and as text in Prometheus' exposition format (0.0.4).

Whoever has something to show registers a source: a function that returns samples when asked. Nothing is stored here,
so that nothing has to be kept up to date.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MAX_LABEL_CHARS = 256
"""Longer values of labels are cut: some of them were chosen by others."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric.

    Attributes:
        name: of the metric, with its unit (``…_seconds``), counters with ``_total``.
        kind: a counter only grows, a gauge goes up and down.
        help: what it says, in one line.
        value: now.
        labels: which of several it is.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


Source = Callable[[], Iterable[Sample]]


class MetricsRegistry:
    """All sources of a process."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def register(self, source: Source) -> Callable[[], None]:
        """Ask ``source`` from now on; returns what ends that."""
        self._sources.append(source)
        return lambda: self._sources.remove(source) if source in self._sources else None

    def samples(self) -> list[Sample]:
        """Everything as it is now."""
        return [sample for source in list(self._sources) for sample in source()]

    def render(self) -> str:
        """The same for Prometheus."""
        return render(self.samples())


class RegistryCollector(Collector):
    """A registry as a part of what the process shows (:data:`sluice.core.metrics.REGISTRY`)."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Everything as it is now."""
        for name, samples in _by_name(self._registry.samples()).items():
            family = Metric(name.removesuffix("_total"), samples[0].help, samples[0].kind)
            for each in samples:
                family.add_sample(
                    name, {key: value[:MAX_LABEL_CHARS] for key, value in each.labels.items()}, each.value
                )
            yield family


def render(given: Iterable[Sample]) -> str:
    """Samples for Prometheus: those of a metric together, in the order in which metrics appear."""
    lines = []
    for name, samples in _by_name(given).items():
        lines.append(f"# HELP {name} {_escaped(samples[0].help)}")
        lines.append(f"# TYPE {name} {samples[0].kind}")
        lines += [f"{name}{_labels(each.labels)} {_number(each.value)}" for each in samples]
    return "".join(f"{line}\n" for line in lines)


def _by_name(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    metrics: dict[str, list[Sample]] = {}
    for sample in samples:
        metrics.setdefault(sample.name, []).append(sample)
    return metrics


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_quoted(value[:MAX_LABEL_CHARS])}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
