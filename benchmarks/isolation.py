"""What the sandbox costs: the start of a process, and a shuffle-heavy job, beside isolation level ``none``.

Starts: a program that does nothing, in a box with its guard and plain, in alternating order; the difference of each
pair. Job: two clusters that differ in nothing but the level each run one job, and the jobs take turns: a round of one,
a round of the other, while the rest is idle. ``ratio`` is the median over all pairs of rounds of (time in the sandbox /
time without).
"""

from __future__ import annotations

import asyncio
import os
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
from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox, Subject, View

START_BAR_MS = 50.0
BAR = 1.03
GOAL = f"a start at most {START_BAR_MS:.0f} ms more, a shuffle-heavy job at most {BAR} times the time without"
JOB = "0" * 32
ROUNDS = Path(__file__).with_name("isolation_rounds.py")
REPOSITORY = Path(__file__).resolve().parents[1]
START_SECONDS = 240.0
ROUND_SECONDS = 300.0
CONFIG = """
[isolation]
level = "{level}"
[taskmanager]
count = 1
slots = 2
slot_memory_mb = 1024
"""
EXECUTORS = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: starts, rows of one round, rounds to warm up, rounds that count, and when to stop early."""

    starts: int
    rows: int
    warm_up: int
    rounds: int
    budget_seconds: float


QUICK = Plan(starts=10, rows=1_000_000, warm_up=3, rounds=5, budget_seconds=20.0)
FULL = Plan(starts=50, rows=2_000_000, warm_up=8, rounds=41, budget_seconds=420.0)


async def measure_starts(count: int, directory: Path) -> tuple[list[float], list[float]]:
    """Milliseconds from the wish to start to the end of a program that does nothing: in a box, and plain."""
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
            if number:  # the first ones find nothing in the caches
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
def job(directory: Path, level: IsolationLevel) -> Iterator[TextIO]:
    """The connection to a job that runs rounds, on a cluster of its own."""
    progress(f"starting a cluster and a job: {level}")
    home = directory / level
    home.mkdir()
    (home / "sluice.toml").write_text(CONFIG.format(level=level))
    sluice(home, "up", "--detach", "--port", "0", "--config", str(home / "sluice.toml"))
    try:
        sluice(home, "token create", "bench", "--role", "submitter", "--output", str(home / "token"))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(START_SECONDS)
            port = listening.getsockname()[1]
            sluice(home, "submit", "--executors", str(EXECUTORS), str(ROUNDS), "--", str(port))
            connection, _ = listening.accept()
        connection.settimeout(ROUND_SECONDS)
        with connection, connection.makefile("rw") as lines:
            yield lines
    finally:
        sluice(home, "down")


def measure_rounds(plan: Plan, directory: Path) -> dict[IsolationLevel, list[float]]:
    """Seconds of all rounds; the n-th rounds of the jobs ran next to each other."""
    levels = (IsolationLevel.SANDBOX, IsolationLevel.NONE)
    measured: dict[IsolationLevel, list[float]] = {level: [] for level in levels}
    with ExitStack() as stack:
        jobs = {level: stack.enter_context(job(directory, level)) for level in levels}
        stop_at = time.monotonic() + plan.budget_seconds
        for number in range(plan.warm_up + plan.rounds):
            if len(measured[IsolationLevel.NONE]) >= QUICK.rounds and time.monotonic() > stop_at:
                break
            for level in levels if number % 2 else reversed(levels):
                jobs[level].write(f"{plan.rows}\n")
                jobs[level].flush()
                seconds = float(jobs[level].readline())
                if number >= plan.warm_up:
                    measured[level].append(seconds)
            progress(f"round {number + 1} of {plan.warm_up + plan.rounds}")
    return measured


def summarize(boxed: list[float], plain: list[float], rounds: dict[IsolationLevel, list[float]]) -> Result:
    """Differences and ratios over pairs that ran next to each other, so that a slow minute of the machine hits both."""
    figures = {"load_average": os.getloadavg()[0]}
    for name, values in (("start_sandbox", boxed), ("start_plain", plain)):
        figures |= {f"{name}_{statistic}_ms": value for statistic, value in spread(values).items()}
    for level, seconds in rounds.items():
        figures |= {f"shuffle_{level}_{statistic}_s": value for statistic, value in spread(seconds).items()}
    more = statistics.median(ours - theirs for ours, theirs in zip(boxed, plain, strict=True))
    figures["start_more_ms"] = more
    pairs = zip(rounds[IsolationLevel.SANDBOX], rounds[IsolationLevel.NONE], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    return Result("isolation", figures, ratio, GOAL, BAR, ratio <= BAR and more <= START_BAR_MS)


def main() -> int:
    """Measure and report; exit code 0 when the goal holds."""
    options = arguments(__doc__)
    plan = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="isolation-") as name:
        boxed, plain = asyncio.run(measure_starts(plan.starts, Path(name)))
        rounds = measure_rounds(plan, Path(name))
    return emit(summarize(boxed, plain, rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
