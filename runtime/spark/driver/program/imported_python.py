"""A Python process of a driver that has already imported PySpark, and waits for the pipeline to run.

It either waits for a job (``waiting``), or imports while the JVM of its job starts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sluice.runtime.node import ChildProcess
from sluice.runtime.spark.jvm import Command

ADMISSION_SECONDS = 10.0
_PROGRAM = Path(__file__).with_name("waiting_python.py").read_text(encoding="utf-8")
"""Read when this module is loaded, because both must be of one release: a link to it may be switched meanwhile."""


class _Job(msgspec.Struct, frozen=True):
    environment: Mapping[str, str]
    directory: str
    argv: tuple[str, ...]


def imported_python_argv(*ready: Path) -> tuple[str, ...]:
    """The command of the process, which creates the files ``ready`` once it waits. Standard input must be a pipe."""
    return (sys.executable, "-c", _PROGRAM, *map(str, ready))


async def run_pipeline(process: ChildProcess, command: Command, more: Mapping[str, str], directory: Path) -> None:
    """Let the process run ``command`` in ``directory``. Its environment is replaced by the command's and ``more``.

    Raises:
        OSError: the process has ended.
        TimeoutError: the process does not read its input.
    """
    job = _Job({**command.env, **more}, str(directory), command.argv[1:])
    await send_line(process, msgspec.json.encode(job) + b"\n")
    if process.stdin is not None:
        process.stdin.close()


async def send_line(process: ChildProcess, line: bytes) -> None:
    """Write ``line`` to the standard input of a process. Raises the same errors as :func:`run_pipeline`."""
    if process.stdin is None or not process.running:
        raise BrokenPipeError("the process has ended")
    process.stdin.write(line)
    async with asyncio.timeout(ADMISSION_SECONDS):
        await process.stdin.drain()
