"""Startup times: `sluice up` to ready, and from submission to first task and end of a job, compared with plain Spark.

The peer is ``spark-submit --master local[2]`` of the same pipeline on the same Java, from its start to the launch of
its first task (from Spark's event log) and to its end. Ours is ``sluice submit --wait`` through the gateway, with
executors in their own slots, sandboxes and mutual TLS everywhere. There are two pipelines: one of a single line, and
the inventory of certificates that ``make demo`` runs. The runs alternate, and figures are medians. CPU time includes
all processes that took part.

``--without-archive`` adds the same cluster without an archive of Spark's classes; the ratio is the gain of the archive.
``--warm`` adds a cluster with a pool of warm JVMs (as root with sandboxes). Each run begins when the pool has as many
as a job needs. The figures include the CPU time and the memory of a waiting JVM. ``--stream JOBS`` runs this number of
jobs of the one-line pipeline on each cluster, one after the other and four at a time: jobs per minute, and seconds per
job.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.report import Result, arguments, emit, progress, spread
from sluice.core import make_private_directory
from sluice.runtime.spark import checksum_file, ensure_plugin, find_preferred_java
from sluice.runtime.spark.jvm import WAITING_ROOM
from sluice.runtime.spark.training import make_class_archive

REPOSITORY = Path(__file__).resolve().parents[1]
INVENTORY = REPOSITORY / "pipelines" / "cert_inventory.py"
TINY = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print(spark.range(1000).selectExpr("sum(id)").collect())
spark.stop()
"""
BAR = 0.85
RUN_TIMEOUT_SECONDS = 300
SETTLE_SECONDS = 2.0
SAMPLE_SECONDS = 0.25
FILL_SECONDS = 300
AT_A_TIME = (1, 4)
EXECUTORS = 2
"""Executors of each job."""
WARM_JVMS = 3
FIGURES = ("first_task", "end", "cpu")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster in ``home``. Its processes use the plugin and the class archive in ``cache``."""

    home: Path
    cache: Path

    def __call__(self, verb: str, *arguments_: str) -> str:
        """Run a verb on the cluster; returns its standard output."""
        return sluice(self.home, verb, *arguments_, variables={"XDG_CACHE_HOME": str(self.cache)})


def sluice(home: Path, verb: str, *arguments_: str, variables: Mapping[str, str]) -> str:
    """Run a verb on the cluster in ``home``; returns its standard output."""
    verbs = verb.split()
    command = [sys.executable, "-m", "sluice.cli.main", *verbs, "--home", str(home), *arguments_]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one job.

    Attributes:
        first_task: seconds from submission to the launch of its first task.
        end: seconds from submission to its end, as seen by the waiting client.
        cpu: CPU seconds of all processes that took part; for Sluice including the client and the whole cluster.
    """

    first_task: float
    end: float
    cpu: float


class Clock(threading.Thread):
    """Sums the CPU time of all descendants of some processes until :meth:`stop`. It samples, so the sum is a bit low.

    The parent of a sandbox is not charged for the processes in it, so they must be sampled while they run.
    """

    def __init__(self, *roots: int) -> None:
        super().__init__(daemon=True)
        self._roots = [psutil.Process(each) for each in roots]
        self._over = threading.Event()
        self._used: dict[int, float] = {}
        self._before = self._look()

    def run(self) -> None:
        """Sample until :meth:`stop`."""
        while not self._over.wait(SAMPLE_SECONDS):
            self._look()

    def _look(self) -> dict[int, float]:
        for root in self._roots:
            with contextlib.suppress(psutil.Error):
                for process in root.children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        times = process.cpu_times()
                        self._used[process.pid] = times.user + times.system
        return dict(self._used)

    def stop(self) -> float:
        """Stop sampling; returns the sum in seconds."""
        self._over.set()
        self.join()
        return sum(seconds - self._before.get(pid, 0.0) for pid, seconds in self._look().items())


def measure_sluice(cluster: Cluster, pipeline: Path) -> Run:
    """Submit ``pipeline`` through the gateway, and wait for its end."""
    record = json.loads((cluster.home / "run" / "cluster.json").read_text())
    clock = Clock(record["launcher"]["pid"], os.getpid())
    clock.start()
    started = time.time()
    job = json.loads(cluster("submit", "--wait", "--json", str(pipeline)))
    ended = time.time()
    time.sleep(SETTLE_SECONDS)  # the cleanup after a job counts too
    return Run(float(job["progress"]["first_task_at"]) - started, ended - started, clock.stop())


def measure_stream(cluster: Cluster, pipeline: Path, jobs: int, at_a_time: int) -> dict[str, float]:
    """Keep ``at_a_time`` jobs submitted until ``jobs`` have ended.

    Returns jobs per minute, and the median and 99th percentile of the seconds per job.
    """

    def run(_: int) -> float:
        started = time.monotonic()
        cluster("submit", "--wait", str(pipeline))
        return time.monotonic() - started

    started = time.monotonic()
    with ThreadPoolExecutor(at_a_time) as clients:
        seconds = sorted(clients.map(run, range(jobs)))
    return {
        "jobs_per_minute": 60 * jobs / (time.monotonic() - started),
        "p50_s": statistics.median(seconds),
        "p99_s": seconds[math.ceil(0.99 * jobs) - 1],
    }


def measure_spark_submit(folder: Path, pipeline: Path) -> Run:
    """Run ``pipeline`` with plain ``spark-submit --master local[2]``."""
    events = Path(tempfile.mkdtemp(dir=folder))
    command = [
        str(Path(sys.executable).parent / "spark-submit"),
        *("--master", "local[2]"),
        *("--conf", "spark.eventLog.enabled=true"),
        *("--conf", f"spark.eventLog.dir=file://{events}"),
        *("--conf", "spark.eventLog.compress=false"),
        *("--conf", "spark.eventLog.rolling.enabled=false"),
        *("--conf", "spark.ui.enabled=false"),
        str(pipeline),
    ]
    variables = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(find_preferred_java().home),
    }
    clock = Clock(os.getpid())
    clock.start()
    started = time.time()
    subprocess.run(command, env=variables, capture_output=True, timeout=RUN_TIMEOUT_SECONDS, check=True)
    ended = time.time()
    return Run(_first_launch(events) - started, ended - started, clock.stop())


def _first_launch(events: Path) -> float:
    """Return the launch time of the first task from the event log, in epoch seconds."""
    for file in events.rglob("*"):
        if file.is_file():
            for line in file.read_text(encoding="utf-8").splitlines():
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskStart":
                    return float(event["Task Info"]["Launch Time"]) / 1000
    raise SystemExit("spark-submit left no event log with a task")


@contextmanager
def running(folder: Path, name: str, cache: Path, settings: str = "") -> Iterator[Cluster]:
    """Run a cluster with ``settings`` as its configuration within the block; yields it when it is ready."""
    progress(f"starting a cluster: {name}")
    cluster = Cluster(folder / name, cache)
    config = folder / f"{name}.toml"
    config.write_text(settings, encoding="utf-8")
    cluster("up", "--detach", "--port", "0", "--config", str(config))
    try:
        cluster("token create", "bench", "--role", "submitter", "--output", str(cluster.home / "token"))
        yield cluster
    finally:
        cluster("down")


class Waiting:
    """The pool of warm JVMs of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def until_full(self) -> None:
        """Wait until the pool has as many warm JVMs as a job needs.

        After concurrent jobs, it may have more.
        """
        deadline = time.monotonic() + FILL_SECONDS
        while not self._enough(waiting := self._figures("sluice_warm_jvms")):
            if time.monotonic() > deadline:
                raise SystemExit(f"the pool of warm JVMs is not full after {FILL_SECONDS} s: {waiting}")
            time.sleep(1)
        time.sleep(SETTLE_SECONDS)

    @staticmethod
    def _enough(waiting: Mapping[str, float]) -> bool:
        return waiting.get("driver", 0.0) >= 1 and waiting.get("executor", 0.0) >= EXECUTORS

    def costs(self) -> dict[str, float]:
        """Return CPU time and memory of a warm JVM; those of a driver include its agent and its Python."""
        seconds, started = self._figures("sluice_warm_cpu_seconds_total"), self._figures("sluice_warm_starts_total")
        held = [each.memory_full_info().pss / (1 << 20) for each in self._jvms()]
        return {
            **{f"warm_{kind}_start_cpu_s": seconds[kind] / started[kind] for kind in seconds if started.get(kind)},
            "warm_jvm_pss_mib": statistics.median(held),
        }

    def _jvms(self) -> list[psutil.Process]:
        record = json.loads((self._cluster.home / "run" / "cluster.json").read_text())
        below = psutil.Process(record["launcher"]["pid"]).children(recursive=True)
        return [each for each in below if each.name() == "java" and WAITING_ROOM in each.cmdline()]

    def _figures(self, name: str) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for each in json.loads(self._cluster("metrics", "--json")):
            labels = each["labels"]
            if each["name"] == name and labels.get("result", "waits") == "waits":
                found[labels["kind"]] += each["value"]
        return dict(found)


def settle(waiting: Waiting | None) -> None:
    """Fill the pool of warm JVMs before a contender runs, so that filling it does not disturb the run."""
    if waiting is not None:
        waiting.until_full()


def caches(folder: Path) -> tuple[Path, Path]:
    """Create two caches with the plugin: one with an archive of Spark's classes, and one without."""
    plugin, archive = ensure_plugin(), make_class_archive()
    with_archive, without = folder / "with", folder / "without"
    for cache, files in (
        (with_archive, (plugin, checksum_file(plugin), archive, checksum_file(archive))),
        (without, (plugin, checksum_file(plugin))),
    ):
        directory = make_private_directory(cache / "sluice")
        for file in files:
            shutil.copy2(file, directory / file.name)
    return with_archive, without


def main() -> int:
    """Measure and report."""
    options = arguments(__doc__, more=_options)
    rounds = 1 if options.quick else options.rounds
    figures: dict[str, float] = {}
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        tiny = folder / "tiny.py"
        tiny.write_text(TINY, encoding="utf-8")
        pipelines = {"tiny": tiny} | ({} if options.quick else {"inventory": INVENTORY})
        progress("making an archive of Spark's classes, unless there is one")
        with_archive, without = caches(folder)
        cluster = stack.enter_context(running(folder, "sluice", with_archive))
        figures["up_to_ready_s"] = json.loads(cluster("status", "--json"))["startup_seconds"]
        clusters = {"sluice": cluster}
        if options.without_archive:
            clusters["without_archive"] = stack.enter_context(running(folder, "without_archive", without))
        waiting = None
        if options.warm:
            settings = f"[warm]\njvms = {WARM_JVMS}\n"
            clusters["warm"] = stack.enter_context(running(folder, "warm", with_archive, settings))
            waiting = Waiting(clusters["warm"])
            measure_sluice(clusters["warm"], tiny)  # the pool is empty before the first job
        for number in range(1, rounds + 1):
            for what, pipeline in pipelines.items():
                progress(f"round {number} of {rounds}: {what}")
                for who, contender in clusters.items():
                    settle(waiting)
                    runs[what, who].append(measure_sluice(contender, pipeline))
                settle(waiting)
                runs[what, "spark_submit"].append(measure_spark_submit(folder, pipeline))
        if waiting is not None:
            waiting.until_full()
            figures |= waiting.costs()
        for at_a_time in AT_A_TIME if options.stream else ():
            for who, contender in clusters.items():
                progress(f"{options.stream} jobs, {at_a_time} at a time: {who}")
                settle(waiting)
                measured = measure_stream(contender, tiny, options.stream, at_a_time)
                figures |= {f"stream_{who}_{at_a_time}_at_a_time_{name}": value for name, value in measured.items()}
    figures |= _summary(runs)
    ratio = _ratio(runs["tiny", "sluice"], runs["tiny", "spark_submit"], "end")
    goal = f"submit to end of the tiny pipeline at most {BAR} times spark-submit --master local[2]"
    return emit(Result("startup", figures, ratio, goal, BAR, ratio <= BAR), as_json=options.json)


def _summary(runs: Mapping[tuple[str, str], Sequence[Run]]) -> dict[str, float]:
    """Return the spreads of all runs, and the ratios of contenders in the same rounds."""
    figures: dict[str, float] = {}
    for (what, who), each in runs.items():
        for figure in FIGURES:
            for statistic, value in spread([getattr(run, figure) for run in each]).items():
                figures[f"{what}_{who}_{figure}_{statistic}_s"] = value
            if who != "sluice":
                figures[f"{what}_sluice_over_{who}_{figure}"] = _ratio(runs[what, "sluice"], each, figure)
            if who == "warm":
                figures[f"{what}_warm_over_spark_submit_{figure}"] = _ratio(each, runs[what, "spark_submit"], figure)
    return figures


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every pipeline with every contender")
    parser.add_argument("--warm", action="store_true", help="add a cluster with a pool of warm JVMs")
    parser.add_argument("--stream", type=int, default=0, metavar="JOBS", help="add this many jobs without a pause")
    parser.add_argument("--without-archive", action="store_true", help="add a cluster without an archive of classes")


def _ratio(ours: Sequence[Run], theirs: Sequence[Run], figure: str) -> float:
    """Return the median of the rounds' ratios."""
    pairs = zip(ours, theirs, strict=True)
    ratios = [float(getattr(mine, figure)) / float(getattr(other, figure)) for mine, other in pairs]
    return statistics.median(ratios)


if __name__ == "__main__":
    sys.exit(main())
