"""A guard and real processes that exceed their limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sluice.runtime.sandbox import Limits
from sluice.runtime.sandbox.bounds import ControlGroups, Guard, Subject, guard

SUBJECT = Subject("the driver", "driver_memory_mb in [spark]")
DEADLINE = 60.0

MEMORY = "a = []\nwhile len(a) < 300: a.append(bytearray(1 << 20))\n"
MEMORY_OF_CHILDREN = """
import multiprocessing, time
def take():
    a = bytearray(60 << 20)
    time.sleep(600)
for _ in range(4):
    multiprocessing.Process(target=take).start()
"""
MEMORY_WITHOUT_A_MAP = """
import os
fd = os.memfd_create("x")
for _ in range(200): os.write(fd, bytes(1 << 20))
"""
HIDDEN_MEMORY = "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n" + MEMORY
PROCESSES = """
import subprocess
a = [subprocess.Popen(["sleep", "600"]) for _ in range(20)]
"""
THREADS = """
import threading, time
for _ in range(20): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""
LOG = """
while True:
    try: print("x" * 1000)
    except OSError: break
    import os
    if os.fstat(1).st_size > 6 << 20: break
"""
DISK = "open('f', 'wb').write(bytes(8 << 20))\n"
UNLINKED = """
import os
f = open('f', 'wb', buffering=0)
os.unlink('f')
f.write(bytes(8 << 20))
"""
FILES = "for n in range(300): open(str(n), 'w')\n"
WAIT = "\nimport time\ntime.sleep(600)\n"

CASES = (
    pytest.param(MEMORY, Limits(memory_mb=150), "out of memory: the driver", id="memory"),
    pytest.param(MEMORY_OF_CHILDREN, Limits(memory_mb=150), "out of memory: the driver", id="memory of children"),
    pytest.param(MEMORY_WITHOUT_A_MAP, Limits(memory_mb=150), "out of memory: the driver", id="memory without a map"),
    pytest.param(HIDDEN_MEMORY, Limits(memory_mb=150), "out of memory: the driver", id="hidden memory"),
    pytest.param(PROCESSES, Limits(processes=20), "too many processes: the driver", id="processes"),
    pytest.param(THREADS, Limits(processes=20), "too many processes: the driver", id="threads"),
    pytest.param(LOG, Limits(log_mb=5), "too much output: a log of the driver", id="log"),
    pytest.param(DISK, Limits(disk_mb=5), "too much disk: the directories of the driver", id="disk"),
    pytest.param(UNLINKED, Limits(disk_mb=5), "too much disk: the directories of the driver", id="unlinked file"),
    pytest.param(FILES, Limits(files=200), "too many files: the directories of the driver", id="files"),
)


class Started:
    """A program that runs in a directory of its own, and its guard."""

    def __init__(self, directory: Path, program: str, limits: Limits, groups: ControlGroups | None) -> None:
        self.work = directory / "work"
        self.work.mkdir()
        with (directory / "stdout").open("wb") as log:
            self.guard = Guard(limits, SUBJECT, directories=[self.work], logs=[log], groups=groups)
            self.process = subprocess.Popen(
                [sys.executable, "-c", program + WAIT],
                cwd=self.work,
                stdout=log,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=self.guard.enter,  # noqa: PLW1509  # nothing but a write, as in ChildProcess
            )


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the guard's intervals: these tests are about what it measures, not how often."""
    monkeypatch.setattr(guard, "ROUND_SECONDS", 0.1)
    monkeypatch.setattr(guard, "DISK_ROUND_SECONDS", 0.2)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory on disk.

    The usual temporary directory may be in memory, where files without a name count as memory.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


@contextlib.contextmanager
def started(
    directory: Path, programs: Sequence[tuple[str, Limits]], groups: ControlGroups | None
) -> Iterator[list[Started]]:
    running = []
    try:
        for number, (program, limits) in enumerate(programs):
            place = directory / str(number)
            place.mkdir()
            running.append(Started(place, program, limits, groups))
        yield running
    finally:
        for each in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()
            each.guard.close()


@pytest.mark.parametrize("grouped", [False, True], ids=["watched", "with control groups where there are any"])
@pytest.mark.parametrize(("program", "limits", "said"), CASES)
async def test_a_process_that_exceeds_a_bound_is_reported_and_its_neighbour_is_not(
    directory: Path, program: str, limits: Limits, said: str, grouped: bool
) -> None:
    groups = ControlGroups.find() if grouped else None
    with started(directory, [(program, limits), ("pass", limits)], groups) as (greedy, neighbour):
        watching = asyncio.ensure_future(neighbour.guard.exceeded(neighbour.process.pid))
        async with asyncio.timeout(DEADLINE):
            reason = await greedy.guard.exceeded(greedy.process.pid)
        assert reason.startswith(said)
        assert "raise " in reason
        assert greedy.guard.reason == reason
        assert not watching.done()
        watching.cancel()


CHILD_WITHOUT_MEMORY = """
import subprocess, sys
ended = subprocess.run([sys.executable, "-c", "a = []\\nwhile True: a.append(bytearray(1 << 20))"])
print("the kernel ended it", flush=True)
"""


async def test_a_kill_by_the_kernel_is_known_before_the_next_round(directory: Path) -> None:
    """Spark may give up a job before; without control groups the kernel ends nothing by itself."""
    groups = ControlGroups.find()
    if groups is None:
        assert Guard(Limits(memory_mb=150), SUBJECT).excess_so_far() == ""
        return
    with started(directory, [(CHILD_WITHOUT_MEMORY, Limits(memory_mb=150))], groups) as (greedy,):
        stdout = directory / "0" / "stdout"
        async with asyncio.timeout(DEADLINE):
            while "the kernel ended it" not in stdout.read_text():
                assert greedy.process.poll() is None
                await asyncio.sleep(0.01)
        assert greedy.guard.excess_so_far().startswith("out of memory: the driver")
