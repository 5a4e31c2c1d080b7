"""Limits of what a driver, which is not trusted, reports about its stages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sluice.runtime.messages.progress import MAX_OPERATORS, MAX_PARENTS, MAX_QUANTILES, MAX_STAGES, StageTable

NUMBERS = ("id", "job", "attempts", "tasks_total", "tasks_running", "tasks_finished", "tasks_failed")
STAGE: dict[str, Any] = {
    **dict.fromkeys(NUMBERS, 0),
    "name": "x",
    "state": "RUNNING",
    "parents": [0] * MAX_PARENTS,
    "operators": ["x"] * MAX_OPERATORS,
    "task_ms": [1] * MAX_QUANTILES,
}


def test_as_many_stages_as_the_listener_reports_are_accepted() -> None:
    assert len(msgspec.convert({"stages": [STAGE] * MAX_STAGES}, StageTable).stages) == MAX_STAGES


@pytest.mark.parametrize("name", ["parents", "operators", "task_ms"])
def test_a_stage_with_more_than_its_listener_reports_is_refused(name: str) -> None:
    more = {**STAGE, name: [*STAGE[name], STAGE[name][0]]}
    with pytest.raises(msgspec.ValidationError, match="length"):
        msgspec.convert({"stages": [more]}, StageTable)


def test_more_stages_than_the_listener_reports_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="length"):
        msgspec.convert({"stages": [STAGE] * (MAX_STAGES + 1)}, StageTable)
