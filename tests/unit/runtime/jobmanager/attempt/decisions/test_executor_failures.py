"""How many executors of a job may fail on their own."""

from __future__ import annotations

import pytest

from sluice.runtime.jobmanager.attempt.decisions.executor_failures import FailureBudget


@pytest.mark.parametrize(
    ("configured", "executors", "conf", "budget"),
    [
        (0, 1, {}, FailureBudget(8, 3)),
        (0, 2, {}, FailureBudget(8, 4)),
        (0, 100, {}, FailureBudget(200, 200)),
        (2, 100, {}, FailureBudget(2, 2)),
        (20, 2, {}, FailureBudget(20, 4)),
        (0, 2, {"spark.executor.maxNumFailures": "7"}, FailureBudget(7, 7)),
        (3, 2, {"spark.executor.maxNumFailures": "7"}, FailureBudget(7, 7)),
        (0, 2, {"spark.executor.maxNumFailures": "-1"}, FailureBudget(8, 4)),
        (0, 2, {"spark.executor.maxNumFailures": "9" * 9}, FailureBudget(10_000, 10_000)),
        (0, 2, {"spark.executor.maxNumFailures": "9" * 5000}, FailureBudget(8, 4)),
        (
            0,
            1,
            {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "30"},
            FailureBudget(60, 60),
        ),
        (0, 1, {"spark.dynamicAllocation.maxExecutors": "30"}, FailureBudget(8, 3)),
    ],
)
def test_the_failure_budget_follows_from_settings_and_the_number_of_executors(
    configured: int, executors: int, conf: dict[str, str], budget: FailureBudget
) -> None:
    assert FailureBudget.of(configured, executors, conf) == budget
