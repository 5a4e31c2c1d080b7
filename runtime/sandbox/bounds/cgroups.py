"""Control groups of boxes, for cgroup v1 and v2.

Each box gets its own group, below the group of this process, in every hierarchy that limits something. This process
can create such groups:

- v1: as root, or where this user owns the directory;
- v2: in a delegated group (``Delegate=yes`` of systemd, or a container with its own group), or as root. A group that
  enables controllers for its children must not contain processes itself. So the processes of a delegated group move to
  a separate group, :data:`PROCESSES`, next to those of the boxes.

The name of a group contains the pid and start time of its creator, which identifies groups left behind by a dead
process. No other group is ever removed. See the kernel's "Control Group v2" and "Memory Resource Controller".
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
"""The cgroup v2 group that takes the processes of a delegated group."""
CONTROLLERS = ("memory", "pids", "cpu")
MIB = 1 << 20
CPU_SHARES = 1024
"""Shares per core in v1; also the kernel's default for a group."""
CPU_WEIGHT = 100
"""Weight per core in v2; also the kernel's default for a group."""
MAX_CPU_WEIGHT = 10_000
IDLE = "cpu.idle"
"""The file that makes a group run only when the processors are otherwise idle (Linux 5.15, both versions)."""
LEAST = {"cpu.weight": "1", "cpu.shares": "2"}
"""The smallest share, by file: the fallback for kernels without :data:`IDLE`."""
REMOVE_SECONDS = 2.0
"""How long to wait for the kernel to release the last process of a group."""

_LOG = logging.getLogger(__name__)
_NUMBERS = count(1)
"""Numbers the groups of this process. Two groups with one name would be the same group, removed with the first box."""
_NAME = re.compile(r"sluice-box-(\d{1,10})-(\d{1,20})-\d{1,10}")
_POLL_SECONDS = 0.01
_MAX_MOVED = 10_000


@dataclass(frozen=True, slots=True)
class Events:
    """How often the kernel has enforced a limit on a box."""

    memory_kills: int = 0
    tasks_refused: int = 0


class ControlGroups:
    """Creates the groups of boxes in the directories where this process may do so.

    Args:
        parents: the parent directory of new groups by controller; several controllers may share one.
        unified: whether these are cgroup v2 directories.
        owner: identifies this process in the names of its groups; by default its pid and start time.
    """

    def __init__(self, parents: Mapping[str, Path], *, unified: bool, owner: str = "") -> None:
        self.parents = dict(parents)
        self.unified = unified
        self.owner = owner or f"{os.getpid()}-{_started_at(Path('/proc'), os.getpid())}"

    @classmethod
    def find(cls, root: Path = ROOT, proc: Path = Path("/proc")) -> ControlGroups | None:
        """Find by trial where this process can create groups; None: nowhere."""
        parents, unified = cls.parents_in(root, proc)
        found = cls(parents, unified=unified)
        return found if parents and found.usable() else None

    @staticmethod
    def parents_in(root: Path, proc: Path) -> tuple[dict[str, Path], bool]:
        """The parent directory of new groups by controller, and whether these are cgroup v2 directories."""
        own = _own_groups(kernel_text(proc / "self/cgroup"))
        unified = _unified(root, own.get(""))
        return (unified, True) if unified else (_v1_parents(root, own), False)

    def usable(self) -> bool:
        """Whether a group can be created. Creates one and removes it."""
        try:
            group = self.make(Limits(memory_mb=1024, processes=1024, cores=1))
        except OSError as error:
            _LOG.info("no control groups: %s", error)
            return False
        group.remove()
        return True

    def make(self, limits: Limits) -> BoxGroup:
        """Create a group with ``limits`` and without processes.

        Raises:
            OSError: the kernel refuses the group or one of its limits.
        """
        name = f"sluice-box-{self.owner}-{next(_NUMBERS)}"
        group = BoxGroup({parent: parent / name for parent in dict.fromkeys(self.parents.values())}, self.unified)
        try:
            group.create(settings(limits, self.parents, unified=self.unified))
        except OSError:
            group.remove()
            raise
        return group

    def remove_stale(self, proc: Path = Path("/proc")) -> int:
        """Remove the groups of boxes whose creator is dead; return how many were removed."""
        removed = 0
        for parent in dict.fromkeys(self.parents.values()):
            with contextlib.suppress(OSError):
                for path in list(parent.iterdir()):
                    made = _NAME.fullmatch(path.name)
                    if made and _started_at(proc, int(made[1])) != made[2]:
                        # A group with processes belongs to a container with its own pid namespace: rmdir fails.
                        with contextlib.suppress(OSError):
                            path.rmdir()
                            removed += 1
        return removed


class BoxGroup:
    """The control group of one box."""

    def __init__(self, directories: Mapping[Path, Path], unified: bool) -> None:
        self.directories = tuple(directories.values())
        self._unified = unified
        self._entrances: list[int] = []
        self._shares: dict[Path, str] = {}

    def create(self, settings: Mapping[str, tuple[tuple[str, str, bool], ...]]) -> None:
        """Create the group and write its limits.

        Raises:
            OSError: the kernel refuses the group or a limit that the box must not run without.
        """
        for directory in self.directories:
            directory.mkdir(mode=0o755)
        for directory in self.directories:
            for name, value, needed in _settings_in(directory, settings):
                try:
                    _write(directory / name, value)
                except OSError:
                    if needed:
                        raise
                if name in LEAST:
                    self._shares[directory / name] = value
            self._entrances.append(os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))

    def lower_cpu_share(self) -> None:
        """Use only idle processor time until :meth:`restore_cpu_share`.

        Raises:
            OSError: the group is gone.
        """
        for file in self._shares:
            if (idle := file.with_name(IDLE)).exists():
                _write(idle, "1")
            else:
                _write(file, LEAST[file.name])

    def restore_cpu_share(self) -> None:
        """Restore the group's share of processor time.

        Raises:
            OSError: the group is gone.
        """
        for file, share in self._shares.items():
            if (idle := file.with_name(IDLE)).exists():
                _write(idle, "0")  # resets the share to the kernel's default
            _write(file, share)

    def enter(self) -> None:
        """Move the calling process into the group. Runs between fork and exec, so it only writes to descriptors."""
        for descriptor in self._entrances:
            os.write(descriptor, b"0")

    def processes(self) -> list[int]:
        """The pids of the processes in the group."""
        found: set[int] = set()
        for directory in self.directories:
            found.update(int(line) for line in kernel_text(directory / "cgroup.procs").split() if line.isdecimal())
        return sorted(found)

    def events(self) -> Events:
        """What the kernel has counted in this group so far."""
        memory = tasks = 0
        for directory in self.directories:
            for name in ("memory.events", "memory.oom_control"):
                memory = max(memory, kernel_count(directory / name, "oom_kill"))
            tasks = max(tasks, kernel_count(directory / "pids.events", "max"))
        return Events(memory, tasks)

    def kill(self) -> None:
        """Send SIGKILL to every process in the group."""
        if self._unified:
            with contextlib.suppress(OSError):
                _write(self.directories[0] / "cgroup.kill", "1")
                return
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Kill the remaining processes and remove the group. Gives up after :data:`REMOVE_SECONDS`."""
        while self._entrances:
            os.close(self._entrances.pop())
        until = time.monotonic() + REMOVE_SECONDS
        while not self._removed():
            if time.monotonic() > until:
                _LOG.warning("cannot remove control group %s: it still contains processes", self.directories[0])
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
    """The settings by controller, as ``(file, value, required)``: the box must not run without a required one."""
    memory, tasks, cores = limits.memory_mb * MIB, limits.processes, limits.cores
    found: dict[str, tuple[tuple[str, str, bool], ...]] = {}
    if "memory" in controllers and memory:
        found["memory"] = (
            # The swap limits are optional: not every kernel accounts for swap.
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


def _settings_in(
    directory: Path, settings: Mapping[str, tuple[tuple[str, str, bool], ...]]
) -> Iterator[tuple[str, str, bool]]:
    """The settings of the controllers whose files exist in ``directory``."""
    for each in settings.values():
        if (directory / each[0][0]).exists():
            yield from each


def _own_groups(text: str) -> dict[str, str]:
    """The group of this process by controller, from ``/proc/self/cgroup``; the key "" is cgroup v2."""
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for each in controllers.split(","):
            found[each] = path
    return found


def _v1_parents(root: Path, own: Mapping[str, str]) -> dict[str, Path]:
    """The parent directories in cgroup v1, which has a hierarchy for each controller or for several together."""
    found = {}
    for controller in CONTROLLERS:
        if controller not in own:
            continue
        mounted = root / controller
        directory = mounted / own[controller].lstrip("/")
        if not directory.is_dir():  # in a container the mount's root is the group of this process
            directory = mounted
        if (directory / "cgroup.procs").exists() and os.access(directory, os.W_OK):
            found[controller] = directory
    return found if {"memory", "pids"} <= found.keys() else {}


def _unified(root: Path, own: str | None) -> dict[str, Path]:
    """The parent directories in cgroup v2, which has one hierarchy. Enables the controllers for the child groups."""
    if own is None or not (root / "cgroup.controllers").exists():
        return {}
    directory = root / own.lstrip("/")
    if not directory.is_dir():
        directory = root
    if directory.name == PROCESSES:
        directory = directory.parent
    # The root cgroup may hold both processes and groups: root creates its groups there if it has no delegated group.
    for parent in dict.fromkeys((directory, *(() if _is_below(root) else (root,)))):
        there = kernel_text(parent / "cgroup.controllers").split()
        wanted = [each for each in CONTROLLERS if each in there]
        if not {"memory", "pids"} <= set(wanted) or not os.access(parent / "cgroup.subtree_control", os.W_OK):
            continue
        try:
            _enable_controllers(parent, wanted)
        except OSError as error:
            _LOG.info("cannot create control groups in %s: %s", parent, error)
            continue
        return dict.fromkeys(wanted, parent)
    return {}


def _is_below(directory: Path) -> bool:
    """Whether a cgroup v2 directory has a parent: only the root cgroup of the machine has no ``cgroup.type``."""
    return (directory / "cgroup.type").exists()


def _enable_controllers(directory: Path, controllers: Sequence[str]) -> None:
    """Enable ``controllers`` for the child groups of ``directory``; moves its own processes to :data:`PROCESSES`."""
    if set(controllers) <= set(kernel_text(directory / "cgroup.subtree_control").split()):
        return
    if kernel_text(directory / "cgroup.procs").split() and _is_below(directory):
        if not _delegated(directory):
            raise PermissionError(1, "the group contains processes and is not delegated", str(directory))
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
    """Whether this group is delegated to us: our user owns it, systemd marked it, or it is the root in a container."""
    if os.geteuid() != 0 and directory.stat().st_uid == os.geteuid():
        return True
    if directory == ROOT:
        return True  # the caller found cgroup.type here, so this is the root of a cgroup namespace, not of the machine
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name) == b"1":
                return True
    return False


def _started_at(proc: Path, pid: int) -> str:
    """The start time of a process in clock ticks since boot; empty: no such process. Identifies it with its pid."""
    fields = kernel_text(proc / str(pid) / "stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _write(path: Path, value: str) -> None:
    """Write ``value`` with a single write(2), as cgroup files require."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)
