"""Metrics: one exposition for many processes, gathered from sockets that only their owner can open."""

from __future__ import annotations

import stat
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sluice.core.home import Home
from sluice.core.metrics import (
    collecting,
    merge,
    render,
)
from sluice.core.metrics.metric_samples import MetricsRegistry, Sample
from sluice.core.metrics.metrics_socket import fetch, serving
from sluice.runtime.jobmanager.dispatcher.cluster_diagnostics import ClusterDiagnostics


def values(text: str, name: str) -> dict[str, float]:
    """Return the value of a metric by process."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                found[sample.labels["process"]] = sample.value
    return found


def test_samples_are_labeled_with_their_process() -> None:
    registry = MetricsRegistry()
    registry.register(lambda: [Sample("sluice_things_total", "counter", "Things.", 3)])
    with collecting(registry):
        text = render("taskmanager/tm-1")
    assert values(text, "sluice_things_total") == {"taskmanager/tm-1": 3}
    assert values(text, "process_start_time_seconds").keys() == {"taskmanager/tm-1"}
    assert "sluice_things_total" not in render("taskmanager/tm-1")


def test_samples_of_one_metric_from_two_registries_form_one_family() -> None:
    one, other = MetricsRegistry(), MetricsRegistry()
    one.register(lambda: [Sample("sluice_x", "gauge", "X.", 1, {"endpoint": "a"})])
    other.register(lambda: [Sample("sluice_x", "gauge", "X.", 2, {"endpoint": "b"})])
    with collecting(one), collecting(other):
        text = render("p/q")
    assert text.count("# TYPE sluice_x gauge") == 1
    assert text.count("sluice_x{") == 2


def test_expositions_are_merged_without_malformed_ones() -> None:
    def of(process: str, value: int) -> str:
        return f'# HELP a_total A.\n# TYPE a_total counter\na_total{{process="{process}"}} {value}\n'

    text = merge([of("x", 1), "\x00{nonsense", of("y", 2)])
    assert values(text, "a_total") == {"x": 1, "y": 2}
    assert text.count("# TYPE a_total counter") == 1


def test_a_hostile_label_value_cannot_break_out_of_its_quotes() -> None:
    registry = MetricsRegistry()
    hostile = 'x"} 1\nsluice_jobs{state="FAILED'
    registry.register(lambda: [Sample("sluice_y", "gauge", "Y.", 1, {"name": hostile})])
    with collecting(registry):
        families = list(text_string_to_metric_families(merge([render("p/q")])))
    assert "sluice_jobs" not in {family.name for family in families}
    (sample,) = next(family for family in families if family.name == "sluice_y").samples
    assert sample.labels["name"] == hostile


async def test_the_metrics_socket_is_private_and_removed_afterwards(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    async with serving(home, "auth/auth-1") as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        text = await fetch(path)
    assert text is not None
    assert values(text, "process_start_time_seconds").keys() == {"auth/auth-1"}
    assert not list(home.metric_sockets.iterdir())
    assert await fetch(path) is None


async def test_metrics_of_all_processes_of_a_home_are_gathered_once_each(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    diagnostics = ClusterDiagnostics(home, "jobmanager/jm-1", lambda: ())
    async with serving(home, "auth/auth-1"), serving(home, "jobmanager/jm-1"):
        (home.metric_sockets / "dead.sock").touch()
        text = await diagnostics.metrics()
    assert values(text, "process_start_time_seconds").keys() == {"auth/auth-1", "jobmanager/jm-1"}
