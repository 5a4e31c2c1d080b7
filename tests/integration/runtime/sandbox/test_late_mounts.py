"""A box that was made before its job was known gets the job's directories later.

This works only where this process can change users.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import IsolationConfig, Sandbox, SandboxRefused, View
from sluice.runtime.sandbox.landlock import landlock_version
from tests.integration.runtime.sandbox.conftest import JOB, Boxes

BOX = "fedcba9876543210fedcba9876543210"
OTHER_JOB = "00000000000000000000000000000001"
WRITE = """
import json, os, socket, sys
sys.stdin.readline()
told = {}
with socket.socket(socket.AF_UNIX) as made:
    try:
        made.bind(os.path.join(sys.argv[1], "socket"))
        told["socket"] = True
    except OSError as error:
        told["socket"] = error.strerror
for name in sys.argv[1:]:
    try:
        with open(os.path.join(name, "written"), "w") as file:
            file.write("x")
        told[name] = os.stat(os.path.join(name, "written")).st_uid == os.getuid()
    except OSError as error:
        told[name] = error.strerror
print(json.dumps(told))
"""


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory that is not below ``/tmp``, where every box may write."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


async def started(boxes: Boxes, sandbox: Sandbox, shown: dict[Path, Path], *paths: Path) -> ChildProcess:
    sandbox.own([boxes.work], BOX)
    box = sandbox.box(View(BOX, (), (boxes.work,), read_only_remapped=shown), sandbox.limits())
    with (boxes.logs / "out").open("wb") as out:
        return await ChildProcess.start(
            (sys.executable, "-c", WRITE, *map(str, paths)),
            env={},
            cwd=boxes.work,
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            stdin=asyncio.subprocess.PIPE,
            box=box,
        )


async def told(boxes: Boxes, child: ChildProcess) -> dict[str, bool | str]:
    assert child.stdin is not None
    child.stdin.write(b"\n")
    async with asyncio.timeout(60):
        assert (await child.wait()).code == 0, boxes.output()
    found: dict[str, bool | str] = json.loads(boxes.output())
    return found


async def in_the_box(child: ChildProcess, sandbox: Sandbox, *directories: Path) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await asyncio.to_thread(sandbox.mount_later, child.pid, BOX, JOB, directories)
            except SandboxRefused as error:
                if "no process in the box" not in str(error):
                    raise
                await asyncio.sleep(0.05)
            else:
                return


async def test_a_job_writes_only_its_own_directory_with_its_own_uid(boxes: Boxes, outside: Path) -> None:
    sandbox = boxes.sandbox
    if not sandbox.can_mount_later:
        with pytest.raises(SandboxRefused, match="without its own uid"):
            sandbox.mount_later(os.getpid(), BOX, JOB, ())
        return
    parent, place = outside / "checkpoints", outside / "place"
    for job in (JOB, OTHER_JOB):
        (parent / job).mkdir(parents=True, mode=0o700)
        sandbox.own([parent / job], job)
    place.mkdir()
    child = await started(boxes, sandbox, {parent: place}, parent / JOB, parent / OTHER_JOB)
    (place / JOB).mkdir()
    await in_the_box(child, sandbox, parent / JOB)
    found = await told(boxes, child)
    assert found[str(parent / JOB)] is True  # to the box it is its own
    assert (parent / JOB / "written").stat().st_uid == sandbox.uid(JOB)  # on disk it is the job's
    assert found[str(parent / OTHER_JOB)] == "No such file or directory"
    if landlock_version() >= 1:
        assert found["socket"] == "Permission denied"  # processes with other networks write there, too


async def test_a_directory_that_all_jobs_may_write_is_written_with_the_jobs_uid(boxes: Boxes, outside: Path) -> None:
    shared = outside / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "of-root").write_text("kept")
    (shared / "of-root").chmod(0o600)
    sandbox = Sandbox.prepare(IsolationConfig(writable=(str(shared),)))
    if not sandbox.can_mount_later:
        return
    child = await started(boxes, sandbox, {}, shared)
    await in_the_box(child, sandbox)
    assert (await told(boxes, child))[str(shared)] is True
    assert (shared / "written").stat().st_uid == sandbox.uid(JOB)
    assert (shared / "of-root").stat().st_uid == 0
