"""The report format of all benchmarks: a table for people, or one JSON object for programs."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one benchmark.

    Attributes:
        benchmark: the module's name.
        figures: values with their units in the names.
        ratio: ours divided by the peer's, or the inverse if more is better; the goal says which.
        goal: the bar in words.
        bar: the bar as a number.
        holds: whether ``ratio`` meets the bar.
    """

    benchmark: str
    figures: dict[str, float]
    ratio: float
    goal: str
    bar: float
    holds: bool


def arguments(
    description: str | None,
    argv: Sequence[str] | None = None,
    *,
    more: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> argparse.Namespace:
    """Parse the options of all benchmarks, and those that ``more`` adds."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help="within 60 seconds on 2 cores; same meaning, more noise")
    more(parser)
    return parser.parse_args(argv)


def progress(line: str) -> None:
    """Report progress on standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, median and maximum, because benchmark machines are shared and noisy."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def emit(result: Result, *, as_json: bool) -> int:
    """Print ``result``; returns the exit code: 0 if the bar holds, 1 if not."""
    if as_json:
        document = {
            "benchmark": result.benchmark,
            "figures": {name: round(value, 4) for name, value in result.figures.items()},
            "ratio": round(result.ratio, 4),
            "goal": result.goal,
            "bar": result.bar,
            "holds": result.holds,
        }
        print(json.dumps(document))
    else:
        table = Table(box=None, pad_edge=False, title=result.benchmark, title_justify="left")
        table.add_column("figure")
        table.add_column("value", justify="right")
        for name, value in result.figures.items():
            table.add_row(name, f"{value:,.3f}")
        table.add_row("ratio", f"{result.ratio:.3f}")
        console = Console()
        console.print(table)
        console.print(f"goal: {result.goal}: {'holds' if result.holds else 'does NOT hold'}", highlight=False)
    return 0 if result.holds else 1
