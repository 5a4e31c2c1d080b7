"""The first program in a box: it drops its remaining privileges and then executes the job's program.

It runs as ``python -I -S entry.py FD JOB`` with an empty environment, before any code of the job. It uses only the
standard library, because bubblewrap copies this one file into the box. FD contains NUL-separated ``key=value`` records
written by :mod:`sluice.runtime.sandbox.entry_instructions`. If any step fails, it exits without running the job's
program.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal imports enum and re, which takes as long as starting Python
import _socket  # likewise
import ctypes
import errno
import os
import resource
import struct
import sys

EXIT_CODE = 125
"""The exit code if the box could not be set up; the reason is on standard error."""
MAX_DESCRIPTORS = 1 << 20
MAX_INSTRUCTIONS_BYTES = 8 << 20

CAPABILITY_VERSION_3 = 0x20080522
PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP_SET_MODE_FILTER = 1
SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}
NEW_LISTENER, WAIT_KILLABLE = 1 << 3, 1 << 5
"""SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (Linux 5.19)."""

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_CREATE_RULESET_VERSION = 1
LANDLOCK_RULE_PATH_BENEATH = 1
READ = 1 << 0 | 1 << 2 | 1 << 3
"""LANDLOCK_ACCESS_FS_EXECUTE, READ_FILE, READ_DIR."""
MAKE_SOCKET = 1 << 9
"""LANDLOCK_ACCESS_FS_MAKE_SOCK, which moving or linking a socket into a directory requires as well."""
ON_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Rights that a rule for a file (not a directory) may grant: EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV."""
ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
"""All file access rights by Landlock ABI version; version 5 and later have 16."""
SCOPES_SINCE = 6
SCOPES = 1 << 0 | 1 << 1
"""LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, LANDLOCK_SCOPE_SIGNAL."""

_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Apply the instructions, then execute the program that they name."""
    fd = int(sys.argv[1])
    instructions = _read(fd)
    try:
        _restrict(instructions)
        _run(instructions)
    except OSError as error:
        os.write(2, f"sluice: the sandbox could not be set up: {error}\n".encode())
        os._exit(EXIT_CODE)


def _read(fd: int) -> dict[str, list[str]]:
    os.lseek(fd, 0, os.SEEK_SET)
    data = b""
    while chunk := os.read(fd, MAX_INSTRUCTIONS_BYTES):
        data += chunk
    instructions: dict[str, list[str]] = {}
    for record in data.split(b"\0"):
        key, separator, value = os.fsdecode(record).partition("=")
        if separator:
            instructions.setdefault(key, []).append(value)
    return instructions


def _restrict(instructions: dict[str, list[str]]) -> None:
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    for uid in map(int, instructions.get("uid", ())):
        _become(uid)
    for parent in map(int, instructions.get("parent", ())):
        _prctl(PR_SET_PDEATHSIG, _signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_CODE)
    for each in instructions.get("rlimit", ()):
        name, _, value = each.partition(":")
        _limit(int(name), int(value))
    if "read" in instructions or "write" in instructions:
        _landlock(instructions.get("read", []), instructions.get("write", []), instructions.get("shared", []))
    for name in instructions.get("filter", ()):
        _filter(int(name))
    for each in instructions.get("network", ()):
        program, _, channel = each.partition(":")
        _give_listener(int(program), int(channel))


def _become(uid: int) -> None:
    """Switch from root to ``uid``, without groups or capabilities and without a way to regain them."""
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    capability = 0
    while _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # The change of uid clears all capability sets except the inheritable set.
    if _LIBC.capset(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _limit(number: int, value: int) -> None:
    _, hard = resource.getrlimit(number)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(number, (value, value))


def _landlock(read: list[str], write: list[str], shared: list[str]) -> None:
    """Restrict file access, abstract sockets and signals with Landlock, if the kernel has it.

    Args:
        read: paths for reading and executing.
        write: paths for full access.
        shared: paths for everything except creating sockets.
    """
    version = _LIBC.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION)
    if version < 1:
        return
    every = ALL_RIGHTS.get(version, (1 << 16) - 1)
    attributes = struct.pack("=QQQ", every, 0, SCOPES if version >= SCOPES_SINCE else 0)
    if version < SCOPES_SINCE:
        attributes = attributes[:8]
    rules = _checked(_LIBC.syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    for paths, rights in ((read, READ), (shared, every & ~MAKE_SOCKET), (write, every)):
        for path in paths:
            _allow(rules, path, rights)
    _checked(_LIBC.syscall(LANDLOCK_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    mask = rights if os.path.isdir(path) else rights & ON_FILES  # noqa: PTH112 - pathlib takes milliseconds to load
    _checked(_LIBC.syscall(LANDLOCK_ADD_RULE, rules, LANDLOCK_RULE_PATH_BENEATH, struct.pack("=Qi", mask, fd), 0))
    os.close(fd)


def _filter(fd: int) -> None:
    """Install the seccomp filter in ``fd``, for boxes without bubblewrap."""
    code, descriptor = _program(fd)
    _checked(_LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, descriptor, 0, 0))
    del code


def _give_listener(fd: int, channel: int) -> None:
    """Install the user notification filter in ``fd`` and send its listener to the broker over ``channel``."""
    code, descriptor = _program(fd)
    number = SECCOMP_CALL[os.uname().machine]
    for flags in (NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER):
        listener = _LIBC.syscall(number, SECCOMP_SET_MODE_FILTER, flags, descriptor)
        if listener >= 0 or ctypes.get_errno() != errno.EINVAL:
            break
    del code
    _checked(listener)
    outside = _socket.socket(fileno=channel)
    outside.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", listener))])
    if outside.recv(1) != b".":
        raise OSError(errno.EPIPE, "the broker of its network does not answer")
    outside.close()
    os.close(listener)


def _program(fd: int) -> tuple[object, bytes]:
    """A filter and its ``struct sock_fprog``, which is valid as long as the filter object exists."""
    program = os.pread(fd, MAX_INSTRUCTIONS_BYTES, 0)
    code = ctypes.create_string_buffer(program, len(program))
    return code, struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _prctl(option: int, argument: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _run(instructions: dict[str, list[str]]) -> None:
    # Restore the default actions: Python ignores SIGPIPE and SIGXFSZ, and Launch ignores SIGTERM for bubblewrap.
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGTERM):
        _signal.signal(number, _signal.SIG_DFL)
    environment = dict(each.partition("=")[::2] for each in instructions.get("env", ()))
    argv = instructions["arg"]
    os.closerange(3, MAX_DESCRIPTORS)
    os.chdir(instructions["cwd"][0])
    os.execvpe(argv[0], argv, environment)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
