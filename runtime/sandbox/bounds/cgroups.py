"""Control groups of boxes, in version 1 and version 2 of the kernel's interface.

Each box gets a group of its own in every hierarchy that bounds something, below the group of this process. Where this
process may make such groups:

- version 1: as root, or where the directory was given to this user;
- version 2: in a delegated group (``Delegate=yes`` of systemd, or a container with its own), or as root. A group that
  has controllers for its children must have no processes itself, so the processes of a delegated one go into a group
  of their own, :data:`PROCESSES`, beside those of the boxes.

Names of groups say who made them, so that those that a dead process left are known; nothing else is ever removed.
See the kernel's "Control Group v2" and "Memory Resource Controller".
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sluice.runtime.kernel_files import kernel_count, kernel_text
from sluice.runtime.sandbox.limits import Limits

ROOT = Path("/sys/fs/cgroup")
PROCESSES = "sluice-processes"
"""The group of version 2 that holds what was in a delegated group."""
CONTROLLERS = ("memory", "pids", "cpu")
MIB = 1 << 20
CPU_SHARES = 1024
"""Of a core in version 1; what the kernel gives a group of its own accord."""
CPU_WEIGHT = 100
"""Of a core in version 2; what the kernel gives a group of its own accord."""
MAX_CPU_WEIGHT = 10_000
IDLE = "cpu.idle"
"""Since Linux 5.15, in both versions: the group gets the time that no other wants."""
LEAST = {"cpu.weight": "1", "cpu.shares": "2"}
"""What older kernels have instead."""
REMOVE_SECONDS = 2.0
"""How long the kernel gets to let go of the last process of a group."""

_LOG = logging.getLogger(__name__)
_NUMBERS = count(1)
"""Of all groups of this process: two of the same name would be one, and end with the first."""
_NAME = re.compile(r"sluice-box-(\d{1,10})-(\d{1,20})-\d{1,10}")
_POLL_SECONDS = 0.01
_MAX_MOVED = 10_000


@dataclass(frozen=True, slots=True)
class Events:
    """What the kernel has done to a box because of its bounds."""

    memory_kills: int = 0
    tasks_refused: int = 0


class ControlGroups:
    """The directories in which this process may make groups, by controller.

    Args:
        parents: by controller; several controllers may have the same one.
        unified: whether they are of version 2.
    """

    def __init__(self, parents: Mapping[str, Path], *, unified: bool, owner: str = "") -> None:
        self.parents = dict(parents)
        self.unified = unified
        self.owner = owner or f"{os.getpid()}-{_started_at(Path('/proc'), os.getpid())}"

    @classmethod
    def find(cls, root: Path = ROOT, proc: Path = Path("/proc")) -> ControlGroups | None:
        """Find out by trying where this process may make groups; None: nowhere."""
        parents, unified = cls.parents_in(root, proc)
        found = cls(parents, unified=unified)
        return found if parents and found.usable() else None

    @staticmethod
    def parents_in(root: Path, proc: Path) -> tuple[dict[str, Path], bool]:
        """In which directory to make groups, for each controller, and whether they are of version 2."""
        own = _own_groups(kernel_text(proc / "self/cgroup"))
        unified = _unified(root, own.get(""))
        return (unified, True) if unified else (_separate(root, own), False)

    def usable(self) -> bool:
        """Whether a group can be made; makes one and removes it."""
        try:
            group = self.make(Limits(memory_mb=1024, processes=1024, cores=1))
        except OSError as error:
            _LOG.info("no control groups: %s", error)
            return False
        group.remove()
        return True

    def make(self, limits: Limits) -> BoxGroup:
        """A group with ``limits``, without processes; :class:`OSError` where that cannot be had."""
        name = f"sluice-box-{self.owner}-{next(_NUMBERS)}"
        group = BoxGroup({parent: parent / name for parent in dict.fromkeys(self.parents.values())}, self.unified)
        try:
            group.create(settings(limits, self.parents, unified=self.unified))
        except OSError:
            group.remove()
            raise
        return group

    def remove_stale(self, proc: Path = Path("/proc")) -> int:
        """Remove the groups of boxes whose maker is dead, and with it all in them; returns their number."""
        removed = 0
        for parent in dict.fromkeys(self.parents.values()):
            with contextlib.suppress(OSError):
                for path in list(parent.iterdir()):
                    made = _NAME.fullmatch(path.name)
                    if made and _started_at(proc, int(made[1])) != made[2]:
                        with contextlib.suppress(OSError):  # somebody is in it: of a container that sees other numbers
                            path.rmdir()
                            removed += 1
        return removed


class BoxGroup:
    """The group of one box."""

    def __init__(self, directories: Mapping[Path, Path], unified: bool) -> None:
        self.directories = tuple(directories.values())
        self._unified = unified
        self._entrances: list[int] = []
        self._shares: dict[Path, str] = {}

    def create(self, settings: Mapping[str, tuple[tuple[str, str, bool], ...]]) -> None:
        """Make it and write its limits."""
        for directory in self.directories:
            directory.mkdir(mode=0o755)
        for directory in self.directories:
            for name, value, needed in _for(directory, settings):
                try:
                    _write(directory / name, value)
                except OSError:
                    if needed:
                        raise
                if name in LEAST:
                    self._shares[directory / name] = value
            self._entrances.append(os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))

    def give_way(self) -> None:
        """Let it have only the processor time that no other group wants, until :meth:`take_share`."""
        for file in self._shares:
            if (idle := file.with_name(IDLE)).exists():
                _write(idle, "1")
            else:
                _write(file, LEAST[file.name])

    def take_share(self) -> None:
        """Let it have its share of the processors' time; raises :class:`OSError`."""
        for file, share in self._shares.items():
            if (idle := file.with_name(IDLE)).exists():
                _write(idle, "0")  # and the share is the kernel's default
            _write(file, share)

    def enter(self) -> None:
        """Called in the process of the box between fork and exec: nothing but writes."""
        for descriptor in self._entrances:
            os.write(descriptor, b"0")

    def processes(self) -> list[int]:
        """The pids of the processes in the group."""
        found: set[int] = set()
        for directory in self.directories:
            found.update(int(line) for line in kernel_text(directory / "cgroup.procs").split() if line.isdecimal())
        return sorted(found)

    def events(self) -> Events:
        """What has happened in it so far."""
        memory = tasks = 0
        for directory in self.directories:
            for name in ("memory.events", "memory.oom_control"):
                memory = max(memory, kernel_count(directory / name, "oom_kill"))
            tasks = max(tasks, kernel_count(directory / "pids.events", "max"))
        return Events(memory, tasks)

    def kill(self) -> None:
        """SIGKILL to everything in it."""
        if self._unified:
            with contextlib.suppress(OSError):
                _write(self.directories[0] / "cgroup.kill", "1")
                return
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """End what is left in it, and remove it; waits a moment. What cannot be removed stays."""
        while self._entrances:
            os.close(self._entrances.pop())
        until = time.monotonic() + REMOVE_SECONDS
        while not self._removed():
            if time.monotonic() > until:
                _LOG.warning("control group %s cannot be removed", self.directories[0])
                return
            self.kill()
            time.sleep(_POLL_SECONDS)

    def _removed(self) -> bool:
        for directory in self.directories:
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def settings(
    limits: Limits, controllers: Collection[str], *, unified: bool
) -> dict[str, tuple[tuple[str, str, bool], ...]]:
    """What to write into which file, and whether the box must not run without it; by controller."""
    memory, tasks, cores = limits.memory_mb * MIB, limits.processes, limits.cores
    found: dict[str, tuple[tuple[str, str, bool], ...]] = {}
    if "memory" in controllers and memory:
        found["memory"] = (
            # swap: not every kernel counts it
            (("memory.max", str(memory), True), ("memory.swap.max", "0", False), ("memory.oom.group", "1", False))
            if unified
            else (("memory.limit_in_bytes", str(memory), True), ("memory.memsw.limit_in_bytes", str(memory), False))
        )
    if "pids" in controllers and tasks:
        found["pids"] = (("pids.max", str(tasks), True),)
    if "cpu" in controllers and limits.cores:
        found["cpu"] = (
            (("cpu.weight", str(min(MAX_CPU_WEIGHT, CPU_WEIGHT * cores)), False),)
            if unified
            else (("cpu.shares", str(CPU_SHARES * cores), False),)
        )
    return found


def _for(directory: Path, settings: Mapping[str, tuple[tuple[str, str, bool], ...]]) -> Iterator[tuple[str, str, bool]]:
    """The controllers that this directory has, by their files."""
    for each in settings.values():
        if (directory / each[0][0]).exists():
            yield from each


def _own_groups(text: str) -> dict[str, str]:
    """The group of this process by controller, from ``/proc/self/cgroup``; "" is version 2."""
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for each in controllers.split(","):
            found[each] = path
    return found


def _separate(root: Path, own: Mapping[str, str]) -> dict[str, Path]:
    """Version 1: a hierarchy for each controller, or for some of them together."""
    found = {}
    for controller in CONTROLLERS:
        if controller not in own:
            continue
        mounted = root / controller
        directory = mounted / own[controller].lstrip("/")
        if not directory.is_dir():  # in a container the group of this process is the top of what is mounted
            directory = mounted
        if (directory / "cgroup.procs").exists() and os.access(directory, os.W_OK):
            found[controller] = directory
    return found if {"memory", "pids"} <= found.keys() else {}


def _unified(root: Path, own: str | None) -> dict[str, Path]:
    """Version 2: one hierarchy; its controllers must be given to the groups below that of ours."""
    if own is None or not (root / "cgroup.controllers").exists():
        return {}
    directory = root / own.lstrip("/")
    if not directory.is_dir():
        directory = root
    if directory.name == PROCESSES:
        directory = directory.parent
    # The top of the machine may hold processes and groups; where nothing is delegated to it, root makes its own there.
    for parent in dict.fromkeys((directory, *(() if _is_below(root) else (root,)))):
        there = kernel_text(parent / "cgroup.controllers").split()
        wanted = [each for each in CONTROLLERS if each in there]
        if not {"memory", "pids"} <= set(wanted) or not os.access(parent / "cgroup.subtree_control", os.W_OK):
            continue
        try:
            _give(parent, wanted)
        except OSError as error:
            _LOG.info("control groups cannot be made in %s: %s", parent, error)
            continue
        return dict.fromkeys(wanted, parent)
    return {}


def _is_below(directory: Path) -> bool:
    """Whether a group of version 2 has one above it: only the top of the machine has no type."""
    return (directory / "cgroup.type").exists()


def _give(directory: Path, controllers: Sequence[str]) -> None:
    """Give ``controllers`` to the groups below ``directory``, whose processes go into one of these."""
    if set(controllers) <= set(kernel_text(directory / "cgroup.subtree_control").split()):
        return
    if kernel_text(directory / "cgroup.procs").split() and _is_below(directory):
        if not _delegated(directory):
            raise PermissionError(1, "it holds processes and is not delegated", str(directory))
        leaf = directory / PROCESSES
        leaf.mkdir(exist_ok=True)
        for _ in range(_MAX_MOVED):
            left = kernel_text(directory / "cgroup.procs").split()
            if not left:
                break
            with contextlib.suppress(ProcessLookupError):
                _write(leaf / "cgroup.procs", left[0])
    _write(directory / "cgroup.subtree_control", " ".join(f"+{each}" for each in controllers))


def _delegated(directory: Path) -> bool:
    """Whether this group was handed to us: it is our user's, or systemd says so, or it is all that a container has."""
    if os.geteuid() != 0 and directory.stat().st_uid == os.geteuid():
        return True
    if directory == ROOT:
        return True  # has a type, so it is the top of a namespace and not of the machine
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return True
    return False


def _started_at(proc: Path, pid: int) -> str:
    """When a process was started, in clock ticks since the boot; with its pid that names it. Empty: there is none."""
    fields = kernel_text(proc / str(pid) / "stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _write(path: Path, value: str) -> None:
    """In one write, as the kernel wants it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
