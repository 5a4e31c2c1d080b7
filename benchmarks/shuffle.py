"""The cost of the remote shuffle: a sort and a wide groupBy, compared with Spark's own shuffle without and with TLS.

Jobs with the same executors run side by side and take turns: while one runs a round, all others are idle. *Ours* pushes
all data to a shuffle worker and reads it back, over mutual TLS. Spark's own shuffle writes to local disk and reads
three quarters of the data from the three other executors, in plaintext or over TLS. ``ratio`` is the median over
consecutive rounds of (time of ours / time of Spark without TLS). CPU time includes all processes of a job and the
shuffle worker. Peak memory is the resident memory of each process.

``holds`` says whether four bars hold: ours at most 1.0 times Spark without TLS and at most 0.85 times Spark with TLS,
both in time and in CPU time. Spark with TLS uses the JDK's TLS, as Spark itself does; ``--all-engines`` also measures
it with OpenSSL's engine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.report import Result, emit, progress, spread
from benchmarks.shuffle_work import ROUNDS_SHUFFLE_ROWS, ROW_BYTES
from benchmarks.shuffle_workers import ShuffleWorkers
from benchmarks.spark_job import Channels, Job
from sluice.pki import PkiConfig
from sluice.pki.issuing import LocalIssuer
from sluice.runtime.spark.jvm import DriverShape, SparkRuntime, TlsEngine, find_spark_runtime

BAR = 1.0
BAR_WITH_TLS = 0.85
FEWEST_ROUNDS = 2
GOAL = "mutual TLS at most 1.0 times Spark without TLS and 0.85 times Spark with TLS, in time and in CPU time"
SHAPE = DriverShape(executors=4, executor_cores=1, executor_memory_mb=1536, driver_memory_mb=768)
PARTITIONS = 64
CONF = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.ui.enabled": "false",
}

PLAIN, TLS, OURS, TLS_OPENSSL = "spark", "spark_tls", "ours", "spark_tls_openssl"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: rows per round, warm-up rounds, rounds that count, and when to stop early.

    Warm-up rounds have the same number of rows, because Spark writes that number into the code that it generates.
    """

    rows: int
    warm_up: int
    rounds: int
    budget_seconds: float


QUICK = Plan(rows=300_000, warm_up=3, rounds=4, budget_seconds=42.0)
FULL = Plan(rows=2_100_000, warm_up=6, rounds=7, budget_seconds=900.0)


@dataclass(frozen=True, slots=True)
class Round:
    """Wall and CPU time of one round, in seconds."""

    wall: float
    cpu: float


@dataclass
class Contender:
    """One job, and its own shuffle workers, if it uses any."""

    name: str
    job: Job
    workers: ShuffleWorkers | None = None

    async def round(self, rows: int) -> Round:
        """Run one round."""
        before = self.workers.cpu_seconds() if self.workers else 0.0
        wall, cpu = await self.job.round(rows)
        return Round(wall, cpu + (self.workers.cpu_seconds() - before if self.workers else 0.0))

    def peak_memory_mb(self) -> dict[str, float]:
        """Return the peak resident memory of each process so far."""
        processes = {f"executor_{number}": jvm.pid for number, jvm in self.job.executors.items()}
        if self.workers:
            processes.update({name.replace("-", "_"): each.pid for name, each in self.workers.processes.items()})
        return {name: _peak_mb(pid) for name, pid in processes.items()}


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = next((line for line in lines if line.startswith("VmHWM:")), "")
    return int(found.split()[1]) / 1024 if found else psutil.Process(pid).memory_info().rss / 2**20


def contenders(spark: SparkRuntime, directory: Path, *, all_engines: bool) -> list[Contender]:
    """Return the jobs to measure."""
    config = PkiConfig()
    issuer = LocalIssuer(directory / "pki", config)
    issuer.ensure_authorities()
    fast = Channels.OPENSSL if spark.engine is TlsEngine.OPENSSL else Channels.JDK
    channels = {PLAIN: Channels.PLAINTEXT, TLS: Channels.JDK, OURS: fast}
    if all_engines:
        channels[TLS_OPENSSL] = Channels.OPENSSL
    script = Path(__file__).with_name("shuffle_work.py")
    found = [
        Contender(name, Job(each, directory / name, spark, issuer, config.trust_domain, script, SHAPE, CONF))
        for name, each in channels.items()
    ]
    ours = next(each for each in found if each.name == OURS)
    ours.workers = ours.job.shuffle = ShuffleWorkers(
        directory / "workers", issuer, config.trust_domain, [ours.job.job_id]
    )
    return found


async def measure(plan: Plan, jobs: list[Contender]) -> dict[str, list[Round]]:
    """Return all rounds of all jobs. The n-th rounds of the jobs ran one after the other."""
    measured: dict[str, list[Round]] = {each.name: [] for each in jobs}
    stop_at = time.monotonic() + plan.budget_seconds
    for number in range(plan.warm_up + plan.rounds):
        if number >= plan.warm_up + FEWEST_ROUNDS and time.monotonic() > stop_at:
            break
        for each in jobs if number % 2 else reversed(jobs):
            found = await each.round(plan.rows)
            if number >= plan.warm_up:
                measured[each.name].append(found)
            which = f"round {number + 1} of {plan.warm_up + plan.rounds}, {each.name}"
            progress(f"{which}: {found.wall:.1f} s, {found.cpu:.1f} CPU s")
    return measured


def ratio(measured: Mapping[str, list[Round]], ours: str, theirs: str, value: Callable[[Round], float]) -> float:
    """Return the median ratio over consecutive rounds, so that a slow minute of the machine affects both."""
    pairs = zip(measured[ours], measured[theirs], strict=True)
    return statistics.median(value(first) / value(second) for first, second in pairs)


def summarize(plan: Plan, measured: Mapping[str, list[Round]], peaks: Mapping[str, Mapping[str, float]]) -> Result:
    """Return all figures, and whether the bars hold."""
    gigabytes = plan.rows * ROW_BYTES * ROUNDS_SHUFFLE_ROWS / 1e9
    figures = {"shuffled_gb_per_round": gigabytes, "rounds": float(len(measured[OURS]))}
    for name, rounds in measured.items():
        figures.update({f"{name}_{key}_s": value for key, value in spread([each.wall for each in rounds]).items()})
        cpu = statistics.median(each.cpu for each in rounds)
        figures[f"{name}_cpu_s"] = cpu
        figures[f"{name}_cpu_s_per_gb"] = cpu / gigabytes
        figures.update({f"{name}_{process}_peak_mb": peak for process, peak in peaks[name].items()})
    bars = []
    for theirs, bar in ((PLAIN, BAR), (TLS, BAR_WITH_TLS), (TLS_OPENSSL, None)):
        if theirs in measured:
            time_ratio = ratio(measured, OURS, theirs, lambda each: each.wall)
            cpu_ratio = ratio(measured, OURS, theirs, lambda each: each.cpu)
            figures[f"ours_over_{theirs}_time"] = time_ratio
            figures[f"ours_over_{theirs}_cpu"] = cpu_ratio
            bars.append(bar is None or max(time_ratio, cpu_ratio) <= bar)
    return Result("shuffle", figures, figures[f"ours_over_{PLAIN}_time"], GOAL, BAR, all(bars))


async def run(plan: Plan, *, all_engines: bool) -> Result:
    """Start everything, measure, and stop it."""
    with tempfile.TemporaryDirectory(prefix="shuffle-") as directory:
        jobs = contenders(find_spark_runtime(), Path(directory), all_engines=all_engines)
        async with AsyncExitStack() as stack:
            progress(f"starting {len(jobs)} jobs: {', '.join(each.name for each in jobs)}")
            for each in jobs:
                if each.workers:
                    await each.workers.start(stack)
            await asyncio.gather(*(each.job.start(stack) for each in jobs))
            measured = await measure(plan, jobs)
            for each in jobs:
                each.job.check_channels()
            return summarize(plan, measured, {each.name: each.peak_memory_mb() for each in jobs})


def main() -> int:
    """Measure and report; exit code 0 when all bars hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help="within 60 seconds on 2 cores; same meaning, more noise")
    parser.add_argument("--all-engines", action="store_true", help="also measure Spark's own shuffle with OpenSSL")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    return emit(asyncio.run(run(plan, all_engines=options.all_engines)), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
