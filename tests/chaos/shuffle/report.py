"""What became of the runs of a series, in the end of pytest's output."""

from __future__ import annotations

import collections
import statistics
from dataclasses import dataclass, field


@dataclass
class Report:
    """Outcomes by fault, and how long the runs took."""

    outcomes: dict[str, collections.Counter[str]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def add(self, fault: str, outcome: str, seconds: float) -> None:
        """Note a run."""
        self.outcomes.setdefault(fault, collections.Counter())[outcome] += 1
        self.seconds.append(seconds)

    def lines(self) -> list[str]:
        """A line for each fault, and one for all."""
        if not self.seconds:
            return []
        total: collections.Counter[str] = collections.Counter()
        for counts in self.outcomes.values():
            total += counts
        by_fault = [f"{fault}: {_counts(counts)}" for fault, counts in sorted(self.outcomes.items())]
        times = f"median {statistics.median(self.seconds):.1f} s, longest {max(self.seconds):.1f} s"
        return [*by_fault, f"{len(self.seconds)} runs: {_counts(total)}; {times}"]


def _counts(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items(), reverse=True))
