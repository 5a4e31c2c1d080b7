"""Collects the outcomes of a series of runs, and summarizes them at the end of pytest's output."""

from __future__ import annotations

import collections
import statistics
import sys
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class Report:
    """Outcomes and effects of each fault, and the durations of the runs."""

    outcomes: dict[str, collections.Counter[str]] = field(default_factory=dict)
    effects: collections.Counter[str] = field(default_factory=collections.Counter)
    effective: collections.Counter[str] = field(default_factory=collections.Counter)
    seconds: list[float] = field(default_factory=list)

    def add(self, fault: str, outcome: str, seconds: float, effects: Collection[str]) -> None:
        """Add a run, and print it, which ``pytest -s`` shows at once."""
        sys.stdout.write(f"{fault}: {outcome} after {seconds:.1f} s ({', '.join(effects) or 'no effect'})\n")
        sys.stdout.flush()
        self.outcomes.setdefault(fault, collections.Counter())[outcome] += 1
        self.effects.update(effects)
        self.effective[fault] += bool(effects)
        self.seconds.append(seconds)

    @property
    def share(self) -> float:
        """The fraction of runs whose fault had an effect."""
        return self.effective.total() / len(self.seconds)

    def lines(self) -> list[str]:
        """Return a line for each fault, and some lines for all runs together."""
        if not self.seconds:
            return []
        total: collections.Counter[str] = collections.Counter()
        for counts in self.outcomes.values():
            total += counts
        by_fault = [
            f"{fault}: {_counts(counts)}; {self.effective[fault]} of {counts.total()} had an effect"
            for fault, counts in sorted(self.outcomes.items())
        ]
        times = f"median {statistics.median(self.seconds):.1f} s, longest {max(self.seconds):.1f} s"
        return [
            *by_fault,
            f"{len(self.seconds)} runs: {_counts(total)}; {times}",
            f"the fault had an effect in {self.effective.total()} runs ({self.share:.0%}): {_counts(self.effects)}",
        ]


def _counts(counts: collections.Counter[str]) -> str:
    return ", ".join(
        f"{number} {what}" for what, number in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )
