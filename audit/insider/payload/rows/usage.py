"""Exhausting shared resources: processes, descriptors, disk, memory. Every attempt stops at its own limit."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ..attempt import Group, Run, Tried, add, attempt, planted, reached, refused, untried
from ..reading import error_of
from ..world import World

USAGE = Group(
    "USE",
    severity="medium",
    cwe=(770, 400),
    expected="a bound that the kernel or a watcher keeps",
    remedy='run jobs with [isolation] level = "sandbox", which bounds what a job uses',
)
MAX_PROCESSES = 300
MOST_PROCESSES = 1 << 16
"""A larger limit is the machine's, not a job's."""
MOST_DESCRIPTORS = 1 << 16
HUGE_FILE_BYTES = 1 << 40
SOME_BYTES = 32 << 20
LEFT_SECONDS = 120
_ENDLESS = resource.RLIM_INFINITY


@attempt("USE-01", "start processes without a bound", USAGE, seconds=30)
def _processes(world: World) -> Tried:
    bound = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    wanted = MAX_PROCESSES if bound == _ENDLESS else min(bound + 1, MAX_PROCESSES)
    children: list[int] = []
    try:
        for _ in range(wanted):
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            children.append(pid)
    except OSError as error:
        return refused(f"started {len(children)} processes", error_of(error))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if bound != _ENDLESS and bound <= MOST_PROCESSES:
        return refused(f"started {len(children)} processes", f"no more were tried; the kernel's bound is {bound}")
    stated = world.bounds.get("max_processes", 0)
    if stated > len(children):
        return untried(f"a watcher's bound of {stated} processes is more than the {len(children)} that are tried")
    return reached(f"started {len(children)} processes at the same time", "no bound of the job in sight")


@attempt("USE-02", "open files without a bound", USAGE)
def _descriptors(world: World) -> Tried:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    stated = world.bounds.get("max_open_files", MOST_DESCRIPTORS) or MOST_DESCRIPTORS
    if hard != _ENDLESS and hard <= stated:
        return refused("asked for the hard limit of descriptors", f"{hard}, and the bound is {stated}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (stated + 64, hard))
    opened: list[int] = []
    try:
        for _ in range(stated + 1):
            opened.append(os.open("/dev/null", os.O_RDONLY))  # noqa: PERF401  those that were opened are closed
    except OSError as error:
        return refused(f"opened {len(opened)} files", error_of(error))
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return reached(f"opened {len(opened)} files in one process", f"more than {stated}; the hard limit is {hard}")


@attempt("USE-03", "make a file of any size", USAGE)
def _huge_file(_: World) -> Tried:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with tempfile.TemporaryFile(dir=Path.cwd()) as file:
        try:
            os.truncate(file.fileno(), HUGE_FILE_BYTES)
        except OSError as error:
            return refused(f"made a file of {HUGE_FILE_BYTES >> 30} GiB without content", error_of(error))
    return reached(f"made a file of {HUGE_FILE_BYTES >> 30} GiB without content", "made, and removed again")


def _filling(path: str) -> Run:
    """Whether the job can fill a shared directory: it is not the job's own file system, and has no quota."""

    def run(_: World) -> Tried:
        room = os.statvfs(path)
        size = room.f_blocks * room.f_frsize
        own = os.path.ismount(path) and _is_private(path)
        done = f"reserved {SOME_BYTES >> 20} MiB in {path}"
        if own:
            return refused(done, f"{path} is the job's own, of {size >> 20} MiB")
        with tempfile.TemporaryFile(dir=path) as file:
            os.posix_fallocate(file.fileno(), 0, SOME_BYTES)
        return reached(done, f"{path} is shared with the machine, {size >> 20} MiB without a quota of the job")

    return run


def _is_private(path: str) -> bool:
    """Whether the mount at ``path`` is a memory file system that is not the machine's own."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    mounts = [line for line in lines if line.split()[4] == path]
    return bool(mounts) and " - tmpfs " in mounts[-1] and not list(Path(path).glob("sluice-canary-*"))


add("USE-04", "fill the machine's /tmp", USAGE, _filling("/tmp"))  # noqa: S108
add("USE-05", "fill the machine's shared memory", USAGE, _filling("/dev/shm"))  # noqa: S108


@attempt("USE-06", "lock memory that the machine then lacks", USAGE)
def _locked(_: World) -> Tried:
    import ctypes

    block = mmap.mmap(-1, SOME_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(SOME_BYTES)):
        return refused(f"locked {SOME_BYTES >> 20} MiB", error_of(OSError(ctypes.get_errno(), "mlock")))
    return reached(f"locked {SOME_BYTES >> 20} MiB", "locked, and released again")


@attempt("USE-07", "leave processes behind when it ends", USAGE, severity="high", cwe=(404,), last=True)
def _left_behind(world: World) -> Tried:
    """A process of its own session that ends by itself after a while; the audit looks for it when the job has ended."""
    if not world.home:
        return untried("the audit does not run beside the cluster and cannot look")
    program = f"import time; time.sleep({LEFT_SECONDS})"
    with contextlib.suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program, f"sluice-insider-left-{world.nonce}-{world.place}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return planted("started a process in a session of its own", f"it stays for {LEFT_SECONDS} s if nobody ends it")
    return refused("started a process in a session of its own", "it could not be started")


@attempt("USE-08", "make as many sockets as it likes wait", USAGE, severity="low")
def _listeners(_: World) -> Tried:
    import socket

    opened = []
    try:
        for _number in range(1024):
            each = socket.socket()
            opened.append(each)
            each.bind(("127.0.0.1", 0))
            each.listen(1)
    except OSError as error:
        return refused(f"listened on {len(opened)} ports", error_of(error))
    finally:
        for each in opened:
            each.close()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == _ENDLESS or hard > MOST_DESCRIPTORS:
        return reached(f"listened on {len(opened)} ports at once", f"up to {hard} descriptors")
    return refused(f"listened on {len(opened)} ports at once", f"no more were tried; the bound is {hard}")
