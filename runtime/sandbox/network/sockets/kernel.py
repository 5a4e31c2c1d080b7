"""System calls without a Python function: seccomp notifications, and descriptors of other processes.

Numbers and layouts come from ``linux/seccomp.h`` and ``linux/pidfd.h``. They are the same on x86_64 and aarch64.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

NOTIF_RECV, NOTIF_SEND, NOTIF_ID_VALID, NOTIF_ADDFD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
"""``SECCOMP_IOCTL_*``."""
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")
_ADDFD = struct.Struct("=QIIII")
_ADDFD_SETFD = 1

_PIDFD_OPEN, _PIDFD_GETFD = 434, 438
_PIDFD_THREAD = os.O_EXCL
"""PIDFD_THREAD (Linux 6.9): the pidfd refers to one thread, which may have its own descriptor table."""

SO_PROTOCOL, SO_DOMAIN, SO_COOKIE, SO_NETNS_COOKIE = 38, 39, 57, 71
"""SOL_SOCKET options that :mod:`socket` does not define."""

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000

_LIBC = ctypes.CDLL(None, use_errno=True)
_NOTHING = ctypes.c_char(0)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class Notification:
    """A system call that is pending until it is answered; ``thread`` is the id of the calling thread."""

    id: int
    thread: int
    number: int
    arguments: tuple[int, ...]


def receive(listener: int) -> Notification:
    """Receive the next pending call.

    Raises:
        FileNotFoundError: the call was cancelled meanwhile.
    """
    buffer = bytearray(_NOTIFICATION.size)
    fcntl.ioctl(listener, NOTIF_RECV, buffer, True)
    identifier, thread, _, number, _, _, *arguments = _NOTIFICATION.unpack(buffer)
    return Notification(identifier, thread, number, tuple(arguments))


def waits(listener: int, notification: int) -> bool:
    """Whether the call is still pending. If so, data read before by its thread id came from the right process."""
    try:
        fcntl.ioctl(listener, NOTIF_ID_VALID, struct.pack("=Q", notification))
    except OSError:
        return False
    return True


def answer(listener: int, notification: int, *, value: int = 0, error: int = 0) -> bool:
    """Let the call return ``value``, or fail with ``error``; False: the call is no longer pending."""
    try:
        fcntl.ioctl(listener, NOTIF_SEND, _RESPONSE.pack(notification, 0 if error else value, -error, 0))
    except OSError as failure:
        if failure.errno in (errno.ENOENT, errno.EINPROGRESS):
            return False
        raise
    return True


def replace(listener: int, notification: int, fd: int, *, target: int, close_on_exec: bool) -> None:
    """Replace the calling process's descriptor ``target`` by a duplicate of ``fd``. The call stays pending."""
    flags = os.O_CLOEXEC if close_on_exec else 0
    fcntl.ioctl(listener, NOTIF_ADDFD, _ADDFD.pack(notification, _ADDFD_SETFD, fd, target, flags))


def open_thread(thread: int) -> int:
    """Open a pidfd of the thread, or of its process on a kernel without PIDFD_THREAD."""
    fd: int = _LIBC.syscall(_PIDFD_OPEN, ctypes.c_int(thread), ctypes.c_uint(_PIDFD_THREAD))
    if fd >= 0:
        return fd
    if ctypes.get_errno() != errno.EINVAL:
        raise _error("pidfd_open")
    return os.pidfd_open(int(status(thread, "Tgid")))


def fetch(pidfd: int, fd: int) -> int:
    """Duplicate another process's descriptor."""
    found: int = _LIBC.syscall(_PIDFD_GETFD, ctypes.c_int(pidfd), ctypes.c_int(fd), ctypes.c_uint(0))
    if found < 0:
        raise _error("pidfd_getfd")
    return found


def read_memory(thread: int, address: int, length: int) -> bytes:
    """Read ``length`` bytes of another process's memory."""
    buffer = ctypes.create_string_buffer(length)
    local = _Vector(ctypes.cast(buffer, ctypes.c_void_p), length)
    remote = _Vector(address, length)
    done = _LIBC.process_vm_readv(
        ctypes.c_int(thread), ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1), 0
    )
    if done != length:
        raise _error("process_vm_readv") if done < 0 else OSError(errno.EFAULT, "process_vm_readv")
    return buffer.raw


def address_of_nothing() -> int:
    """The address of a zero byte in this process that is never freed."""
    return ctypes.addressof(_NOTHING)


def enter(fd: int) -> None:
    """Move this thread into the namespace. To enter a user namespace, the process must be single-threaded."""
    if _LIBC.setns(ctypes.c_int(fd), ctypes.c_int(0)) != 0:
        raise _error("setns")


def status(thread: int, name: str) -> str:
    """One field of ``/proc/<thread>/status``; empty if it is not there."""
    with Path(f"/proc/{thread}/status").open(encoding="utf-8", errors="replace") as file:
        return next((value.strip() for key, _, value in (line.partition(":") for line in file) if key == name), "")


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


def connect(fd: int, sockaddr: bytes) -> int:
    """Call ``connect(2)`` with an address as bytes; return the error number, or 0."""
    done: int = _LIBC.connect(ctypes.c_int(fd), sockaddr, ctypes.c_uint(len(sockaddr)))
    return 0 if done == 0 else ctypes.get_errno()


def listen(fd: int, backlog: int) -> int:
    """Call ``listen(2)``; return the error number, or 0."""
    done: int = _LIBC.listen(ctypes.c_int(fd), ctypes.c_int(backlog))
    return 0 if done == 0 else ctypes.get_errno()
