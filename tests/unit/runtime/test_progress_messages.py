"""Limits of what a driver, which is not trusted, reports about its stages."""

from __future__ import annotations

import msgspec

from sluice.runtime.messages.progress import (
    MAX_OPERATORS,
    MAX_PARENTS,
    MAX_QUANTILES,
    MAX_STAGES,
    StageReport,
    StageState,
    StageTable,
)


def stage(number: int, factor: int = 1) -> StageReport:
    """A stage with ``factor`` times as many of everything as a listener reports at most."""
    return StageReport(
        id=number,
        job=0,
        name="x",
        state=StageState.RUNNING,
        attempts=1,
        tasks_total=1,
        tasks_running=1,
        tasks_finished=0,
        tasks_failed=0,
        parents=tuple(range(factor * MAX_PARENTS)),
        operators=("x",) * (factor * MAX_OPERATORS),
        task_ms=(1,) * (factor * MAX_QUANTILES),
    )


def test_a_report_within_the_limits_is_kept_as_it_is() -> None:
    table = StageTable(stages=tuple(map(stage, range(MAX_STAGES))), left_out=7)
    assert table.bounded() == table


def test_a_report_beyond_the_limits_is_cut_to_the_latest_stages() -> None:
    table = StageTable(stages=tuple(stage(number, 3) for number in range(MAX_STAGES + 5)), left_out=7)
    expected = StageTable(stages=tuple(stage(number) for number in range(5, MAX_STAGES + 5)), left_out=12)
    assert msgspec.json.encode(table.bounded()) == msgspec.json.encode(expected)
