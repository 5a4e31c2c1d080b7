"""Measures the tasks and memory of a box's processes from outside, in ``/proc``.

A box is the process that was started and all its descendants. In a pid namespace no process can leave this tree,
because the first process of the namespace adopts orphans.

All work here is bounded, and nothing that a job controls is trusted: process names may contain any bytes, and a process
may end at any time or hide its memory map.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.kernel_files import kernel_text

PROC = Path("/proc")
MAX_PROCESSES = 1 << 16
"""Maximum number of the machine's processes that one round examines."""
MAX_DESCRIPTORS = 1 << 16
"""Maximum number of a box's open files that one round examines."""
SHARED_SECONDS = 0.25
"""How long boxes share one snapshot of the process table."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCK = 512
"""The unit of ``st_blocks``, whatever the file system."""
_MAPPED = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
_RESIDENT = ("RssAnon:", "RssShmem:", "VmSwap:")


@dataclass(frozen=True, slots=True)
class Process:
    """One process; ``resident`` is its memory in bytes, including what it shares with other processes."""

    pid: int
    parent: int
    tasks: int
    resident: int


class ProcessTable:
    """A snapshot of all processes of this machine."""

    def __init__(self, processes: Mapping[int, Process]) -> None:
        self._processes = processes
        self._children: dict[int, list[int]] = {}
        for each in processes.values():
            self._children.setdefault(each.parent, []).append(each.pid)

    @classmethod
    def read(cls, proc: Path = PROC) -> ProcessTable:
        """Take a snapshot; processes that end meanwhile are left out."""
        with os.scandir(proc) as entries:
            pids = itertools.islice((int(each.name) for each in entries if each.name.isdecimal()), MAX_PROCESSES)
            found = (_process(proc, pid) for pid in pids)
            return cls({each.pid: each for each in found if each is not None})

    def below(self, pid: int) -> list[Process]:
        """The process ``pid`` and all its descendants; empty if it has ended."""
        if pid not in self._processes:
            return []
        found, waiting = [], [pid]
        while waiting:
            current = waiting.pop()
            found.append(self._processes[current])
            waiting += self._children.get(current, ())
        return found


class SharedTable:
    """A process table that all boxes of this process share, so that its cost does not grow with their number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table = ProcessTable({})
        self._read_at = float("-inf")

    def read(self) -> ProcessTable:
        """A snapshot that is at most :data:`SHARED_SECONDS` old."""
        with self._lock:
            if time.monotonic() - self._read_at > SHARED_SECONDS:
                self._table = ProcessTable.read()
                self._read_at = time.monotonic()
            return self._table


def memory_bytes(processes: Collection[Process], bound: int, *, swaps: bool, proc: Path = PROC) -> int:
    """The memory of ``processes`` together in bytes: their private memory and their share of shared memory (PSS).

    Page cache does not count, because the kernel can reclaim it at once. Measuring PSS walks page tables, so it is done
    only if the resident memory, which is never smaller, exceeds ``bound``, or if the machine ``swaps``. Otherwise the
    resident memory is returned.
    """
    resident = sum(each.resident for each in processes)
    if resident <= bound and not swaps:
        return resident
    return sum(_own_bytes(proc, each.pid) for each in processes)


def unlinked_bytes(pids: Collection[int], disks: Collection[int], proc: Path = PROC) -> tuple[int, int]:
    """Bytes of unlinked files that ``pids`` have open: on the devices ``disks``, and in memory (``memfd_create``)."""
    on_disk = in_memory = 0
    seen: set[tuple[int, int]] = set()
    left = MAX_DESCRIPTORS
    for pid in pids:
        for info in _open_files(proc / str(pid) / "fd", left):
            left -= 1
            if not stat.S_ISREG(info.st_mode) or info.st_nlink or (info.st_dev, info.st_ino) in seen:
                continue
            seen.add((info.st_dev, info.st_ino))
            if info.st_dev in disks:
                on_disk += info.st_blocks * _BLOCK
            else:
                in_memory += info.st_blocks * _BLOCK
    return on_disk, in_memory


def has_swap(proc: Path = PROC) -> bool:
    """Whether this machine has swap space."""
    return _kilobytes(kernel_text(proc / "meminfo"), ("SwapTotal:",)) > 0


def _process(proc: Path, pid: int) -> Process | None:
    # The name may contain spaces and parentheses: the other fields start after the last one (proc_pid_stat(5)).
    fields = kernel_text(proc / str(pid) / "stat").rpartition(")")[2].split()
    try:
        return Process(pid, parent=int(fields[1]), tasks=int(fields[17]), resident=int(fields[21]) * _PAGE)
    except (IndexError, ValueError):
        return None  # it has ended


def _own_bytes(proc: Path, pid: int) -> int:
    """The PSS of a process. If it hides its memory map (``PR_SET_DUMPABLE``), all its shared memory counts."""
    shared_out = kernel_text(proc / str(pid) / "smaps_rollup")
    if shared_out:
        return _kilobytes(shared_out, _MAPPED) << 10
    return _kilobytes(kernel_text(proc / str(pid) / "status"), _RESIDENT) << 10


def _kilobytes(text: str, names: Sequence[str]) -> int:
    total = 0
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        name, _, rest = (name, "", rest) if name in names else line.partition("\t")
        if name in names:
            number = rest.split()[0] if rest.split() else ""
            total += int(number) if number.isdecimal() else 0
    return total


def _open_files(directory: Path, limit: int) -> list[os.stat_result]:
    found = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for each in itertools.islice(entries, limit):
            with contextlib.suppress(OSError):
                found.append(each.stat())
    return found
