"""Decides whether a box exceeds its limits, and describes the excess. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.runtime.sandbox.limits import Limits

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """The measured resource usage of a box; 0 where nothing was measured.

    Attributes:
        memory_bytes: memory of all its processes together.
        memory_kills: how often the kernel has killed one of its processes because of the box's memory limit.
        tasks: number of its processes and their threads.
        tasks_refused: how often the kernel has refused to create another task.
        disk_bytes, entries: contents of its directories.
        hidden: why the measurement of its directories may be incomplete; empty: it is complete.
        log_bytes: size of its longest log.
    """

    memory_bytes: int = 0
    memory_kills: int = 0
    tasks: int = 0
    tasks_refused: int = 0
    disk_bytes: int = 0
    entries: int = 0
    hidden: str = ""
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """What a limit applies to, as messages name it.

    Attributes:
        name: the process, such as "the executor".
        memory_setting: the setting that a user or operator raises to get more memory.
        owner: the owner of its directories, if that is not the process itself.
    """

    name: str
    memory_setting: str = "memory_overhead_mb in [isolation]"
    owner: str = ""


def excess(usage: Usage, limits: Limits, subject: Subject) -> str:
    """A message with the exceeded limit, the usage and the setting to raise; empty: no limit is exceeded.

    A limit of 0 means unlimited.
    """
    return next(_excesses(usage, limits, subject), "")


def _excesses(usage: Usage, limits: Limits, subject: Subject) -> Iterator[str]:
    name, owner = subject.name, subject.owner or subject.name
    if usage.memory_kills:
        yield (
            f"out of memory: {name} and its child processes exceeded their limit of {limits.memory_mb} MiB, "
            f"so the kernel killed one of them; raise {subject.memory_setting}"
        )
    if _over(usage.memory_bytes, limits.memory_mb):
        yield (
            f"out of memory: {name} and its child processes use {_mib(usage.memory_bytes)} MiB, and their limit is "
            f"{limits.memory_mb} MiB; raise {subject.memory_setting}"
        )
    if usage.tasks_refused or (limits.processes and usage.tasks >= limits.processes):
        # Reaching the limit counts as an excess, because the kernel never lets a box go beyond it.
        yield (
            f"too many processes: {name} has reached its limit of {limits.processes} processes and threads; "
            "raise max_processes in [isolation]"
        )
    if _over(usage.log_bytes, limits.log_mb):
        yield (
            f"too much output: a log of {name} has {_mib(usage.log_bytes)} MiB, and its limit is {limits.log_mb} MiB; "
            "print less, or raise log_mb in [isolation]"
        )
    if _over(usage.disk_bytes, limits.disk_mb):
        yield (
            f"too much disk: the directories of {owner} hold {_mib(usage.disk_bytes)} MiB, and their limit is "
            f"{limits.disk_mb} MiB; raise disk_mb in [isolation]"
        )
    if limits.files and usage.entries > limits.files:
        yield (
            f"too many files: the directories of {owner} hold more files than their limit of {limits.files}; "
            "raise max_files in [isolation]"
        )
    if usage.hidden and (limits.disk_mb or limits.files):
        yield f"cannot measure the directories of {owner}: {usage.hidden}; do not create such directories in the job"


def _over(amount: int, limit_mb: int) -> bool:
    return limit_mb > 0 and amount > limit_mb * MIB


def _mib(amount: int) -> int:
    """Convert bytes to MiB, rounded up, so that an excess never looks equal to the limit."""
    return -(-amount // MIB)
