"""The cost of the sandbox: starting a process, and a shuffle-heavy job, compared with isolation level ``none``.

Starts: a program that does nothing runs in a sandbox with its guard, and without, in alternating order. The figure is
the difference of each pair. Job: two clusters, which differ only in the isolation level, each run one job. The jobs
take turns: while one runs a round, everything else is idle. ``ratio`` is the median over all pairs of rounds of (time
in the sandbox / time without).

With ``--egress``, both jobs run in sandboxes, and the ratio is (time in job networks / time in the machine's network):
``egress.mode`` is ``enforce`` in one cluster and ``off`` in the other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from benchmarks.report import Result, arguments, emit, progress, spread
from sluice.core import EgressMode
from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox, Subject, View

START_BAR_MS = 50.0
BAR = 1.03
GOAL = f"a start at most {START_BAR_MS:.0f} ms more, a shuffle-heavy job at most {BAR} times the time without"
EGRESS_GOAL = f"a shuffle-heavy job in networks of its own at most {BAR} times the time in the machine's"
JOB = "0" * 32
ROUNDS = Path(__file__).with_name("isolation_rounds.py")
REPOSITORY = Path(__file__).resolve().parents[1]
START_SECONDS = 240.0
ROUND_SECONDS = 300.0
CONFIG = """
[isolation]
level = "{level}"
writable = ["{shared}"]
[egress]
mode = "{mode}"
[taskmanager]
count = 1
slots = 2
slot_memory_mb = 1024
"""
EXECUTORS = 2


@dataclass(frozen=True, slots=True)
class Way:
    """How the jobs of one cluster are isolated."""

    level: IsolationLevel
    mode: EgressMode

    def __str__(self) -> str:
        return f"{self.level}_{self.mode}"


SANDBOX, PLAIN = Way(IsolationLevel.SANDBOX, EgressMode.OFF), Way(IsolationLevel.NONE, EgressMode.OFF)
OWN_NETWORK = Way(IsolationLevel.SANDBOX, EgressMode.ENFORCE)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: starts, rows per round, warm-up rounds, rounds that count, and when to stop early."""

    starts: int
    rows: int
    warm_up: int
    rounds: int
    budget_seconds: float


QUICK = Plan(starts=10, rows=1_000_000, warm_up=3, rounds=5, budget_seconds=20.0)
FULL = Plan(starts=50, rows=2_000_000, warm_up=8, rounds=41, budget_seconds=420.0)


async def measure_starts(count: int, directory: Path) -> tuple[list[float], list[float]]:
    """Return the milliseconds from start to end of a program that does nothing: in a sandbox, and without."""
    sandbox = await asyncio.to_thread(Sandbox.prepare, IsolationConfig())
    work = directory / "work"
    work.mkdir()
    sandbox.own([work], JOB)
    boxed: list[float] = []
    plain: list[float] = []
    for number in range(count + 1):
        for inside in (True, False) if number % 2 else (False, True):
            began = time.perf_counter()
            await _run(sandbox if inside else None, work)
            if number:  # the first pair runs with cold caches
                (boxed if inside else plain).append((time.perf_counter() - began) * 1000)
    return boxed, plain


async def _run(sandbox: Sandbox | None, work: Path) -> None:
    argv, env = ("/bin/true",), {"PATH": "/usr/bin:/bin"}
    quiet = subprocess.DEVNULL
    if sandbox is None:
        child = await ChildProcess.start(argv, env=env, cwd=work, stdout=quiet, stderr=quiet)
        ended = await child.wait()
    else:
        limits = sandbox.limits(memory_mb=1024, cores=1)
        guard = sandbox.guard(limits, Subject("the benchmark"), directories=[work])
        box = sandbox.box(View(JOB, writable=(work,)), limits)
        child = await ChildProcess.start(argv, env=env, cwd=work, stdout=quiet, stderr=quiet, box=box, guard=guard)
        ended = await child.wait()
    if ended.code != 0:
        raise SystemExit(f"the program did not run: {ended}")


def sluice(home: Path, verb: str, *options: str) -> str:
    """Run a verb on the cluster in ``home``; returns its standard output."""
    command = [sys.executable, "-m", "sluice.cli.main", *verb.split(), "--home", str(home), *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


@contextmanager
def job(directory: Path, way: Way) -> Iterator[TextIO]:
    """Start a cluster and a job that runs rounds; yields the connection to the job."""
    progress(f"starting a cluster and a job: {way}")
    home = directory / str(way)
    home.mkdir()
    shared = Path(tempfile.mkdtemp(prefix="rounds-"))  # a short path for a socket, accessible for the job's user
    shared.chmod(0o755)
    (home / "sluice.toml").write_text(CONFIG.format(level=way.level, mode=way.mode, shared=shared))
    sluice(home, "up", "--detach", "--port", "0", "--config", str(home / "sluice.toml"))
    try:
        sluice(home, "token create", "bench", "--role", "submitter", "--output", str(home / "token"))
        path = shared / "rounds.sock"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            path.chmod(0o666)
            listening.listen()
            listening.settimeout(START_SECONDS)
            sluice(home, "submit", "--executors", str(EXECUTORS), str(ROUNDS), "--", str(path))
            connection, _ = listening.accept()
        connection.settimeout(ROUND_SECONDS)
        with connection, connection.makefile("rw") as lines:
            yield lines
    finally:
        sluice(home, "down")
        shutil.rmtree(shared, ignore_errors=True)


def measure_rounds(plan: Plan, directory: Path, ours: Way, theirs: Way) -> dict[Way, list[float]]:
    """Return the seconds of all rounds. The n-th rounds of both jobs ran one after the other."""
    ways = (ours, theirs)
    measured: dict[Way, list[float]] = {way: [] for way in ways}
    with ExitStack() as stack:
        jobs = {way: stack.enter_context(job(directory, way)) for way in ways}
        stop_at = time.monotonic() + plan.budget_seconds
        for number in range(plan.warm_up + plan.rounds):
            if len(measured[theirs]) >= QUICK.rounds and time.monotonic() > stop_at:
                break
            for way in ways if number % 2 else reversed(ways):
                jobs[way].write(f"{plan.rows}\n")
                jobs[way].flush()
                seconds = float(jobs[way].readline())
                if number >= plan.warm_up:
                    measured[way].append(seconds)
            progress(f"round {number + 1} of {plan.warm_up + plan.rounds}")
    return measured


def round_figures(rounds: dict[Way, list[float]]) -> tuple[dict[str, float], float]:
    """Return the seconds of rounds, and the median ratio over pairs of consecutive rounds."""
    figures = {"load_average": os.getloadavg()[0]}
    for way, seconds in rounds.items():
        figures |= {f"shuffle_{way}_{statistic}_s": value for statistic, value in spread(seconds).items()}
    return figures, statistics.median(ours / theirs for ours, theirs in zip(*rounds.values(), strict=True))


def summarize(boxed: list[float], plain: list[float], rounds: dict[Way, list[float]]) -> Result:
    """Return differences and ratios over pairs of consecutive runs, so that a slow minute affects both."""
    figures, ratio = round_figures(rounds)
    for name, values in (("start_sandbox", boxed), ("start_plain", plain)):
        figures |= {f"{name}_{statistic}_ms": value for statistic, value in spread(values).items()}
    more = statistics.median(ours - theirs for ours, theirs in zip(boxed, plain, strict=True))
    figures["start_more_ms"] = more
    return Result("isolation", figures, ratio, GOAL, BAR, ratio <= BAR and more <= START_BAR_MS)


def main() -> int:
    """Measure and report; exit code 0 when the goal holds."""
    options = arguments(__doc__, more=_options)
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="isolation-") as name:
        if options.egress:
            figures, ratio = round_figures(measure_rounds(plan, Path(name), OWN_NETWORK, SANDBOX))
            return emit(
                Result("isolation-egress", figures, ratio, EGRESS_GOAL, BAR, ratio <= BAR), as_json=options.json
            )
        boxed, plain = asyncio.run(measure_starts(plan.starts, Path(name)))
        rounds = measure_rounds(plan, Path(name), SANDBOX, PLAIN)
    return emit(summarize(boxed, plain, rounds), as_json=options.json)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--egress", action="store_true", help="measure the cost of job networks, in sandboxes")


if __name__ == "__main__":
    sys.exit(main())
