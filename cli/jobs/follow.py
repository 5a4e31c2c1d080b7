"""Follow a job until it ends: progress, the driver's output, and the result."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sluice.cli.errors import EXIT_NO, EXIT_OK
from sluice.client import LOG_CHUNK_BYTES, TERMINAL, ChangeReader, PatientReader

ANNOUNCE_SECONDS = 2.0
"""Shortest time between two progress lines without a terminal."""
EXPLAINED = frozenset({"RUNNING", "RESTARTING", "RECONCILING"})
"""States with a reason for waiting."""


@dataclass
class Follower:
    """Watches one job; ``write`` gets the driver's standard output, progress goes to ``console`` (standard error).

    It retries while the cluster is unavailable, for a shorter time when ``stopped`` says that it was stopped.
    """

    client: ChangeReader
    job_id: str
    console: Console
    write: Callable[[str], None] = field(default=lambda text: print(text, end="", flush=True))
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    stopped: Callable[[], bool] = lambda: False
    _attempt: int = 1
    _offset: int = 0
    _announced: str = ""
    _announced_at: float = 0.0

    async def until_end(self) -> dict[str, Any]:
        """Return the job's details once it is globally terminal and its output has been written.

        Raises:
            AwayError: the cluster was unavailable for :data:`OUTAGE_SECONDS`, or stopped for :data:`STOPPED_SECONDS`.
        """
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("tasks{task.fields[stages]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bar:
            line = bar.add_task("submitted", total=None, stages="")
            async for job in self._reader.states():
                progress = job.get("progress") or {}
                total = int(progress.get("tasks_total", 0))
                bar.update(
                    line,
                    description=_describe(job),
                    total=total or None,
                    completed=int(progress.get("tasks_finished", 0)),
                    stages=_stages(progress),
                )
                if not self.console.is_terminal:
                    self._announce(job)
                await self._drain_output(int(job.get("attempt") or 1))
                if job["state"] in TERMINAL:
                    return job
        raise AssertionError("the states of a job have no end but this")

    async def get(self, path: str, **query: str | int) -> Any:  # noqa: ANN401
        """GET with retries; raises :class:`~sluice.client.errors.AwayError` like :meth:`until_end`."""
        return await self._reader.get(path, **query)

    @property
    def _reader(self) -> PatientReader:
        return PatientReader(self.client, self.job_id, self._say, self.clock, self.pause, self.stopped)

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _announce(self, job: dict[str, Any]) -> None:
        """Without a terminal: one line per change instead of a bar."""
        progress = job.get("progress") or {}
        line = f"{_describe(job)}: {progress.get('tasks_finished', 0)}/{progress.get('tasks_total', 0)} tasks"
        now = self.clock()
        due = now - self._announced_at >= ANNOUNCE_SECONDS or job["state"] in TERMINAL
        if line != self._announced and due:
            self._announced, self._announced_at = line, now
            self.console.print(line, highlight=False, soft_wrap=True)

    async def _drain_output(self, attempt: int) -> None:
        """Write the available output, first of attempts before ``attempt``; each has its own log."""
        while self._attempt < attempt:
            await self._drain_attempt()
            self._attempt, self._offset = self._attempt + 1, 0
        await self._drain_attempt()

    async def _drain_attempt(self) -> None:
        source = f"attempt-{self._attempt}.driver.stdout"
        while True:
            chunk = await self.get(
                f"/v1/jobs/{self.job_id}/logs", source=source, offset=self._offset, limit=LOG_CHUNK_BYTES
            )
            if chunk["data"]:
                self.write(chunk["data"])
            advanced = chunk["next_offset"] > self._offset
            self._offset = chunk["next_offset"]
            if chunk["end"] or not advanced:
                return


def _describe(job: dict[str, Any]) -> str:
    running = sum(executor.get("state") == "RUNNING" for executor in job.get("executors", ()))
    reason = job.get("pending_reason") or ""
    state = str(job["state"])
    return f"{state} · {running} executors" + (f" · {reason}" if reason and state in EXPLAINED else "")


def _stages(progress: dict[str, Any]) -> str:
    """The bar's text about stages; empty when there are none."""
    total = int(progress.get("stages_total", 0))
    failed = int(progress.get("stages_failed", 0))
    done = f" · {progress.get('stages_finished', 0)}/{total} stages" if total else ""
    return done + (f", {failed} failed" if failed else "")


def report_verdict(job: dict[str, Any], console: Console) -> int:
    """Print how the job ended; returns the exit code (0 finished, 1 failed or cancelled)."""
    seconds = (job.get("duration_ms") or 0) / 1000
    if job["state"] == "FINISHED":
        console.print(f"job {job['id']} finished in {seconds:.1f} s", highlight=False)
        return EXIT_OK
    failure = job.get("failure") or {}
    if failure.get("traceback"):
        sys.stderr.write(failure["traceback"].rstrip() + "\n")
    error = failure.get("error") or ""
    console.print(f"job {job['id']} {str(job['state']).lower()} after {seconds:.1f} s", highlight=False)
    if error:
        console.print(f"  cause: {error}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"  more:  sluice jobs logs {job['id']}", highlight=False, soft_wrap=True)
    return EXIT_NO
