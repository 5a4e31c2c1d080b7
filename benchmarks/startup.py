"""How long a newcomer waits: `sluice up` to ready, and from submit to first task and end, beside plain Spark.

The peer is ``spark-submit --master local[2]`` of the same pipeline on the same Java: from its start to the launch of
its first task (from Spark's own event log) and to its end. Ours is from ``sluice submit --wait`` through the gateway,
with executors in slots of their own, sandboxes and mutual TLS everywhere. Two pipelines: one of a single line, and the
inventory of certificates that ``make demo`` runs. Alternating runs, medians; processor time of all that was at work.

``--without-archive`` adds the same cluster without an archive of Spark's classes: the ratio says what that is worth.
``--warm`` adds one on which JVMs wait for jobs (as root with sandboxes); each run begins when as many wait as it takes.
It also says what a JVM that waits has cost, and what it holds. ``--stream JOBS`` adds, on each cluster, so many jobs of
the pipeline of one line one after the other, and four at a time: jobs a minute, and seconds of each.
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
"""Of each job."""
WARM_JVMS = 3
FIGURES = ("first_task", "end", "cpu")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster in ``home`` whose processes find what was built for them in ``cache``."""

    home: Path
    cache: Path

    def __call__(self, verb: str, *arguments_: str) -> str:
        """Run a verb on it; returns its standard output."""
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
    """One job.

    Attributes:
        first_task: seconds from submission to the launch of its first task.
        end: seconds from submission to its end, as whoever waits for it learns it.
        cpu: processor seconds of all that was at work meanwhile: for Sluice the client and the whole cluster, too.
    """

    first_task: float
    end: float
    cpu: float


class Clock(threading.Thread):
    """Sums up the processor time of all processes below some, from its start to :meth:`stop`; sampled, so a bit low.

    What a process in a box has used is not told to whoever started the box, so it has to be looked at while it runs.
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
        """The sum."""
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
    time.sleep(SETTLE_SECONDS)  # what is cleared away after a job costs, too
    return Run(float(job["progress"]["first_task_at"]) - started, ended - started, clock.stop())


def measure_stream(cluster: Cluster, pipeline: Path, jobs: int, at_a_time: int) -> dict[str, float]:
    """Keep ``at_a_time`` jobs submitted until ``jobs`` have ended; jobs a minute, and seconds of each."""

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
    """The same with plain ``spark-submit --master local[2]``."""
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
    """Seconds since the epoch of the first task's launch, from the event log."""
    for file in events.rglob("*"):
        if file.is_file():
            for line in file.read_text(encoding="utf-8").splitlines():
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskStart":
                    return float(event["Task Info"]["Launch Time"]) / 1000
    raise SystemExit("spark-submit left no event log with a task")


@contextmanager
def running(folder: Path, name: str, cache: Path, settings: str = "") -> Iterator[Cluster]:
    """A cluster that is ready, with ``settings`` for its configuration."""
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
    """JVMs that wait for jobs on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def until_full(self) -> None:
        """Return when as many wait as a job takes."""
        deadline = time.monotonic() + FILL_SECONDS
        while (waiting := self._figures("sluice_warm_jvms")) != {"driver": 1.0, "executor": float(EXECUTORS)}:
            if time.monotonic() > deadline:
                raise SystemExit(f"JVMs that wait after {FILL_SECONDS} s: {waiting}")
            time.sleep(1)
        time.sleep(SETTLE_SECONDS)

    def costs(self) -> dict[str, float]:
        """What one has cost and holds; a driver's with its agent and its Python."""
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
    """Let JVMs begin to wait before a contender runs, which is not disturbed by it then."""
    if waiting is not None:
        waiting.until_full()


def caches(folder: Path) -> tuple[Path, Path]:
    """One with an archive of Spark's classes, and one without; both with the plugin."""
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
            measure_sluice(clusters["warm"], tiny)  # nothing waits before the first job
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
    """Spreads of all runs, and ratios of contenders in the same rounds."""
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
    parser.add_argument("--rounds", type=int, default=5, help="of every pipeline with every contender")
    parser.add_argument("--warm", action="store_true", help="and a cluster on which JVMs wait for jobs")
    parser.add_argument("--stream", type=int, default=0, metavar="JOBS", help="and so many jobs without a pause")
    parser.add_argument("--without-archive", action="store_true", help="and a cluster without an archive of classes")


def _ratio(ours: Sequence[Run], theirs: Sequence[Run], figure: str) -> float:
    """The median of the rounds' ratios."""
    pairs = zip(ours, theirs, strict=True)
    ratios = [float(getattr(mine, figure)) / float(getattr(other, figure)) for mine, other in pairs]
    return statistics.median(ratios)


if __name__ == "__main__":
    sys.exit(main())
