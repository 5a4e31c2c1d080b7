"""Counts executors that ended by themselves against a budget. Decisions only; no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.runtime.messages import ExecutorExit

FAILURES_COUNT_SECONDS = 3600.0
"""How long a failed executor counts: a job that runs for weeks always loses some."""

LEAST_FAILURES = 8
"""Smallest default number of executors that may end by themselves, if neither job nor configuration sets it."""

LEAST_OWN_FAILURES = 3
"""The same for failures caused by the job itself, such as too little memory: replacements would fail too."""

MAX_FAILURE_BUDGET = 10_000
"""Highest number that a job's own configuration may set."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """When an executor ended by itself, and whether the job caused that."""

    at: float
    own: bool


@dataclass(frozen=True, slots=True)
class FailureBudget:
    """How many executors may end by themselves within an hour, and how many of them because of the job itself."""

    all: int
    own: int

    @classmethod
    def of(cls, configured: int, executors: int, spark_conf: Mapping[str, str]) -> FailureBudget:
        """The budget of a job, computed as Spark does (``spark.executor.maxNumFailures``).

        Args:
            configured: the number for every job; 0: twice the number of its executors.
            spark_conf: Spark settings of the job, which may set the number.
        """
        said = _count(spark_conf.get("spark.executor.maxNumFailures", ""))
        if said:
            return cls(said, said)
        if spark_conf.get("spark.dynamicAllocation.enabled", "").lower() == "true":
            executors = max(executors, _count(spark_conf.get("spark.dynamicAllocation.maxExecutors", "")))
        most = configured or max(2 * executors, LEAST_FAILURES)
        return cls(most, min(most, max(2 * executors, LEAST_OWN_FAILURES)))


def _count(text: str) -> int:
    return min(int(text), MAX_FAILURE_BUDGET) if text.isascii() and text.isdigit() and len(text) < 10 else 0


@dataclass(slots=True)
class ExecutorFailures:
    """The executors of one driver attempt that recently ended by themselves.

    Attributes:
        budget: how many may do so.
        last: how the last one ended.
    """

    budget: FailureBudget
    last: str = ""
    _failed: deque[_Failed] = field(default_factory=deque)

    @property
    def exhausted(self) -> bool:
        """Whether more executors ended by themselves than the budget allows."""
        return self.count > self.budget.all or self.own > self.budget.own

    @property
    def count(self) -> int:
        """The number of executors that recently ended by themselves."""
        return len(self._failed)

    @property
    def own(self) -> int:
        """The number of those failures that the job caused."""
        return sum(each.own for each in self._failed)

    def note(self, exit_report: ExecutorExit, now: float) -> None:
        """Count an executor that has ended by itself, and forget those of more than an hour ago."""
        self.last = exit_report.reason
        self._failed.append(_Failed(now, exit_report.by_application))
        while now - self._failed[0].at > FAILURES_COUNT_SECONDS:
            self._failed.popleft()
