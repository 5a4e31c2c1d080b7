"""Deciding whether a box uses more than it may, and saying so. Decisions only; no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.runtime.sandbox.limits import Limits

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """What was measured of a box; what was not measured is 0.

    Attributes:
        memory_bytes: of all its processes together.
        memory_kills: how often the kernel has ended one of them because all of them had too much memory.
        tasks: its processes and their threads.
        tasks_refused: how often the kernel has refused it another one.
        disk_bytes, entries: what its directories hold.
        hidden: why there may be more in its directories; empty: there is not.
        log_bytes: its longest log.
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
    """What a bound applies to, in words.

    Attributes:
        name: of the process, as in "the executor".
        memory_setting: what its user or operator raises for more memory.
        owner: whose directories it works in, when that is somebody else.
    """

    name: str
    memory_setting: str = "memory_overhead_mb in [isolation]"
    owner: str = ""


def excess(usage: Usage, limits: Limits, subject: Subject) -> str:
    """A sentence that names the bound, the amount and the setting to raise; empty while all is within bounds.

    A limit of 0 bounds nothing.
    """
    return next(_excesses(usage, limits, subject), "")


def _excesses(usage: Usage, limits: Limits, subject: Subject) -> Iterator[str]:
    name, owner = subject.name, subject.owner or subject.name
    if usage.memory_kills:
        yield (
            f"out of memory: {name} and what it started wanted more than the {limits.memory_mb} MiB that they may use, "
            f"so the kernel ended one of these processes; raise {subject.memory_setting}"
        )
    if _over(usage.memory_bytes, limits.memory_mb):
        yield (
            f"out of memory: {name} and what it started use {_mib(usage.memory_bytes)} MiB and may use "
            f"{limits.memory_mb} MiB; raise {subject.memory_setting}"
        )
    if usage.tasks_refused or (limits.processes and usage.tasks >= limits.processes):
        # reaching it is enough: the kernel lets no box have more
        yield (
            f"too many processes: {name} has used up the {limits.processes} processes and threads that it may have; "
            "raise max_processes in [isolation]"
        )
    if _over(usage.log_bytes, limits.log_mb):
        yield (
            f"too much output: a log of {name} has {_mib(usage.log_bytes)} MiB and may have {limits.log_mb} MiB; "
            "print less, or raise log_mb in [isolation]"
        )
    if _over(usage.disk_bytes, limits.disk_mb):
        yield (
            f"too much disk: the directories of {owner} hold {_mib(usage.disk_bytes)} MiB and may hold "
            f"{limits.disk_mb} MiB; raise disk_mb in [isolation]"
        )
    if limits.files and usage.entries > limits.files:
        yield (
            f"too many files: the directories of {owner} hold more than {limits.files} files, "
            "which is what they may hold; raise max_files in [isolation]"
        )
    if usage.hidden and (limits.disk_mb or limits.files):
        yield f"the directories of {owner} cannot be measured: {usage.hidden}; have the job make no such directory"


def _over(amount: int, limit_mb: int) -> bool:
    return limit_mb > 0 and amount > limit_mb * MIB


def _mib(amount: int) -> int:
    """In MiB, rounded up, so that an excess never reads like the bound."""
    return -(-amount // MIB)
