"""The latency of a row through the shuffle of a real-time query, compared with Spark's own shuffle without TLS.

Two jobs with two executors each run side by side and take turns: 50 rows per second for one, then for the other. *Ours*
sends rows through two shuffle workers over mutual TLS. Spark's own manager sends them from executor to executor in
plaintext, through servers in its map tasks. The latency of a row is the time from the expression before the shuffle to
the expression behind it, by the clock of the same machine. ``ratio`` is the ratio of the medians over all rows.

``holds`` says whether three bars hold: a ratio of at most 0.5, and a latency of ours of at most 10 ms in the median and
40 ms in the 99th percentile.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Result, arguments, emit, progress
from benchmarks.shuffle_workers import ShuffleWorkers
from benchmarks.spark_job import Channels, Job
from sluice.pki import PkiConfig
from sluice.pki.issuing import LocalIssuer
from sluice.runtime.spark.jvm import DriverShape, SparkRuntime, TlsEngine, find_spark_runtime

BAR = 0.5
MEDIAN_MS = 10.0
HIGH_MS = 40.0
GOAL = "at most half of the time that Spark's own takes without TLS, 10 ms in the median, 40 ms for 99 of 100 rows"
SHAPE = DriverShape(executors=2, executor_cores=2, executor_memory_mb=768, driver_memory_mb=768)
CONF = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
OURS, STOCK = "ours", "spark"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: rows per round, warm-up rounds, and rounds that count."""

    rows: int
    warm_up: int
    rounds: int


QUICK = Plan(rows=100, warm_up=1, rounds=2)
FULL = Plan(rows=200, warm_up=2, rounds=6)


def contenders(spark: SparkRuntime, directory: Path) -> tuple[dict[str, Job], ShuffleWorkers]:
    """Return both jobs, and the shuffle workers of our job."""
    config = PkiConfig()
    issuer = LocalIssuer(directory / "pki", config)
    issuer.ensure_authorities()
    script = Path(__file__).with_name("real_time_work.py")
    fast = Channels.OPENSSL if spark.engine is TlsEngine.OPENSSL else Channels.JDK
    own = {**CONF, "spark.shuffle.manager.incremental": "streaming"}
    jobs = {
        name: Job(channels, directory / name, spark, issuer, config.trust_domain, script, SHAPE, conf)
        for name, channels, conf in ((OURS, fast, CONF), (STOCK, Channels.PLAINTEXT, own))
    }
    workers = ShuffleWorkers(directory / "workers", issuer, config.trust_domain, [jobs[OURS].job_id], 2)
    jobs[OURS].shuffle = workers
    return jobs, workers


async def measure(plan: Plan, jobs: Mapping[str, Job]) -> dict[str, list[float]]:
    """Return the latencies of all rows, in milliseconds."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(plan.warm_up + plan.rounds):
        for name, job in list(jobs.items())[:: 1 if number % 2 else -1]:
            times: list[float] = json.loads(await job.ask(str(plan.rows)))
            if number >= plan.warm_up:
                found[name] += times
            middle = statistics.median(times)
            progress(f"round {number + 1} of {plan.warm_up + plan.rounds}, {name}: median {middle:.1f} ms")
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that a fraction ``share`` of all values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def summarize(found: Mapping[str, Sequence[float]]) -> Result:
    """Return all figures, and whether the bars hold."""
    figures = {"rows": float(len(found[OURS]))}
    for name, times in found.items():
        figures[f"{name}_min_ms"] = min(times)
        for part, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99)):
            figures[f"{name}_{part}_ms"] = percentile(times, share)
        figures[f"{name}_max_ms"] = max(times)
    ratio = figures[f"{OURS}_median_ms"] / figures[f"{STOCK}_median_ms"]
    fast = figures[f"{OURS}_median_ms"] <= MEDIAN_MS and figures[f"{OURS}_p99_ms"] <= HIGH_MS
    return Result("real_time", figures, ratio, GOAL, BAR, fast and ratio <= BAR)


async def run(plan: Plan) -> Result:
    """Start everything, measure, and stop it."""
    with tempfile.TemporaryDirectory(prefix="real-time-") as directory:
        jobs, workers = contenders(find_spark_runtime(), Path(directory))
        async with AsyncExitStack() as stack:
            await workers.start(stack)
            await asyncio.gather(*(job.start(stack) for job in jobs.values()))
            return summarize(await measure(plan, jobs))


def main() -> int:
    """Measure and report; exit code 0 when all bars hold."""
    options = arguments(__doc__)
    return emit(asyncio.run(run(QUICK if options.quick else FULL)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
