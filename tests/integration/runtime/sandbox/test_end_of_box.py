"""How a box ends: with a grace period if asked, and always with all of its processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.runtime.sandbox.conftest import Boxes

DEADLINE_SECONDS = 60

HANDLES_SIGTERM = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.2)
    pathlib.Path("ended").write_text("in order")
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
pathlib.Path("ready").touch()
while True:
    signal.pause()
"""

STARTS_A_DAEMON = """
import os, pathlib, subprocess, sys, time
daemon = subprocess.Popen(["/bin/sleep", sys.argv[1]], start_new_session=True, stdin=subprocess.DEVNULL)
pathlib.Path("ready").touch()
time.sleep(float(sys.argv[2]))
"""

PARENT = """
import asyncio, sys
from pathlib import Path
from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import IsolationConfig, Sandbox, View
async def main():
    work = Path(sys.argv[1])
    sandbox = Sandbox.prepare(IsolationConfig())
    sandbox.own([work], "job")
    box = sandbox.box(View("job", writable=(work,)), sandbox.limits())
    argv = (sys.executable, "-c", sys.argv[2], sys.argv[3], "300")
    child = await ChildProcess.start(argv, env={"PATH": "/usr/bin:/bin"}, cwd=work, stdout=1, stderr=2, box=box)
    await child.wait()
asyncio.run(main())
"""


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for is in other processes
            await asyncio.sleep(0.02)


def _seconds() -> str:
    """A duration for ``sleep`` that no other process on this machine uses."""
    return f"300.{uuid.uuid4().int % 10**12}"


def _sleeping(seconds: str) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes() == f"/bin/sleep\0{seconds}\0".encode():
                return True
        except OSError:
            continue
    return False


def _ready(boxes: Boxes) -> Callable[[], bool]:
    return (boxes.work / "ready").exists


async def test_sigterm_reaches_the_program_which_has_time_to_end(boxes: Boxes) -> None:
    child = await boxes.start(sys.executable, "-c", HANDLES_SIGTERM)
    await _until(_ready(boxes))
    ended = await child.stop(DEADLINE_SECONDS)

    assert ended.code == 7
    assert (boxes.work / "ended").read_text(encoding="utf-8") == "in order"


async def test_sigterm_ends_a_program_without_a_handler(boxes: Boxes) -> None:
    child = await boxes.start("/bin/sh", "-c", "touch ready; sleep 300")
    await _until(_ready(boxes))
    ended = await child.stop(DEADLINE_SECONDS)

    assert ended.code in {128 + signal.SIGTERM, -signal.SIGTERM}


async def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_period(boxes: Boxes) -> None:
    child = await boxes.start("/bin/sh", "-c", "trap '' TERM; touch ready; sleep 300")
    await _until(_ready(boxes))
    ended = await child.stop(0.1)

    assert str(ended) == "killed by SIGKILL"


async def test_a_program_that_ignores_sigterm_is_killed_when_the_stop_is_cancelled(boxes: Boxes) -> None:
    """As when a TaskManager ends while it starts an executor: a box in the making ignores SIGTERM, too."""
    child = await boxes.start("/bin/sh", "-c", "trap '' TERM; touch ready; sleep 300")
    await _until(_ready(boxes))
    stopping = asyncio.create_task(child.stop(DEADLINE_SECONDS))
    await asyncio.sleep(0)  # it begins, and waits
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping

    async with asyncio.timeout(DEADLINE_SECONDS):
        assert str(await child.wait()) == "killed by SIGKILL"


async def test_sigkill_leaves_no_process_behind(boxes: Boxes) -> None:
    """Not even one that left the process group."""
    seconds = _seconds()
    child = await boxes.start(sys.executable, "-c", STARTS_A_DAEMON, seconds, "300")
    await _until(_ready(boxes))
    assert _sleeping(seconds)
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()

    await _until(lambda: not _sleeping(seconds))


async def test_no_process_survives_the_end_of_the_program(boxes: Boxes) -> None:
    seconds = _seconds()
    ended = await boxes.run(sys.executable, "-c", STARTS_A_DAEMON, seconds, "0")

    assert ended.exit.code == 0, ended.err
    await _until(lambda: not _sleeping(seconds))


async def test_the_death_of_the_parent_ends_the_box(boxes: Boxes) -> None:
    seconds = _seconds()
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(boxes.work), STARTS_A_DAEMON, seconds)
    )
    await _until(_ready(boxes))
    assert _sleeping(seconds)
    parent.kill()
    await parent.wait()

    await _until(lambda: not _sleeping(seconds))


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM])
async def test_the_program_has_the_usual_signal_handling(boxes: Boxes, number: signal.Signals) -> None:
    ended = await boxes.run("/bin/sh", "-c", f"kill -{int(number)} $$; echo survived")

    assert ended.out == ""
    assert ended.exit.code in {128 + number, -number}
