"""System calls that Python lacks, by number; failures raise OSError with the kernel's error."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_X86_64 = platform.machine() == "x86_64"


class NoSuchCall(Exception):
    """The number of a call is not known for this processor."""


def number(x86_64: int, aarch64: int | None) -> int:
    """The number of a call here."""
    if _X86_64:
        return x86_64
    if platform.machine() == "aarch64" and aarch64 is not None:
        return aarch64
    raise NoSuchCall(f"unknown on {platform.machine()}")


NUMBERS: dict[str, tuple[int, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "prlimit64": (302, 261),
    "unshare": (272, 97),
    "setns": (308, 268),
    "clone": (56, 220),
    "clone3": (435, 435),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "userfaultfd": (323, 282),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "finit_module": (313, 273),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "fanotify_init": (300, 262),
    "ioperm": (173, None),
    "acct": (163, 89),
}


def call(name: str, *arguments: Any) -> int:  # noqa: ANN401  numbers, bytes and ctypes' pointers
    """Make the system call ``name``.

    Raises:
        OSError: with the kernel's error.
        NoSuchCall: its number on this processor is not known.
    """
    ctypes.set_errno(0)
    values = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number(*NUMBERS[name])), *values))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return result


def prctl(option: int, *arguments: int) -> int:
    """Like prctl(2)."""
    values = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    ctypes.set_errno(0)
    result = int(_LIBC.prctl(ctypes.c_int(option), *values))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "prctl")
    return result


def status(field: str, pid: int | str = "self") -> str:
    """A field of ``/proc/PID/status``; empty when it is not there."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123  quickest
        for line in file:
            name, _, value = line.partition(":")
            if name == field:
                return value.strip()
    return ""
