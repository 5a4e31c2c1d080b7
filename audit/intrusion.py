"""Checks that disturb the cluster, run on request only: they stop a part of it for some seconds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

_WAKE = 'read -r _; kill -s CONT "$0"'
"""Waits for the end of its input, which comes however the audit ends."""


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop the process ``pid`` within the block, so that it does not answer. It continues even if the audit is killed.

    Raises:
        OSError: there is no such process, or it may not be stopped.
    """
    with subprocess.Popen(["/bin/sh", "-c", _WAKE, str(pid)], stdin=subprocess.PIPE, start_new_session=True):
        os.kill(pid, signal.SIGSTOP)
        yield
