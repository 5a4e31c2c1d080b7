"""The metrics of a process: one Prometheus registry. :mod:`sluice.core.metrics.metrics_socket` serves it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_LOG = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PROCESS = "process"
"""The label with the process of a sample."""

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry(auto_describe=False)
"""All metrics of this process."""
ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
IDENTITY_NOT_AFTER = Gauge(
    "sluice_identity_not_after_seconds",
    "When the certificate that this process shows ends, in seconds since the epoch.",
    ["identity"],
    registry=REGISTRY,
)
IDENTITY_NOT_BEFORE = Gauge(
    "sluice_identity_not_before_seconds",
    "When this certificate begins, in seconds since the epoch.",
    ["identity"],
    registry=REGISTRY,
)
CERTIFICATE_FILE_NOT_AFTER = Gauge(
    "sluice_certificate_file_not_after_seconds",
    "When the certificate of gateway.certificate_file or gateway.acme in use ends, seconds since the epoch; 0: none.",
    ["file"],
    registry=REGISTRY,
)


@dataclass(frozen=True, eq=False)
class _Families(Collector):
    """A collector of families that exist already."""

    families: tuple[Metric, ...]

    def collect(self) -> Iterator[Metric]:
        yield from self.families


@contextlib.contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Include ``collector`` within the block."""
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)


def render(process: str) -> str:
    """The metrics of this process as text; each sample has the label ``process``."""
    return exposition(REGISTRY.collect(), process)


def merge(expositions: Iterable[str]) -> str:
    """Merge several expositions into one; skip what is not an exposition."""
    families: list[Metric] = []
    for text in expositions:
        try:
            families += list(text_string_to_metric_families(text))
        except (ValueError, KeyError, IndexError) as error:
            _LOG.warning("metrics of a process cannot be read: %s", error)
    return exposition(families)


def exposition(families: Iterable[Metric], process: str = "") -> str:
    """``families`` as text, with the label ``process``. Families of one name are merged, as Prometheus requires."""
    named: dict[tuple[str, str], Metric] = {}
    for family in families:
        into = named.setdefault(
            (family.name, family.type), Metric(family.name, family.documentation, family.type, family.unit)
        )
        for sample in family.samples:
            labels = {PROCESS: process, **sample.labels} if process else dict(sample.labels)
            into.samples.append(sample._replace(labels=labels))
    collected = CollectorRegistry(auto_describe=False)
    collected.register(_Families(tuple(named.values())))
    return generate_latest(collected).decode()
