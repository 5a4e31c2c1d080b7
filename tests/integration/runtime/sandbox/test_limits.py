"""The limits that the kernel enforces on a box, and what a box shows of the machine."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from sluice.runtime.sandbox import Box, IsolationConfig, Limits, Sandbox, View
from sluice.runtime.sandbox.entry_instructions import BOXES_OF_A_JOB
from tests.integration.runtime.sandbox.conftest import JOB, Boxes

PROCESSES = 12
FORKS = """
import os, time
pids = []
try:
    for _ in range(%d):
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        pids.append(pid)
    print("no limit")
except BlockingIOError:
    print(len(pids))
for pid in pids:
    os.kill(pid, 9)
"""


def _limited(boxes: Boxes, **limits: int) -> Box:
    return replace(boxes.box(), limits=Limits(**limits))


async def test_a_box_runs_no_more_processes_than_allowed(boxes: Boxes) -> None:
    allowed = PROCESSES * (BOXES_OF_A_JOB if os.geteuid() == 0 else 1)
    ended = await boxes.run(sys.executable, "-c", FORKS % (allowed + 10), box=_limited(boxes, processes=PROCESSES))

    assert ended.exit.code == 0, ended.err
    assert 0 < int(ended.out) <= allowed


async def test_a_box_opens_no_more_files_than_allowed(boxes: Boxes) -> None:
    code = "import os\nwhile True: os.dup(0)"
    ended = await boxes.run(sys.executable, "-c", code, box=_limited(boxes, open_files=64))

    assert "Too many open files" in ended.err


async def test_a_box_writes_no_file_larger_than_allowed(boxes: Boxes) -> None:
    code = "open('large', 'wb', buffering=0).truncate(2 << 20)"
    ended = await boxes.run(sys.executable, "-c", code, box=_limited(boxes, disk_mb=1))

    assert "File too large" in ended.err
    assert (boxes.work / "large").stat().st_size == 0


async def test_memory_file_systems_are_bounded(boxes: Boxes) -> None:
    code = "import sys\nwith open(sys.argv[1], 'wb') as file:\n for _ in range(40): file.write(bytes(1 << 20))"
    for path in ("/tmp/full", "/dev/shm/full"):  # noqa: S108 - the box's own
        ended = await boxes.run(sys.executable, "-c", code, path, box=_limited(boxes, tmp_mb=16))
        assert "No space left on device" in ended.err


async def test_a_box_shows_only_the_paths_of_its_view(boxes: Boxes, tmp_path: Path) -> None:
    ended = await boxes.run("/bin/ls", "-a", str(tmp_path), "/")

    listed = ended.out.split()
    assert "work" in listed
    assert "logs" not in listed
    assert not {"sys", "boot", "var", "srv", "mnt", "opt"} & set(listed)


async def test_an_identity_renewed_from_outside_is_seen_in_the_box(boxes: Boxes, tmp_path: Path) -> None:
    identity = tmp_path / "identity"
    identity.mkdir(mode=0o700)
    _renew(boxes, identity, "one")
    box = boxes.sandbox.box(View(JOB, (), (boxes.work,), identity), Limits())
    boxes.sandbox.own([boxes.work], JOB)
    wait = f"touch ready; until grep -q two {identity}/key; do sleep 0.02; done; cat {identity}/key; rm {identity}/key"
    child = await boxes.start("/bin/sh", "-c", wait, box=box)
    while not (boxes.work / "ready").exists():
        assert child.running
        await asyncio.sleep(0.02)
    _renew(boxes, identity, "two")
    ended = await child.wait()

    assert ended.code != 0  # it cannot remove it
    assert boxes.output() == "two"
    assert (identity / "key").exists()


def _renew(boxes: Boxes, identity: Path, content: str) -> None:
    (identity / "new").write_text(content, encoding="utf-8")
    (identity / "new").replace(identity / "key")
    boxes.sandbox.own([identity], JOB)


async def test_private_directories_are_hidden_wherever_they_are(boxes: Boxes, tmp_path: Path) -> None:
    """Except for the job's own part of them."""
    shown = tmp_path / "shown"
    work = shown / "home" / "jobs" / "1" / "work"
    for directory in (shown / "home" / "pki", shown / "home" / "jobs" / "2", work):
        directory.mkdir(parents=True)
    (shown / "home" / "pki" / "ca.key").touch()
    (shown / "data").touch()
    sandbox = Sandbox.prepare(IsolationConfig(read_only=(str(shown),)), private=[shown / "home"])
    sandbox.own([work, boxes.work], JOB)
    box = sandbox.box(View(JOB, (), (boxes.work, work)), Limits())
    ended = await boxes.run("/bin/sh", "-c", f"find {shown}; touch {work}/mine; touch {shown}/home/x", box=box)

    found = {Path(line).relative_to(shown) for line in ended.out.split()}
    assert found == {Path(each) for each in (".", "data", "home", "home/jobs", "home/jobs/1", "home/jobs/1/work")}
    assert "Read-only file system" in ended.err
    assert (work / "mine").exists()
