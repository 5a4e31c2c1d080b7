"""How long a newcomer waits: `sluice up` to ready, and submit to the first task, beside plain Spark.

The peer is ``spark-submit --master local[2]`` of the same pipeline: from its start to the launch of its first task
(from Spark's own event log). Ours is from the submission through the gateway to the launch of the first task, with
executors in slots of their own and mutual TLS everywhere. Alternating runs, medians.

The same cluster without an archive of Spark's classes is a second peer: the ratio of both is what the archive is worth.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.report import Result, arguments, emit, progress, spread
from sluice.core import make_private_directory
from sluice.runtime.spark import checksum_file, ensure_plugin
from sluice.runtime.spark.jvm import make_class_archive

REPOSITORY = Path(__file__).resolve().parents[1]
PIPELINE = REPOSITORY / "pipelines" / "cert_inventory.py"
BAR = 1.5
RUN_TIMEOUT_SECONDS = 300
SAMPLE_SECONDS = 0.1
MEASURED = ("first_task", "end", "java_cpu")


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


class JavaClock(threading.Thread):
    """Sums up the processor time of Java processes below a process that come while it runs; sampled, so a bit low.

    On a machine that does other things too, processor time says more than time.
    """

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(root)
        self._over = threading.Event()
        self._seconds: dict[int, float] = {}

    def run(self) -> None:
        """Sample until :meth:`stop`."""
        while not self._over.wait(SAMPLE_SECONDS):
            with contextlib.suppress(psutil.Error):
                for child in self._root.children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        if child.name() == "java":
                            times = child.cpu_times()
                            self._seconds[child.pid] = times.user + times.system

    def stop(self) -> float:
        """The sum so far."""
        self._over.set()
        self.join()
        return sum(self._seconds.values())


def measure_sluice(cluster: Cluster) -> tuple[float, float, float]:
    """Seconds from submit to the first task, to the end, and of processors in the job's JVMs."""
    record = json.loads((cluster.home / "run" / "cluster.json").read_text())
    clock = JavaClock(record["launcher"]["pid"])
    clock.start()
    started = time.time()
    job = json.loads(cluster("submit", "--wait", "--json", str(PIPELINE)))
    ended = time.time()
    return float(job["progress"]["first_task_at"]) - started, ended - started, clock.stop()


def measure_spark_submit(folder: Path) -> tuple[float, float, float]:
    """The same of plain ``spark-submit --master local[2]``."""
    events = Path(tempfile.mkdtemp(dir=folder))
    command = [
        str(Path(sys.executable).parent / "spark-submit"),
        *("--master", "local[2]"),
        *("--conf", "spark.eventLog.enabled=true"),
        *("--conf", f"spark.eventLog.dir=file://{events}"),
        *("--conf", "spark.eventLog.compress=false"),
        *("--conf", "spark.eventLog.rolling.enabled=false"),
        *("--conf", "spark.ui.enabled=false"),
        str(PIPELINE),
    ]
    variables = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    clock = JavaClock(os.getpid())  # with what the clusters in the background have: nothing but idle Python
    clock.start()
    started = time.time()
    subprocess.run(command, env=variables, capture_output=True, timeout=RUN_TIMEOUT_SECONDS, check=True)
    ended = time.time()
    return _first_launch(events) - started, ended - started, clock.stop()


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
def running(folder: Path, name: str, cache: Path) -> Iterator[Cluster]:
    """A cluster that is ready."""
    progress(f"starting a cluster: {name}")
    cluster = Cluster(folder / name, cache)
    cluster("up", "--detach", "--port", "0")
    try:
        cluster("token create", "bench", "--role", "submitter", "--output", str(cluster.home / "token"))
        yield cluster
    finally:
        cluster("down")


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
    options = arguments(__doc__)
    rounds = 1 if options.quick else 5
    figures: dict[str, float] = {}
    runs: dict[str, list[tuple[float, float, float]]] = {"sluice": [], "without_archive": [], "spark_submit": []}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        progress("making an archive of Spark's classes, unless there is one")
        with_archive, without = caches(folder)
        cluster = stack.enter_context(running(folder, "sluice", with_archive))
        figures["up_to_ready_s"] = json.loads(cluster("status", "--json"))["startup_seconds"]
        slower = stack.enter_context(running(folder, "without_archive", without))
        for number in range(1, rounds + 1):
            progress(f"round {number} of {rounds}")
            runs["sluice"].append(measure_sluice(cluster))
            runs["without_archive"].append(measure_sluice(slower))
            runs["spark_submit"].append(measure_spark_submit(folder))
    for label, each in runs.items():
        for column, what in enumerate(MEASURED):
            for statistic, value in spread([run[column] for run in each]).items():
                figures[f"{label}_submit_to_{what}_{statistic}_s"] = value
    for column, what in enumerate(MEASURED):
        figures[f"with_over_without_archive_{what}"] = _ratio(runs["sluice"], runs["without_archive"], column)
    ratio = _ratio(runs["sluice"], runs["spark_submit"], 0)
    goal = f"submit to first task at most {BAR} times spark-submit --master local[2] of the same pipeline"
    return emit(Result("startup", figures, ratio, goal, BAR, ratio <= BAR), as_json=options.json)


def _ratio(ours: Sequence[tuple[float, ...]], theirs: Sequence[tuple[float, ...]], column: int) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(mine[column] / other[column] for mine, other in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    sys.exit(main())
