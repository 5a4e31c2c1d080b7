"""How many TaskManagers the launcher starts, and what they are called."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.cli.cluster.provision import free_names, to_start


@pytest.mark.parametrize(
    ("health", "running", "count"),
    [
        pytest.param({"taskmanagers": 2}, 0, 0, id="nobody-asks"),
        pytest.param({"taskmanagers_wanted": None}, 0, 0, id="not-on-demand"),
        pytest.param({"taskmanagers_wanted": 3}, 1, 2, id="some-are-missing"),
        pytest.param({"taskmanagers_wanted": 3}, 3, 0, id="they-start-already"),
        pytest.param({"taskmanagers_wanted": 1}, 4, 0, id="too-many-go-by-themselves"),
        pytest.param({"taskmanagers_wanted": 2, "taskmanagers_draining": 1}, 2, 1, id="one-of-them-goes"),
        pytest.param({"taskmanagers_wanted": 2, "taskmanagers_draining": 5}, 1, 2, id="never-less-than-none"),
    ],
)
def test_the_missing_taskmanagers_on_demand_are_started(health: dict[str, Any], running: int, count: int) -> None:
    assert to_start(health, running) == count


def test_new_taskmanagers_get_the_first_free_names() -> None:
    assert free_names({"taskmanager-2", "jobmanager"}, 2) == ["taskmanager-1", "taskmanager-3"]
