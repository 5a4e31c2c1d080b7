"""What a process counts and measures, as plain values that prometheus_client can collect.

A source is a function that returns samples when it is called. Nothing is stored here, so nothing can be out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import Metric
from prometheus_client.registry import Collector

MAX_LABEL_CHARS = 256
"""Longer label values are cut: some of them come from outside."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric.

    Attributes:
        name: of the metric, with its unit (``…_seconds``), counters with ``_total``.
        kind: a counter only grows, a gauge goes up and down.
        help: what it means, in one line.
        value: now.
        labels: distinguish the samples of one metric.
    """

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


Source = Callable[[], Iterable[Sample]]


class MetricsRegistry(Collector):
    """The sources of a part of a process; register it with :func:`sluice.core.metrics.collecting`."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def register(self, source: Source) -> Callable[[], None]:
        """Collect from ``source`` from now on; returns a function that ends this."""
        self._sources.append(source)
        return lambda: self._sources.remove(source) if source in self._sources else None

    def samples(self) -> list[Sample]:
        """All samples as they are now."""
        return [sample for source in list(self._sources) for sample in source()]

    def collect(self) -> Iterator[Metric]:
        """The samples as Prometheus metric families."""
        return families(self.samples())


def families(samples: Iterable[Sample]) -> Iterator[Metric]:
    """The samples of each metric as one family, in the order in which metrics first appear."""
    found: dict[str, Metric] = {}
    for each in samples:
        family = found.get(each.name)
        if family is None:
            family = found[each.name] = Metric(each.name.removesuffix("_total"), each.help, each.kind)
        labels = {key: value[:MAX_LABEL_CHARS] for key, value in each.labels.items()}
        family.add_sample(each.name, labels, each.value)
    yield from found.values()
