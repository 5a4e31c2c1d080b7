"""Finds the process of a box among processes that end meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.sandbox.errors import SandboxRefused
from sluice.runtime.sandbox.late_mounts import process_in_box
from tests.waiting import wait_until

STARTER = """
import os, subprocess, sys
zombie = subprocess.Popen(["true"])
os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
box = subprocess.Popen(["unshare", "--user", "--mount", "cat"], stdin=subprocess.PIPE)
print(box.pid, flush=True)
sys.stdin.read()
"""
"""Starts a process that is a zombie for good, then a box, and ends both with its input."""


def test_a_process_that_has_ended_does_not_hide_the_box() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        box = int(starter.stdout.readline())
        own = Path("/proc/self/ns/mnt").readlink()
        wait_until(lambda: Path(f"/proc/{box}/ns/mnt").readlink() != own, "the box is created")
        assert process_in_box(starter.pid) == box


def test_a_box_that_has_ended_is_refused() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(SandboxRefused, match="the box has ended"):
        process_in_box(ended.pid)


def test_a_process_without_a_box_is_refused() -> None:
    with pytest.raises(SandboxRefused, match="no process in the box"):
        process_in_box(os.getpid())
