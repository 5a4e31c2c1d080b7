"""The cost of sealing: a sort and a wide groupBy with our shuffle, sealed and unsealed, compared with Spark's own.

As in :mod:`benchmarks.shuffle`, jobs with the same executors run side by side and take turns. Ours goes through a
shuffle worker over mutual TLS, once unsealed and once sealed (AES-256-GCM in the executors, in addition to TLS).
Spark's own runs without and with TLS. ``ratio`` is the median over consecutive rounds of (time sealed / time of Spark
without TLS).

``holds`` says whether three bars hold: sealed at most 1.0 times the time of Spark without TLS, at most 0.85 times that
of Spark with TLS, and the worker's CPU time per GB at most 1.05 times that without sealing.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import Result, arguments, emit, progress, spread
from benchmarks.shuffle import (
    BAR,
    BAR_WITH_TLS,
    CONF,
    FULL,
    OURS,
    PLAIN,
    QUICK,
    SHAPE,
    TLS,
    Contender,
    Plan,
    Round,
    contenders,
    measure,
    ratio,
)
from benchmarks.shuffle_work import ROUNDS_SHUFFLE_ROWS, ROW_BYTES
from benchmarks.shuffle_workers import ShuffleWorkers
from benchmarks.spark_job import Job
from sluice.runtime.spark.jvm import find_spark_runtime

SEALED = "sealed"
SEAL = "spark.sluice.shuffle.seal"
WORKER_BAR = 1.05
GOAL = (
    "sealed at most 1.0 times Spark without TLS and 0.85 times Spark with TLS in time, "
    "and the worker's CPU time at most 1.05 times that without sealing"
)


@dataclass
class Watched(Contender):
    """A contender that also records the CPU time of its shuffle workers in each round."""

    worker_cpu: list[float] = field(default_factory=list)

    async def round(self, rows: int) -> Round:
        """Run one round."""
        before = self.workers.cpu_seconds() if self.workers else 0.0
        found = await super().round(rows)
        self.worker_cpu.append((self.workers.cpu_seconds() if self.workers else 0.0) - before)
        return found


def sealed_and_others(directory: Path) -> list[Contender]:
    """Return the contenders of :mod:`benchmarks.shuffle`, and ours sealed."""
    found: list[Contender] = [
        Watched(each.name, each.job, each.workers)
        for each in contenders(find_spark_runtime(), directory, all_engines=False)
    ]
    ours = next(each for each in found if each.name == OURS)
    job = Job(
        ours.job.channels, directory / SEALED, ours.job.spark, ours.job.issuer, ours.job.trust_domain, ours.job.script,
        SHAPE, {**CONF, SEAL: "true"},
    )  # fmt: skip
    job.shuffle = workers = ShuffleWorkers(directory / "sealed-workers", job.issuer, job.trust_domain, [job.job_id])
    ours.job.conf = {**CONF, SEAL: "false"}
    return [*found, Watched(SEALED, job, workers)]


def summarize(plan: Plan, measured: Mapping[str, list[Round]], worker_cpu: Mapping[str, list[float]]) -> Result:
    """Return all figures, and whether the bars hold."""
    gigabytes = plan.rows * ROW_BYTES * ROUNDS_SHUFFLE_ROWS / 1e9
    figures = {"shuffled_gb_per_round": gigabytes, "rounds": float(len(measured[SEALED]))}
    for name, rounds in measured.items():
        figures.update({f"{name}_{key}_s": value for key, value in spread([each.wall for each in rounds]).items()})
        figures[f"{name}_cpu_s_per_gb"] = statistics.median(each.cpu for each in rounds) / gigabytes
    for name in (OURS, SEALED):
        figures[f"{name}_worker_cpu_s_per_gb"] = statistics.median(worker_cpu[name][-len(measured[name]) :]) / gigabytes
    for theirs in (PLAIN, TLS, OURS):
        figures[f"sealed_over_{theirs}_time"] = ratio(measured, SEALED, theirs, lambda each: each.wall)
        figures[f"sealed_over_{theirs}_cpu"] = ratio(measured, SEALED, theirs, lambda each: each.cpu)
    worker = figures["sealed_worker_cpu_s_per_gb"] / figures["ours_worker_cpu_s_per_gb"]
    figures["sealed_over_ours_worker_cpu"] = worker
    holds = (
        figures[f"sealed_over_{PLAIN}_time"] <= BAR
        and figures[f"sealed_over_{TLS}_time"] <= BAR_WITH_TLS
        and worker <= WORKER_BAR
    )
    return Result("sealed_shuffle", figures, figures[f"sealed_over_{PLAIN}_time"], GOAL, BAR, holds)


async def run(plan: Plan) -> Result:
    """Start everything, measure, and stop it."""
    with tempfile.TemporaryDirectory(prefix="sealed-shuffle-") as directory:
        jobs = sealed_and_others(Path(directory))
        async with AsyncExitStack() as stack:
            progress(f"starting {len(jobs)} jobs: {', '.join(each.name for each in jobs)}")
            for each in jobs:
                if each.workers:
                    await each.workers.start(stack)
            await asyncio.gather(*(each.job.start(stack) for each in jobs))
            measured = await measure(plan, jobs)
            for each in jobs:
                each.job.check_channels()
            return summarize(plan, measured, {each.name: each.worker_cpu for each in jobs if isinstance(each, Watched)})


def main() -> int:
    """Measure and report; exit code 0 when all bars hold."""
    options = arguments(__doc__)
    return emit(asyncio.run(run(QUICK if options.quick else FULL)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
