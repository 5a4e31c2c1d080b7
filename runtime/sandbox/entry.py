"""The first program in a box: it gives up what is left of its rights and becomes the job's program.

It runs as ``python -I -S entry.py FD JOB`` with an empty environment, before any code of the job, and uses nothing but
the standard library: bubblewrap copies this one file into the box. FD has NUL-separated records ``key=value``, see
:mod:`sluice.runtime.sandbox.orders`, which writes them. Whatever fails ends it: the job's program then never runs.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys

EXIT_CODE = 125
"""The box could not be completed; the reason is on standard error."""
MAX_ORDERS_BYTES = 8 << 20

CAPABILITY_VERSION_3 = 0x20080522
PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2

_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Follow the orders, then run the program that they name."""
    fd = int(sys.argv[1])
    orders = _read(fd)
    os.closerange(3, max(fd, 3) + 1)
    try:
        _restrict(orders)
        _run(orders)
    except OSError as error:
        os.write(2, f"sluice: the sandbox could not be completed: {error}\n".encode())
        os._exit(EXIT_CODE)


def _read(fd: int) -> dict[str, list[str]]:
    os.lseek(fd, 0, os.SEEK_SET)
    data = b""
    while chunk := os.read(fd, MAX_ORDERS_BYTES):
        data += chunk
    orders: dict[str, list[str]] = {}
    for record in data.split(b"\0"):
        key, separator, value = os.fsdecode(record).partition("=")
        if separator:
            orders.setdefault(key, []).append(value)
    return orders


def _restrict(orders: dict[str, list[str]]) -> None:
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    for uid in map(int, orders.get("uid", ())):
        _become(uid)
    for parent in map(int, orders.get("parent", ())):
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_CODE)
    for each in orders.get("rlimit", ()):
        name, _, value = each.partition(":")
        _limit(int(name), int(value))


def _become(uid: int) -> None:
    """Give up root: no group, no capability, none that could come back."""
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    capability = 0
    while _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # What could be inherited is the one set that a change of uid leaves.
    if _LIBC.capset(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _limit(number: int, value: int) -> None:
    _, hard = resource.getrlimit(number)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(number, (value, value))


def _prctl(option: int, argument: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _run(orders: dict[str, list[str]]) -> None:
    # Python ignores SIGPIPE and SIGXFSZ, and SIGTERM was ignored so that bubblewrap survives it.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    environment = dict(each.partition("=")[::2] for each in orders.get("env", ()))
    argv = orders["arg"]
    os.chdir(orders["cwd"][0])
    os.execvpe(argv[0], argv, environment)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
