"""The cost of mutual TLS inside Spark: a shuffle-heavy job on two executors, with our TLS provider and in plaintext.

The jobs run side by side, each with its own driver and two executors, and take turns in alternating order: while one
runs a round, the others are idle. Everything else is the same (see :mod:`benchmarks.spark_job`). Executors fetch from
each other over the network although they share a machine.

``ratio`` is the median over all pairs of rounds of (time of the default provider / time in plaintext).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Result, arguments, emit, progress, spread
from benchmarks.spark_job import Channels, Job
from sluice.pki import PkiConfig
from sluice.pki.issuing import LocalIssuer
from sluice.runtime.spark.jvm import SparkRuntime, TlsEngine, find_spark_runtime

BAR = 1.05
FEWEST_ROUNDS = 5
GOAL = "mutual TLS at most 1.05 times the time of plaintext"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: rows per round, warm-up rounds, rounds that count, and when to stop early."""

    rows: int
    warm_up: int
    rounds: int
    all_engines: bool
    budget_seconds: float


QUICK = Plan(rows=1_500_000, warm_up=5, rounds=9, all_engines=False, budget_seconds=50.0)
FULL = Plan(rows=2_000_000, warm_up=6, rounds=31, all_engines=True, budget_seconds=600.0)


@dataclass(frozen=True, slots=True)
class Round:
    """Wall and CPU time of one round, in seconds."""

    wall: float
    cpu: float


def default_channels(spark: SparkRuntime) -> Channels:
    """Return the default channels of jobs on this machine."""
    return Channels.OPENSSL if spark.engine is TlsEngine.OPENSSL else Channels.JDK


async def measure(plan: Plan, spark: SparkRuntime, directory: Path) -> dict[Channels, list[Round]]:
    """Return all rounds of all jobs. The n-th rounds of the jobs ran one after the other."""
    config = PkiConfig()
    issuer = LocalIssuer(directory / "pki", config)
    issuer.ensure_authorities()
    channels = list(Channels) if plan.all_engines else [Channels.PLAINTEXT, default_channels(spark)]
    jobs = [Job(each, directory / each, spark, issuer, config.trust_domain) for each in channels]
    measured: dict[Channels, list[Round]] = {each: [] for each in channels}
    stop_at = time.monotonic() + plan.budget_seconds
    async with AsyncExitStack() as stack:
        progress(f"starting {len(jobs)} jobs: {', '.join(channels)}")
        await asyncio.gather(*(job.start(stack) for job in jobs))
        for number in range(plan.warm_up + plan.rounds):
            if number >= plan.warm_up + FEWEST_ROUNDS and time.monotonic() > stop_at:
                break
            for job in jobs if number % 2 else reversed(jobs):
                wall, cpu = await job.round(plan.rows)
                if number >= plan.warm_up:
                    measured[job.channels].append(Round(wall, cpu))
            progress(f"round {number + 1} of {plan.warm_up + plan.rounds}")
        for job in jobs:
            job.check_channels()
    return measured


def summarize(measured: dict[Channels, list[Round]], default: Channels) -> Result:
    """Return ratios over pairs of consecutive rounds, so that a slow minute of the machine affects both."""
    plain = measured[Channels.PLAINTEXT]
    figures: dict[str, float] = {}
    for channels, rounds in measured.items():
        for name, value in spread([each.wall for each in rounds]).items():
            figures[f"{channels}_{name}_s"] = value
    for channels, rounds in measured.items():
        if channels is not Channels.PLAINTEXT:
            pairs = list(zip(rounds, plain, strict=True))
            figures[f"{channels}_time_ratio"] = statistics.median(ours.wall / theirs.wall for ours, theirs in pairs)
            figures[f"{channels}_cpu_ratio"] = statistics.median(ours.cpu / theirs.cpu for ours, theirs in pairs)
    ratio = figures[f"{default}_time_ratio"]
    return Result("spark_tls", figures, ratio, GOAL, BAR, ratio <= BAR)


def main() -> int:
    """Measure and report; exit code 0 when the goal holds."""
    options = arguments(__doc__)
    with tempfile.TemporaryDirectory(prefix="spark-tls-") as directory:
        spark = find_spark_runtime()
        measured = asyncio.run(measure(QUICK if options.quick else FULL, spark, Path(directory)))
    return emit(summarize(measured, default_channels(spark)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
