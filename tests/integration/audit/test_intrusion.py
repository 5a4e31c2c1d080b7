"""A process that the audit pauses always resumes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from sluice.audit.intrusion import paused

DEADLINE_SECONDS = 60.0
KILLED_IN_BETWEEN = """
import os, signal, sys
from sluice.audit.intrusion import paused
with paused(int(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def process() -> Iterator[psutil.Process]:
    """A process that only sleeps."""
    with subprocess.Popen(["sleep", "300"]) as started:
        try:
            yield psutil.Process(started.pid)
        finally:
            started.kill()


def comes_to(process: psutil.Process, *, stopped: bool) -> bool:
    """Whether ``process`` is stopped (or, with ``stopped=False``, runs again) before the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (process.status() == psutil.STATUS_STOPPED) is not stopped:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_paused_process_stands_still_and_continues_afterwards(process: psutil.Process) -> None:
    with paused(process.pid):
        assert comes_to(process, stopped=True)
    assert comes_to(process, stopped=False)


def test_a_paused_process_continues_after_an_error(process: psutil.Process) -> None:
    with pytest.raises(ValueError, match="an error"), paused(process.pid):
        raise ValueError("an error")
    assert comes_to(process, stopped=False)


def test_a_paused_process_continues_when_the_audit_is_killed(process: psutil.Process) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_IN_BETWEEN, str(process.pid)], timeout=60, check=False)
    assert done.returncode == -9
    assert comes_to(process, stopped=False)


def test_pausing_a_process_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ProcessLookupError), paused(1 << 22):
        pass
