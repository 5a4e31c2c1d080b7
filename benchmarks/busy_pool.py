"""The cost of the pool of warm JVMs for a busy cluster: jobs fill all slots, with the pool on and off.

Each of the two clusters has slots for the executors of one job. A job keeps every processor busy with
queries that all do the same work, and prints how long each of them took. In the cluster with the pool, the
pool is full when a job begins, and lacks all its JVMs while the job runs. The clusters take turns. The
ratio of a round is that of its medians, and the result is the median over the rounds. The first queries of
a job, during which its JVMs compile, do not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.report import Result, arguments, emit, progress, spread
from benchmarks.startup import EXECUTORS, WARM_JVMS, Cluster, Waiting, caches, measure_sluice, running

BAR = 1.03
QUERIES, COMPILING = 24, 8
"""Queries of each job, and those of them that do not count."""
BUSY = f"""\
import json
import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
seconds = []
for _ in range({QUERIES}):
    started = time.monotonic()
    spark.range(0, 60_000_000, 1, {EXECUTORS}).selectExpr("sum(hash(id, id % 7))").collect()
    seconds.append(time.monotonic() - started)
print(json.dumps(seconds))
spark.stop()
"""
SETTINGS = f"[taskmanager]\ncount = 1\nslots = {EXECUTORS}\n[warm]\njvms = "


def query_seconds(cluster: Cluster, pipeline: Path) -> list[float]:
    """Run a job; returns the seconds of its queries, without the first ones."""
    job = json.loads(cluster("submit", "--wait", "--json", str(pipeline)))
    seconds: list[float] = json.loads(cluster("jobs logs", job["id"], "--source", "driver.stdout"))
    return seconds[COMPILING:]


def main() -> int:
    """Measure and report."""
    options = arguments(__doc__, more=_options)
    rounds = 1 if options.quick else options.rounds
    found: dict[str, list[float]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        pipeline = folder / "busy.py"
        pipeline.write_text(BUSY, encoding="utf-8")
        progress("making an archive of Spark's classes, unless there is one")
        cache, _ = caches(folder)
        clusters = {
            "on": stack.enter_context(running(folder, "on", cache, f"{SETTINGS}{WARM_JVMS}\n")),
            "off": stack.enter_context(running(folder, "off", cache, f"{SETTINGS}0\n")),
        }
        waiting = Waiting(clusters["on"])
        measure_sluice(clusters["on"], pipeline)  # the pool is empty before the first job
        for number in range(1, rounds + 1):
            progress(f"round {number} of {rounds}")
            for who in ("on", "off") if number % 2 else ("off", "on"):
                waiting.until_full()
                found[who].append(statistics.median(query_seconds(clusters[who], pipeline)))
    figures = {
        f"query_pool_{who}_{statistic}_s": value
        for who, each in found.items()
        for statistic, value in spread(each).items()
    }
    ratio = statistics.median(on / off for on, off in zip(found["on"], found["off"], strict=True))
    goal = f"queries of a job on a full cluster take at most {BAR} times as long with a pool of warm JVMs"
    return emit(Result("busy_pool", figures, ratio, goal, BAR, ratio <= BAR), as_json=options.json)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=9, help="rounds of a job on each cluster")


if __name__ == "__main__":
    raise SystemExit(main())
