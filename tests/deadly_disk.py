"""A file system that kills its process at a chosen step, for the logs that must survive that."""

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

from sluice.core.append_log import Disk

ROOT = Path(__file__).parent.parent
WHEN = ("before", "torn", "after")


class DeadlyDisk(Disk):
    """Kills its process (SIGKILL) around the ``fatal``-th step: before it, after it, or in the middle of a write."""

    def __init__(self, fatal: int, when: str) -> None:
        self._steps = itertools.count(1)
        self._fatal = fatal
        self._when = when

    def write(self, descriptor: int, data: bytes) -> int:
        """Write all, half, or nothing."""
        fatal = self._is_fatal()
        if fatal and self._when != "before":
            super().write(descriptor, data[: len(data) // 2] if self._when == "torn" else data)
        self._die(fatal)
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Sync, or not."""
        self._around(lambda: super(DeadlyDisk, self).sync(descriptor))

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut, or not."""
        self._around(lambda: super(DeadlyDisk, self).truncate(descriptor, size))

    def rename(self, old: Path, new: Path) -> None:
        """Rename, or not."""
        self._around(lambda: super(DeadlyDisk, self).rename(old, new))

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


def killed(write_and_die: Callable[[int], None]) -> tuple[bool, list[str]]:
    """Run ``write_and_die`` in a child; whether it was killed, and the words that it wrote to its pipe by then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_and_die(writing)
        except BaseException:  # noqa: BLE001  the child must end here and not run the parent's code
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read().split()
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
        raise SystemExit("the writer failed")
    return os.WIFSIGNALED(status), told


def crash_reports(script: Path, directory: Path) -> list[Any]:
    """The reports of a script that kills its children, one JSON object a line."""
    done = subprocess.run(
        [sys.executable, str(script), str(directory)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
