"""Processes of the cluster and of other jobs: inspect them, read their memory, take their files, send them signals."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from ..attempt import Group, Run, Tried, add, attempt, reached, refused, untried
from ..kernel import NoSuchCall, call
from ..reading import error_of, names
from ..world import Target, World, processes

PROCESSES = Group(
    "PRC",
    severity="critical",
    cwe=(653, 668),
    expected="no such process in sight (ENOENT, ESRCH), or no right (EACCES, EPERM)",
    remedy='run jobs with [isolation] level = "sandbox": each then has a process table of its own',
)
CLUSTER, OTHERS = "process of the cluster", "process of another job"
_PTRACE_SEIZE = 0x4206
_START_TIME = 19
_MAX_TRIED = 8


def _targets(world: World, kind: str) -> list[Target]:
    known = world.of(kind)
    return known or [each for each in _found(world) if each.kind == kind]


def _found(world: World) -> list[Target]:
    """Processes that can be seen and are not of this job."""
    found = []
    for process in processes():
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()[:4096].decode(errors="replace").replace("\0", " ")
            if not command or int(process.name) == os.getpid() or (world.own and world.own in command):
                continue
            if "sluice" in command and " run " in command:
                found.append(Target(CLUSTER, process.name, command[:40], known=False))
            elif "attempt-" in command or "executor-" in command:
                found.append(Target(OTHERS, process.name, command[:40], known=False))
    return found


def _is_it(target: Target) -> bool:
    """Whether the process with this number here is the intended one; True if unknown."""
    try:
        text = Path(f"/proc/{target.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return not target.mark or text.rpartition(")")[2].split()[_START_TIME] == target.mark


def _each(kind: str, what: str, act: Callable[[int], str]) -> Run:
    """An attempt to do ``act`` to each process of ``kind``; one success is enough."""

    def run(world: World) -> Tried:
        targets = _targets(world, kind)[:_MAX_TRIED]
        if not targets:
            return untried(f"no {kind} is known from outside, and none can be seen from inside")
        errors: dict[str, int] = {}
        for target in targets:
            if not _is_it(target):
                errors["another process has its number here"] = errors.get("another process has its number here", 0) + 1
                continue
            try:
                seen = act(target.pid)
            except NoSuchCall as error:
                return untried(str(error))
            except OSError as error:
                errors[error_of(error)] = errors.get(error_of(error), 0) + 1
            else:
                return reached(f"{what} of {target}", seen)
        return refused(f"{what} of {names(targets)}", ", ".join(f"{name} ({count})" for name, count in errors.items()))

    return run


def _environ(pid: int) -> str:
    data = Path(f"/proc/{pid}/environ").read_bytes()
    return f"{data.count(bytes(1))} variables in {len(data)} bytes"


def _cmdline(pid: int) -> str:
    data = Path(f"/proc/{pid}/cmdline").read_bytes()
    return f"{data.count(bytes(1))} arguments in {len(data)} bytes"


def _first_mapping(pid: int) -> int:
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as file:  # noqa: PTH123  quickest
        for line in file:
            if " r" in line[:40]:
                return int(line.split("-")[0], 16)
    raise PermissionError(13, "no mapping is shown")


def _maps(pid: int) -> str:
    return f"a mapping of {'more than 4 GiB' if _first_mapping(pid) >> 32 else 'low addresses'} was told"


def _memory(pid: int) -> str:
    address = _first_mapping(pid)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:  # noqa: PTH123  unbuffered
        file.seek(address)
        return f"read {len(file.read(16))} bytes of its memory"


def _descriptors(pid: int) -> str:
    return f"{len(os.listdir(f'/proc/{pid}/fd'))} descriptors listed"  # noqa: PTH208  errors as they are


def _open_descriptor(pid: int) -> str:
    folder = f"/proc/{pid}/fd"
    last = PermissionError(13, "no descriptor is shown")
    for name in sorted(os.listdir(folder))[:64]:  # noqa: PTH208  errors as they are
        with contextlib.suppress(FileNotFoundError):
            if not os.readlink(f"{folder}/{name}").startswith("/"):  # noqa: PTH115  quickest
                continue
            try:
                descriptor = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_NONBLOCK)
            except OSError as error:
                last = PermissionError(error.errno or 13, str(error))
                continue
            os.close(descriptor)
            return "opened a file of its through /proc/PID/fd"
    raise last


def _root(pid: int) -> str:
    return f"{len(os.listdir(f'/proc/{pid}/root/'))} entries of its root listed"  # noqa: PTH208


def _directory(pid: int) -> str:
    return f"{len(os.listdir(f'/proc/{pid}/cwd/'))} entries of its working directory listed"  # noqa: PTH208


def _signal(pid: int) -> str:
    os.kill(pid, 0)
    return "signal 0 was accepted, so any other would be"


def _seize(pid: int) -> str:
    call("ptrace", _PTRACE_SEIZE, pid, 0, 0)
    return "attached as its debugger, without stopping it; detached at the end of this process"


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _read_memory(pid: int) -> str:
    buffer = ctypes.create_string_buffer(16)
    mine = _Vector(ctypes.cast(buffer, ctypes.c_void_p), 16)
    with contextlib.suppress(OSError):
        theirs = _Vector(_first_mapping(pid), 16)
        return f"read {call('process_vm_readv', pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)} bytes"
    theirs = _Vector(ctypes.cast(buffer, ctypes.c_void_p), 16)
    return f"read {call('process_vm_readv', pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)} bytes"


def _descriptor_of(pid: int) -> str:
    handle = call("pidfd_open", pid, 0)
    try:
        for descriptor in range(8):
            with contextlib.suppress(OSError):
                os.close(call("pidfd_getfd", handle, descriptor, 0))
                return f"took its descriptor {descriptor}"
        os.close(call("pidfd_getfd", handle, 0, 0))
    finally:
        os.close(handle)
    return "took its descriptor 0"


def _handle(pid: int) -> str:
    handle = call("pidfd_open", pid, 0)
    try:
        call("pidfd_send_signal", handle, 0, 0, 0)
    finally:
        os.close(handle)
    return "signal 0 was accepted through a handle of the process"


def _priority(pid: int) -> str:
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
    return "set its priority (to what it was)"


def _affinity(pid: int) -> str:
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))
    return "set the processors it may use (to what they were)"


def _limits(pid: int) -> str:
    call("prlimit64", pid, 7, 0, ctypes.byref((ctypes.c_ulong * 2)()))
    return "read its limits through prlimit"


def _oom(pid: int) -> str:
    path = Path(f"/proc/{pid}/oom_score_adj")
    path.write_text(path.read_text(encoding="ascii"), encoding="ascii")
    return "set whom the kernel kills first when memory runs out (to what it was)"


def _in_its_root(pid: int) -> str:
    marker = Path(f"/proc/{pid}/root/tmp/sluice-insider-{os.getpid()}")
    marker.touch(exist_ok=False)
    marker.unlink()
    return "made and removed a file in its /tmp, as an attach to a JVM begins"


_ACTS: tuple[tuple[str, str, str, Callable[[int], str], str, str], ...] = (
    ("PRC-01", "read the environment of a process of the cluster", CLUSTER, _environ, "critical", "environment"),
    ("PRC-02", "read the environment of another job's process", OTHERS, _environ, "critical", "environment"),
    ("PRC-03", "read the command line of a process of the cluster", CLUSTER, _cmdline, "medium", "command line"),
    ("PRC-04", "read the command line of another job's process", OTHERS, _cmdline, "high", "command line"),
    ("PRC-05", "read the memory of a process of the cluster through /proc", CLUSTER, _memory, "critical", "memory"),
    ("PRC-06", "read the memory of another job's process through /proc", OTHERS, _memory, "critical", "memory"),
    ("PRC-07", "list the open files of a process of the cluster", CLUSTER, _descriptors, "high", "/proc/PID/fd"),
    ("PRC-08", "list the open files of another job's process", OTHERS, _descriptors, "high", "/proc/PID/fd"),
    ("PRC-09", "open a file of a process of the cluster by /proc", CLUSTER, _open_descriptor, "critical", "a file"),
    ("PRC-10", "open a file of another job's process by /proc", OTHERS, _open_descriptor, "critical", "a file"),
    ("PRC-11", "see the files of a process of the cluster by its root", CLUSTER, _root, "critical", "/proc/PID/root"),
    ("PRC-12", "see the files of another job's process by its root", OTHERS, _root, "critical", "/proc/PID/root"),
    ("PRC-13", "see the working directory of a process of the cluster", CLUSTER, _directory, "high", "/proc/PID/cwd"),
    ("PRC-14", "see the working directory of another job's process", OTHERS, _directory, "high", "/proc/PID/cwd"),
    ("PRC-15", "read the memory map of another job's process", OTHERS, _maps, "high", "/proc/PID/maps"),
    ("PRC-16", "send signals to a process of the cluster", CLUSTER, _signal, "high", "signal 0 to a process"),
    ("PRC-17", "send signals to another job's process", OTHERS, _signal, "high", "signal 0 to a process"),
    ("PRC-18", "attach as a debugger to a process of the cluster", CLUSTER, _seize, "critical", "PTRACE_SEIZE"),
    ("PRC-19", "attach as a debugger to another job's process", OTHERS, _seize, "critical", "PTRACE_SEIZE"),
    ("PRC-20", "read memory by process_vm_readv in the cluster", CLUSTER, _read_memory, "critical", "process_vm_readv"),
    ("PRC-21", "read memory by process_vm_readv in another job", OTHERS, _read_memory, "critical", "process_vm_readv"),
    ("PRC-22", "take a descriptor of a process of the cluster", CLUSTER, _descriptor_of, "critical", "pidfd_getfd"),
    ("PRC-23", "take a descriptor of another job's process", OTHERS, _descriptor_of, "critical", "pidfd_getfd"),
    ("PRC-24", "send signals through a handle of a process", CLUSTER, _handle, "high", "pidfd_send_signal"),
    ("PRC-25", "slow down a process of the cluster", CLUSTER, _priority, "medium", "setpriority"),
    ("PRC-26", "change the processors of another job's process", OTHERS, _affinity, "medium", "sched_setaffinity"),
    ("PRC-27", "read or set limits of a process of the cluster", CLUSTER, _limits, "medium", "prlimit"),
    ("PRC-28", "have the kernel kill another job first", OTHERS, _oom, "medium", "oom_score_adj"),
    ("PRC-29", "begin an attach to another job's JVM", OTHERS, _in_its_root, "critical", "/proc/PID/root/tmp"),
)

for _id, _what, _kind, _act, _severity, _done in _ACTS:
    add(_id, _what, PROCESSES, _each(_kind, f"tried {_done}", _act), severity=_severity)


@attempt("PRC-30", "see which processes others run", PROCESSES, severity="medium")
def _list(world: World) -> Tried:
    known = [*world.of(CLUSTER), *world.of(OTHERS)]
    visible = [each for each in known if Path(f"/proc/{each.pid}").is_dir() and _is_it(each)] or _found(world)
    count = sum(1 for _ in processes())
    if visible:
        return reached("listed /proc", f"{count} processes, among them {names(visible)}")
    if not known:
        return untried("no process outside is known, and none can be seen")
    return refused("listed /proc", f"{count} processes, none of {names(known)}")


@attempt("PRC-31", "send signals to process groups of the cluster", PROCESSES, severity="high")
def _everybody(world: World) -> Tried:
    known = [each.pid for each in world.of(CLUSTER)]
    if not known:
        return untried("no process outside is known")
    errors = []
    for pid in known[:_MAX_TRIED]:
        try:
            os.killpg(pid, 0)
        except OSError as error:
            errors.append(error_of(error))
        else:
            if _is_it(Target(CLUSTER, str(pid), mark=next(e.mark for e in world.of(CLUSTER) if e.pid == pid))):
                return reached(f"signal 0 to the process group {pid}", "accepted")
            errors.append("another group has its number here")
    return refused(f"signal 0 to {len(errors)} process groups of the cluster", ", ".join(errors))
