"""``sluice run`` exits with code 0 after SIGTERM, whether it arrives before, during or after its work."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEFORE = "run._run()\nos.kill(os.getpid(), signal.SIGTERM)\nraise AssertionError('goes on')"
MEANWHILE = "serving.serve(work())"
AGAIN_AFTERWARDS = "serving.serve(work())\nos.kill(os.getpid(), signal.SIGTERM)\nprint('ended in order')"

PROGRAM = """
import asyncio, os, signal
from sluice.cli.run import commands as run
from sluice.cli import serving

async def work():
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)
    raise AssertionError("goes on")

"""


@pytest.mark.parametrize(
    ("when", "said"),
    [(BEFORE, ""), (MEANWHILE, ""), (AGAIN_AFTERWARDS, "ended in order\n")],
    ids=["before", "meanwhile", "again afterwards"],
)
def test_sigterm_ends_sluice_run_with_exit_code_0(when: str, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM + when], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, said), ended.stderr
