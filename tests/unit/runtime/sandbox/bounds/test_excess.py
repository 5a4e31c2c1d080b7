"""Detecting what exceeds a limit, and the message about it."""

from __future__ import annotations

import pytest

from sluice.runtime.sandbox import Limits
from sluice.runtime.sandbox.bounds import Subject, Usage, excess
from sluice.runtime.sandbox.bounds.guard import SHARE_OF_TIME, first_excess

MIB = 1 << 20
LIMITS = Limits(memory_mb=512, processes=64, disk_mb=50, files=1000, log_mb=20)
SUBJECT = Subject("the executor", "--executor-memory, or memory_overhead_mb in [isolation]")

WITHIN = (
    Usage(),
    Usage(memory_bytes=512 * MIB, tasks=63, disk_bytes=50 * MIB, entries=1000, log_bytes=20 * MIB),
)
EXCESSES = (
    (
        Usage(memory_bytes=512 * MIB + 1),
        (
            "out of memory: the executor and its child processes use 513 MiB, and their limit is 512 MiB; "
            "raise --executor-memory, or memory_overhead_mb in [isolation]"
        ),
    ),
    (
        Usage(memory_kills=1),
        (
            "out of memory: the executor and its child processes exceeded their limit of 512 MiB, "
            "so the kernel killed one of them; "
            "raise --executor-memory, or memory_overhead_mb in [isolation]"
        ),
    ),
    (
        Usage(tasks=64),
        (
            "too many processes: the executor has reached its limit of 64 processes and threads; "
            "raise max_processes in [isolation]"
        ),
    ),
    (
        Usage(tasks=3, tasks_refused=1),
        (
            "too many processes: the executor has reached its limit of 64 processes and threads; "
            "raise max_processes in [isolation]"
        ),
    ),
    (
        Usage(log_bytes=20 * MIB + 1),
        (
            "too much output: a log of the executor has 21 MiB, and its limit is 20 MiB; "
            "print less, or raise log_mb in [isolation]"
        ),
    ),
    (
        Usage(disk_bytes=61 * MIB),
        (
            "too much disk: the directories of the executor hold 61 MiB, and their limit is 50 MiB; "
            "raise disk_mb in [isolation]"
        ),
    ),
    (
        Usage(entries=1001),
        (
            "too many files: the directories of the executor hold more files than their limit of 1000; "
            "raise max_files in [isolation]"
        ),
    ),
    (
        Usage(hidden="a directory in it cannot be opened"),
        (
            "cannot measure the directories of the executor: a directory in it cannot be opened; "
            "do not create such directories in the job"
        ),
    ),
)


@pytest.mark.parametrize("usage", WITHIN)
def test_usage_within_its_bounds_is_no_excess(usage: Usage) -> None:
    assert not excess(usage, LIMITS, SUBJECT)


@pytest.mark.parametrize(("usage", "said"), EXCESSES)
def test_an_excess_names_bound_amount_and_setting(usage: Usage, said: str) -> None:
    assert excess(usage, LIMITS, SUBJECT) == said


def test_limits_of_zero_bound_nothing() -> None:
    everything = Usage(memory_bytes=1 << 50, tasks=1 << 20, disk_bytes=1 << 50, entries=1 << 30, log_bytes=1 << 50)
    assert not excess(everything, Limits(), SUBJECT)


class Clock:
    """A simulated clock that advances during measurements and sleeps."""

    def __init__(self, costs: list[float]) -> None:
        self.now = 0.0
        self.costs = costs
        self.slept: list[float] = []
        self.measured = 0

    async def measure(self) -> Usage:
        self.now += self.costs[self.measured]
        self.measured += 1
        return Usage(tasks=self.measured)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


async def test_measuring_continues_until_an_excess_is_found() -> None:
    clock = Clock([0.0, 0.0, 0.0])
    said = await first_excess(
        clock.measure,
        lambda usage: "enough" if usage.tasks == 3 else "",
        pause=0.5,
        sleep=clock.sleep,
        clock=lambda: clock.now,
    )
    assert (said, clock.slept) == ("enough", [0.5, 0.5, 0.5])


async def test_slow_measurements_are_made_less_often() -> None:
    clock = Clock([3.0, 0.001, 0.0])
    await first_excess(
        clock.measure,
        lambda usage: "enough" if usage.tasks == 3 else "",
        pause=0.5,
        sleep=clock.sleep,
        clock=lambda: clock.now,
    )
    assert clock.slept == [0.5, pytest.approx(3.0 / SHARE_OF_TIME), 0.5]
