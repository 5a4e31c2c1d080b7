"""Kills processes at a chosen step of their writes, to test files that must survive a crash."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.core.files.append_log import Disk

ROOT = Path(__file__).parent.parent
WHEN = ("before", "torn", "after")
STEPS = frozenset(
    {
        *("os.mkdir", "os.rename", "os.chmod", "os.remove", "os.rmdir", "os.link", "os.truncate"),
        *("shutil.rmtree", "pki.exchange"),
    }
)
"""Audit events, of the interpreter or Sluice, right before a change on disk. So is opening a file to write."""
WRITING = os.O_WRONLY | os.O_RDWR


class CrashingDisk(Disk):
    """Kills its process (SIGKILL) around the ``fatal``-th step: before it, after it, or in the middle of a write."""

    def __init__(self, fatal: int, when: str) -> None:
        self._steps = itertools.count(1)
        self._fatal = fatal
        self._when = when

    def write(self, descriptor: int, data: bytes) -> int:
        """Write all, half, or nothing of ``data`` if this is the fatal step."""
        fatal = self._is_fatal()
        if fatal and self._when != "before":
            super().write(descriptor, data[: len(data) // 2] if self._when == "torn" else data)
        self._die(fatal)
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Sync, or die before or after it."""
        self._around(lambda: super(CrashingDisk, self).sync(descriptor))

    def truncate(self, descriptor: int, size: int) -> None:
        """Truncate, or die before or after it."""
        self._around(lambda: super(CrashingDisk, self).truncate(descriptor, size))

    def rename(self, old: Path, new: Path) -> None:
        """Rename, or die before or after it."""
        self._around(lambda: super(CrashingDisk, self).rename(old, new))

    def _around(self, step: Callable[[], None]) -> None:
        fatal = self._is_fatal()
        if fatal and self._when == "after":
            step()
        self._die(fatal)
        step()

    def _is_fatal(self) -> bool:
        return next(self._steps) == self._fatal

    @staticmethod
    def _die(fatal: bool) -> None:
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)


def is_step(event: str, arguments: tuple[object, ...]) -> bool:
    """Whether this audit event comes right before a change on disk."""
    return event in STEPS or (event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & WRITING))


def die_before(fatal: int) -> None:
    """Kill this process (SIGKILL) right before its ``fatal``-th step, counted from now."""
    steps = itertools.count(1)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if is_step(event, arguments) and next(steps) == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def killed_before(fatal: int, operation: Callable[[], object]) -> bool:
    """Run ``operation`` in a child that is killed before its ``fatal``-th step; returns whether it was killed."""

    def run(_: int) -> None:
        die_before(fatal)
        operation()

    return killed(run)[0]


def killed(write_and_die: Callable[[int], None]) -> tuple[bool, list[str]]:
    """Run ``write_and_die`` in a child; returns whether it was killed, and the lines that it wrote to its pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_and_die(writing)
        except BaseException as error:  # noqa: BLE001  the child must end here and must not run the parent's code
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("the writer failed")
    return os.WIFSIGNALED(status), told


def crash_reports(script: Path, directory: Path, *arguments: str, seconds: float = 100) -> list[Any]:
    """Run a script that kills its children; returns its reports, one JSON object per line of output."""
    done = subprocess.run(
        [sys.executable, str(script), str(directory), *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
