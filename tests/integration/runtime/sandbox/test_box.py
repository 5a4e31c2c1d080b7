"""Programs in a real box: what they get, and how they end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox
from sluice.runtime.sandbox.uids import job_uid
from tests.integration.runtime.sandbox.conftest import JOB, Boxes


def _told(child: ChildProcess, name: str) -> bytes:
    return Path(f"/proc/{child.pid}/{name}").read_bytes()


async def test_a_program_gets_its_arguments_environment_and_directory(boxes: Boxes) -> None:
    code = "import os, sys; print(sys.argv[1:], dict(os.environ), os.getcwd())"
    ended = await boxes.run(sys.executable, "-c", code, "a b", "c\nd=é", env={"X": "1\n2=é"})

    assert ended.exit.code == 0, ended.err
    seen = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "X": "1\n2=é"}
    assert ended.out.strip() == f"{['a b', 'c' + chr(10) + 'd=é']} {seen} {boxes.work}"


async def test_nothing_of_a_job_is_in_the_command_line_or_environment_outside(boxes: Boxes) -> None:
    child = await boxes.start("/bin/sleep", "60", env={"SECRET": "hunter2", "LD_PRELOAD": "/nowhere.so"})
    told = _told(child, "cmdline") + _told(child, "environ")
    await child.stop(0)

    assert JOB.encode() in told
    assert b"hunter2" not in told
    assert b"nowhere" not in told


async def test_exit_codes_and_signals_are_those_of_the_program(boxes: Boxes) -> None:
    assert (await boxes.run("/bin/sh", "-c", "exit 3")).exit.code == 3
    killed = (await boxes.run("/bin/sh", "-c", "kill -KILL $$")).exit
    assert str(killed) == "killed by SIGKILL"


async def test_a_file_that_a_job_writes_is_owned_by_the_jobs_uid_outside(boxes: Boxes) -> None:
    ended = await boxes.run("/bin/sh", "-c", "echo done > result")

    assert ended.exit.code == 0, ended.err
    result = boxes.work / "result"
    assert result.read_text(encoding="utf-8") == "done\n"
    assert result.stat().st_uid == (job_uid(JOB) if os.geteuid() == 0 else os.geteuid())


async def test_without_isolation_a_box_is_a_plain_process(boxes: Boxes) -> None:
    boxes.sandbox = Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE))
    child = await boxes.start("/bin/sleep", "60")
    command = _told(child, "cmdline")
    await child.stop(0)

    assert command == b"/bin/sleep\x0060\0"
    assert boxes.sandbox.uid(JOB) is None
