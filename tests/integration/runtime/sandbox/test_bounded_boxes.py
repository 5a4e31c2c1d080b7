"""Programs in a real box that exceed their limits are ended, with the reason."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path

import pytest

from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import Guard, IsolationConfig, IsolationLevel, Limits, Sandbox, Subject
from sluice.runtime.sandbox.bounds import ControlGroups, guard
from tests.integration.runtime.sandbox.conftest import JOB, Boxes

SUBJECT = Subject("the job")
DEADLINE = 60.0
LIMITS = Limits(memory_mb=200, processes=40, disk_mb=20, files=2000, log_mb=5, tmp_mb=300)

MEMORY = "a = []\nwhile True: a.append(bytearray(1 << 20))"
FORKS = """
import os, time
for _ in range(300):
    try:
        if os.fork() == 0: time.sleep(600)
    except OSError:
        break
time.sleep(600)
"""
ORPHANS = """
import os, time
for _ in range(100):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(600)
        os._exit(0)
    os.wait()
time.sleep(600)
"""
PRINTS = "import time\nfor _ in range(100): print('x' * (1 << 20), flush=True); time.sleep(0.05)"
FILLS = "f = open('f', 'wb')\nwhile f.tell() < 100 << 20: f.write(bytes(1 << 20)); f.flush()"
HIDES = """
import os
f = open('f', 'wb')
os.unlink('f')
while f.tell() < 100 << 20: f.write(bytes(1 << 20)); f.flush()
"""
CASES = (
    pytest.param(MEMORY, "out of memory: the job", id="memory"),
    pytest.param(FORKS, "too many processes: the job", id="forks"),
    pytest.param(ORPHANS, "too many processes: the job", id="orphans in sessions of their own"),
    pytest.param(PRINTS, "too much output: a log of the job", id="prints"),
    pytest.param(
        FILLS + "\n" + "import time; time.sleep(600)", "too much disk: the directories of", id="fills the disk"
    ),
    pytest.param(HIDES + "\n" + "import time; time.sleep(600)", "too much disk: the directories of", id="unlinked"),
)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the guard's intervals: these tests are about what it measures, not how often."""
    monkeypatch.setattr(guard, "ROUND_SECONDS", 0.1)
    monkeypatch.setattr(guard, "DISK_ROUND_SECONDS", 0.2)


async def _start(boxes: Boxes, program: str, groups: ControlGroups | None) -> ChildProcess:
    boxes.sandbox.own([boxes.work], JOB)
    box = boxes.box()
    with (boxes.logs / "out").open("wb") as out, (boxes.logs / "err").open("wb") as err:
        guard = Guard(LIMITS, SUBJECT, directories=[boxes.work], logs=[out, err], groups=groups)
        return await ChildProcess.start(
            (sys.executable, "-c", program),
            env={"PATH": "/usr/bin:/bin"},
            cwd=boxes.work,
            stdout=out,
            stderr=err,
            box=box,
            guard=guard,
        )


@pytest.mark.parametrize("grouped", [False, True], ids=["watched", "with control groups where there are any"])
@pytest.mark.parametrize(("program", "said"), CASES)
async def test_a_box_that_exceeds_a_bound_is_ended_with_the_reason(
    boxes: Boxes, program: str, said: str, grouped: bool
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as logs:  # in memory it would count as the box's memory
        boxes.logs = Path(logs)
        child = await _start(boxes, program, ControlGroups.find() if grouped else None)
    try:
        async with asyncio.timeout(DEADLINE):
            await child.wait()
    finally:
        await child.stop(0)
    assert child.excess.startswith(said)


async def test_a_program_within_its_bounds_ends_by_itself(boxes: Boxes) -> None:
    child = await _start(boxes, "open('f', 'wb').write(bytes(1 << 20)); raise SystemExit(7)", ControlGroups.find())
    async with asyncio.timeout(DEADLINE):
        ended = await child.wait()
    assert (ended.code, child.excess) == (7, "")


async def test_without_isolation_the_bounds_hold_as_well(boxes: Boxes) -> None:
    boxes.sandbox = Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE))
    child = await _start(boxes, MEMORY, None)
    async with asyncio.timeout(DEADLINE):
        await child.wait()
    assert child.excess.startswith("out of memory: the job")


async def test_processes_left_in_a_control_group_end_with_the_program(boxes: Boxes) -> None:
    """Without namespaces a process can leave its session, but not its group."""
    groups = ControlGroups.find()
    boxes.sandbox = Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE))
    program = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open('pid', 'w').write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.01)
"""
    child = await _start(boxes, program, groups)
    async with asyncio.timeout(DEADLINE):
        await child.wait()
    pid = int((boxes.work / "pid").read_text())
    assert (_state(pid) in "ZX") is (groups is not None)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"
