"""How long a newcomer waits: `sluice up` to ready, and submit to the first task, beside plain Spark.

The peer is ``spark-submit --master local[2]`` of the same pipeline: from its start to the launch of its first task
(from Spark's own event log). Ours is from the submission through the gateway to the launch of the first task, with
executors in slots of their own and mutual TLS everywhere. Alternating runs, medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Result, arguments, emit, progress, spread

REPOSITORY = Path(__file__).resolve().parents[1]
PIPELINE = REPOSITORY / "pipelines" / "cert_inventory.py"
BAR = 1.5
RUN_TIMEOUT_SECONDS = 120


def sluice(home: Path, verb: str, *arguments_: str) -> str:
    """Run a verb on the cluster in ``home``; returns its standard output."""
    verbs = verb.split()
    command = [sys.executable, "-m", "cli.main", *verbs, "--home", str(home), *arguments_]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=RUN_TIMEOUT_SECONDS, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def measure_sluice(home: Path) -> tuple[float, float]:
    """(seconds from submit to the first task, seconds from submit to the end)."""
    started = time.time()
    job = json.loads(sluice(home, "submit", "--wait", "--json", str(PIPELINE)))
    return float(job["progress"]["first_task_at"]) - started, time.time() - started


def measure_spark_submit(folder: Path) -> tuple[float, float]:
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
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    started = time.time()
    subprocess.run(command, env=environment, capture_output=True, timeout=RUN_TIMEOUT_SECONDS, check=True)
    ended = time.time()
    return _first_launch(events) - started, ended - started


def _first_launch(events: Path) -> float:
    """Seconds since the epoch of the first task's launch, from the event log."""
    for file in events.rglob("*"):
        if file.is_file():
            for line in file.read_text(encoding="utf-8").splitlines():
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskStart":
                    return float(event["Task Info"]["Launch Time"]) / 1000
    raise SystemExit("spark-submit left no event log with a task")


def main() -> int:
    """Measure and report."""
    options = arguments(__doc__)
    rounds = 1 if options.quick else 5
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = folder / "home"
        progress("starting a cluster")
        sluice(home, "up", "--detach", "--port", "0")
        try:
            figures["up_to_ready_s"] = json.loads(sluice(home, "status", "--json"))["startup_seconds"]
            sluice(home, "token create", "bench", "--role", "submitter", "--output", str(home / "token"))
            ours, theirs = [], []
            for number in range(1, rounds + 1):
                progress(f"round {number} of {rounds}")
                ours.append(measure_sluice(home))
                theirs.append(measure_spark_submit(folder))
        finally:
            sluice(home, "down")
    for label, runs in (("sluice", ours), ("spark_submit", theirs)):
        for column, what in enumerate(("first_task", "end")):
            for statistic, value in spread([run[column] for run in runs]).items():
                figures[f"{label}_submit_to_{what}_{statistic}_s"] = value
    ratio = statistics.median(mine[0] / other[0] for mine, other in zip(ours, theirs, strict=True))
    goal = f"submit to first task at most {BAR} times spark-submit --master local[2] of the same pipeline"
    return emit(Result("startup", figures, ratio, goal, BAR, ratio <= BAR), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
