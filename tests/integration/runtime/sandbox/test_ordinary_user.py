"""Repeats the box tests as an unprivileged user, whose boxes are in user namespaces.

As root, the tests would only cover boxes with a uid for each job.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.ordinary_user import NOBODY, python_of_nobody

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
FILES = (
    "test_box.py",
    "test_prepare.py",
    "test_end_of_box.py",
    "test_hostile.py",
    "test_limits.py",
    *(f"network/test_{name}.py" for name in ("connections", "hostile_network", "sockets", "trial")),
)


async def test_boxes_hold_for_an_ordinary_user(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    if os.geteuid() == 0:
        for path in (tmp_path, temporary):
            os.chown(path, NOBODY, NOBODY)
    command = (*python_of_nobody(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    process = await asyncio.create_subprocess_exec(
        *command,
        *(str(HERE / name) for name in FILES),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(temporary), "HOME": str(temporary)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()

    assert process.returncode == 0, told.decode()[-4000:]
    assert b"passed" in told
