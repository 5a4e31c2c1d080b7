"""Runs in a box and tries to get out.

``hostile_program.py FILE [ATTEMPT…]`` prints the outcome of each attempt, as JSON. Standard library only.
Each attempt returns normally when it succeeded; an exception, or a child that was killed, means that it
was refused. FILE has a JSON object with what is outside: paths, a PID, names of sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
TARGETS = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
ATTEMPTS: dict[str, Callable[[], object]] = {}

CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x00020000, 0x20000000, 0x40000000


def attempt(name: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Register one attempt."""

    def register(function: Callable[[], object]) -> Callable[[], object]:
        ATTEMPTS[name] = function
        return function

    return register


def call(number_x86: int, number_arm: int, *arguments: object) -> int:
    """Make a system call; raises OSError if it fails."""
    number = ctypes.c_long(number_x86 if X86 else number_arm)
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(LIBC.syscall(number, *given))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@attempt("read a key")
def _read_key() -> object:
    return Path(TARGETS["key"]).read_bytes()


@attempt("hold memory that no process has")
def _hold_memory() -> object:
    """Hold System V shared memory, which persists unmapped and is in no table of descriptors."""
    segment = call(29, 194, 0, 4096, 0o1600)  # shmget(IPC_PRIVATE, …, IPC_CREAT | 0600)
    return call(31, 195, segment, 0, 0)  # shmctl(…, IPC_RMID)


@attempt("read a key through the root of another process")
def _read_through_proc() -> object:
    for root in Path("/proc").glob("[0-9]*/root"):
        with contextlib.suppress(OSError):
            return (root / TARGETS["key"].lstrip("/")).read_bytes()
    raise PermissionError("through none")


@attempt("list the directory of another job")
def _list_other() -> object:
    return list(Path(TARGETS["other_job"]).iterdir())


@attempt("read /etc/shadow")
def _shadow() -> object:
    return Path("/etc/shadow").read_bytes()


@attempt("connect to a unix socket by its path")
def _unix_socket() -> object:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(TARGETS["unix_socket"])
    return True


@attempt("connect to an abstract unix socket")
def _abstract_socket() -> object:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + TARGETS["abstract_socket"])
    return True


@attempt("see a process outside")
def _see() -> object:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if TARGETS["marker"].encode() in (process / "cmdline").read_bytes():
                return process
    raise PermissionError("none is in sight")


@attempt("read the environment of another process")
def _environment() -> object:
    mine = str(os.getpid())
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if path.parent.name != mine and TARGETS["marker"].encode() in path.read_bytes():
                return path
    raise PermissionError("none is readable")


@attempt("signal a process outside")
def _signal() -> None:
    os.kill(TARGETS["pid"], 0)


@attempt("signal every process")
def _signal_all() -> None:
    try:
        os.kill(-1, 0)  # those of the own box, if any
    finally:
        os.kill(TARGETS["pid"], 0)


@attempt("trace a process")
def _ptrace() -> object:
    return call(101, 117, 16, os.getppid(), 0, 0)


@attempt("write the memory of the first process")
def _write_memory() -> object:
    return os.open("/proc/1/mem", os.O_RDWR)


@attempt("read the memory of another process")
def _read_memory() -> object:
    buffer = ctypes.create_string_buffer(8)
    vector = struct.pack("@PN", ctypes.addressof(buffer), 8)
    return call(310, 270, os.getpid(), vector, 1, vector, 1, 0)


@attempt("take a descriptor of another process")
def _pidfd_getfd() -> object:
    return call(438, 438, os.pidfd_open(os.getpid()), 0, 0)


@attempt("unshare a user namespace")
def _unshare_user() -> object:
    return call(272, 97, CLONE_NEWUSER)


@attempt("unshare a mount namespace")
def _unshare_mount() -> object:
    return call(272, 97, CLONE_NEWNS)


@attempt("clone into a user namespace")
def _clone() -> object:
    pid = call(56, 220, ctypes.c_ulong(CLONE_NEWUSER | signal.SIGCHLD), None, None, None, None)
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


@attempt("clone3 into a user namespace")
def _clone3() -> object:
    arguments = struct.pack("=8Q", CLONE_NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    pid = call(435, 435, arguments, ctypes.c_size_t(len(arguments)))
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


@attempt("enter a namespace")
def _setns() -> object:
    fd = os.open("/proc/self/ns/net", os.O_RDONLY)
    return call(308, 268, fd, CLONE_NEWNET)


@attempt("mount")
def _mount() -> object:
    return call(165, 40, b"tmpfs", b".", b"tmpfs", 0, None)


@attempt("mount by the new interface")
def _fsopen() -> object:
    return call(430, 430, b"tmpfs", 0)


@attempt("unmount")
def _umount() -> object:
    return call(166, 39, b"/proc", 2)


@attempt("chroot")
def _chroot() -> None:
    os.chroot(".")


@attempt("make a device")
def _mknod() -> None:
    os.mknod("zero", 0o666 | 0o020000, os.makedev(1, 5))


@attempt("open the disk")
def _disk() -> object:
    return [os.open(path, os.O_RDONLY) for path in ("/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/kmsg", "/dev/mem")]


@attempt("use a setuid program")
def _setuid() -> object:
    names = ("/usr/bin/su", "/usr/bin/passwd", "/usr/bin/newgrp", "/usr/bin/mount")
    program = next(name for name in names if Path(name).exists() and Path(name).stat().st_mode & stat.S_ISUID)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    mounted = os.statvfs(program).f_flag
    if "NoNewPrivs:\t1" in status and mounted & os.ST_NOSUID:
        raise PermissionError("no new privileges, no setuid on any file system")
    return program


@attempt("become root")
def _root() -> None:
    os.setuid(0)


@attempt("become another job")
def _other_uid() -> None:
    os.setresuid(0x70000001, 0x70000001, 0x70000001)


@attempt("raw socket")
def _raw() -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


@attempt("ping socket")
def _ping() -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)


@attempt("packet socket")
def _packet() -> object:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)


@attempt("vsock")
def _vsock() -> object:
    return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)


@attempt("MPTCP socket")
def _mptcp() -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)


@attempt("kernel crypto socket")
def _alg() -> object:
    return socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)


@attempt("netlink audit socket")
def _netlink() -> object:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)


@attempt("io_uring")
def _io_uring() -> object:
    return call(425, 425, 4, ctypes.create_string_buffer(120))


@attempt("bpf")
def _bpf() -> object:
    return call(321, 280, 0, struct.pack("=IIIII", 1, 4, 4, 1, 0) + bytes(100), 120)


@attempt("perf_event_open")
def _perf() -> object:
    return call(298, 241, struct.pack("=II", 1, 112) + bytes(104), 0, -1, -1, 0)


@attempt("userfaultfd")
def _userfaultfd() -> object:
    return call(323, 282, 1)


@attempt("kernel keyring")
def _keyctl() -> object:
    return call(250, 219, 0, -3, 1)


@attempt("open a file by its handle")
def _handle() -> object:
    return call(304, 265, -100, bytes(64), 0)


@attempt("load a module")
def _module() -> object:
    return call(313, 273, 0, b"", 0)


@attempt("type into a terminal")
def _tiocsti() -> object:
    leader, follower = os.openpty()
    os.setsid()
    fcntl.ioctl(follower, 0x540E, 0)  # TIOCSCTTY
    fcntl.ioctl(follower, 0x5412, b"x")
    return leader


@attempt("switch protections off by personality")
def _personality() -> object:
    return call(135, 92, 0x0400000)


@attempt("write into /usr")
def _write_usr() -> object:
    return Path("/usr/bin/python3-evil").write_bytes(b"")


@attempt("write into /etc")
def _write_etc() -> object:
    return Path("/etc/evil").write_bytes(b"")


@attempt("write into /dev")
def _write_dev() -> object:
    return Path("/dev/evil").write_bytes(b"")


@attempt("write into the Python environment")
def _write_venv() -> object:
    return Path(TARGETS["environment"], "evil").write_bytes(b"")


@attempt("write what it may only read")
def _write_read_only() -> object:
    return Path(TARGETS["read_only"], "evil").write_bytes(b"")


@attempt("change a setting of the kernel")
def _sysctl() -> object:
    return os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)  # nothing is written, should it be allowed


@attempt("make itself unkillable for the kernel")
def _oom() -> object:
    return Path("/proc/self/oom_score_adj").write_text("-1000", encoding="ascii")


@attempt("hard link to a file outside")
def _hard_link() -> None:
    os.link("/usr/bin/env", "env")


@attempt("raise a limit")
def _raise_limit() -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1))


@attempt("leave a core dump")
def _core() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))


@attempt("use the 32-bit interface of the kernel")
def _x32() -> object:
    return call(0x40000000 + 39, 1 << 20)


@attempt("use a system call that nobody knows")
def _unknown() -> object:
    return call(1000, 1000)


def main() -> None:
    """Make every attempt, each in a process of its own."""
    results = {}
    for name in sys.argv[2:] or ATTEMPTS:
        function = ATTEMPTS[name]
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            try:
                function()
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
                os.write(writer, f"refused: {type(error).__name__}: {error}"[:500].encode())
            else:
                os.write(writer, b"SUCCEEDED")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as told:
            text = told.read()
        _, status = os.waitpid(pid, 0)
        results[name] = text or f"refused: killed by signal {os.WTERMSIG(status)}"
    print(json.dumps(results))  # noqa: T201 - its result


if __name__ == "__main__":
    main()
