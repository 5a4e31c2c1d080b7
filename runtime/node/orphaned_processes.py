"""Finds orphaned processes by their working directories below a directory, and kills them."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

import psutil

from sluice.core import SluiceError

_LOG = logging.getLogger(__name__)

GONE_SECONDS = 10.0
"""How long killed processes may take to end."""


class OrphansRemain(SluiceError):
    """Orphaned processes did not end although they were killed."""


def kill_processes_below(directory: Path) -> int:
    """Kill every process whose working directory is below ``directory``; return their number.

    Raises:
        OrphansRemain: one of them did not end.
    """
    killed = 0
    deadline = time.monotonic() + GONE_SECONDS
    while found := _below(directory.resolve()):
        for process in found:
            _LOG.warning("killing process %d, which was left behind", process.pid)
            with contextlib.suppress(psutil.Error):
                process.kill()
        killed += len(found)
        _, alive = psutil.wait_procs(found, timeout=max(0.1, deadline - time.monotonic()))
        if alive and time.monotonic() > deadline:
            raise OrphansRemain(f"process {alive[0].pid} was left behind and does not end", "end it by hand")
    return killed


def _below(root: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and Path(process.cwd()).is_relative_to(root):
                found.append(process)
    return found
