"""Connects a Unix socket on behalf of a job: with the job's root directory, working directory and user."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from sluice.runtime.sandbox.network.sockets import kernel
from sluice.runtime.sandbox.network.sockets.calls import Call

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_HOW = struct.Struct("=QQQ")
SET_IDS = {"x86_64": (119, 117, 116), "aarch64": (149, 147, 159)}
"""``setresgid``, ``setresuid``, ``setgroups``. As direct system calls they change only the calling thread."""
_KEEP = -1
NOT_THERE = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP})
"""Errors of a connection to a socket outside the box, or to none."""
_OWN = ("/tmp/", "/proc/", "/dev/shm/")  # noqa: S108 - private to the box
_OF_LIBC = frozenset({"/var/run/nscd/socket", "/run/nscd/socket"})
"""The sockets of nscd, which libc tries for every lookup of a user or host."""
_MAX_NAME_CHARACTERS = 108
_LIBC = ctypes.CDLL(None, use_errno=True)


def connect_unix(call: Call, sockaddr: bytes, uid: int | None) -> int:
    """Connect the call's socket to the address ``sockaddr`` in its box; return the error number, or 0.

    Args:
        call: a call on a Unix socket of the box.
        sockaddr: a copy of its address argument.
        uid: the job's own uid; None: the uid of this process.

    Raises:
        OSError: there is no such socket.
    """
    name = sockaddr[2:]
    with acting_as(uid):
        if not name or name[0] == 0:  # the kernel looks up abstract names in the namespace of the socket
            return kernel.connect(call.socket.fileno(), sockaddr)
        target = _find(call, name.split(b"\0", 1)[0])
        try:
            reached = struct.pack("=H", socket.AF_UNIX) + f"/proc/self/fd/{target}".encode() + b"\0"
            return kernel.connect(call.socket.fileno(), reached)
        finally:
            os.close(target)


def foreign_name(sockaddr: bytes) -> str:
    """The row's name of a socket that may be outside the box; ``@`` starts an abstract name. Empty: in the box."""
    name = sockaddr[2:]
    if not name:
        return ""
    if name[0] == 0:
        return f"@{name[1:].decode(errors='replace')}"[:_MAX_NAME_CHARACTERS]
    path = name.split(b"\0", 1)[0].decode(errors="replace")[:_MAX_NAME_CHARACTERS]
    normal = os.path.normpath(path)
    own = not normal.startswith("/") or normal.startswith(_OWN) or normal in _OF_LIBC
    return "" if own else path


def _find(call: Call, path: bytes) -> int:
    """Open ``path`` as the caller sees it, with O_PATH. Links cannot lead out of the caller's root directory."""
    if not path.startswith(b"/"):
        path = os.fsencode(Path(f"/proc/{call.thread}/cwd").readlink()) + b"/" + path
    root = os.open(f"/proc/{call.thread}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not call.waits():  # the thread id may belong to another process by now
            raise OSError(errno.ESRCH, "the call is no longer pending")
        how = _HOW.pack(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
        found: int = _LIBC.syscall(_OPENAT2, ctypes.c_int(root), path, how, ctypes.c_size_t(_HOW.size))
        if found < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return found
    finally:
        os.close(root)


@contextlib.contextmanager
def acting_as(uid: int | None) -> Iterator[None]:
    """Run the context with the credentials of ``uid``, in this thread only; None: without a change."""
    if uid is None:
        yield
        return
    groups = os.getgroups()
    own_group, own_user = os.getegid(), os.geteuid()
    set_group, set_user, set_groups = SET_IDS[platform.machine()]
    try:
        _set(set_groups, 0, None)
        _set(set_group, _KEEP, uid, _KEEP)
        _set(set_user, _KEEP, uid, _KEEP)
        yield
    finally:
        _set(set_user, _KEEP, own_user, _KEEP)
        _set(set_group, _KEEP, own_group, _KEEP)
        _set(set_groups, len(groups), (ctypes.c_uint32 * len(groups))(*groups))


def _set(number: int, *arguments: object) -> None:
    if _LIBC.syscall(number, *arguments) != 0:
        raise OSError(ctypes.get_errno() or errno.EPERM, "changing the user of a thread")
