"""Copies the options of a program's socket to the socket that replaces it."""

from __future__ import annotations

import contextlib
import socket
import struct

_TIMEOUT = struct.Struct("=qq")
_LINGER = struct.Struct("=ii")
_SO_BUF_LOCK = 72
"""Which buffer sizes were set explicitly (Linux 5.14), as bits; 1: send buffer, 2: receive buffer."""
_NUMBERS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (socket.SOL_SOCKET, socket.SO_OOBINLINE),
    (socket.SOL_SOCKET, socket.SO_PRIORITY),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    (socket.IPPROTO_TCP, socket.TCP_CORK),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    (socket.IPPROTO_IP, socket.IP_TOS),
)


def copy_options(of: socket.socket, to: socket.socket) -> None:
    """Copy the options of ``of`` to ``to``, except those that cannot be set there."""
    for level, option in _NUMBERS:
        with contextlib.suppress(OSError):
            value = of.getsockopt(level, option)
            if value != to.getsockopt(level, option):
                to.setsockopt(level, option, value)
    if of.family == socket.AF_INET6:
        _copy(of, to, socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 4)
    _copy(of, to, socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.size)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        _copy(of, to, socket.SOL_SOCKET, option, _TIMEOUT.size)
    with contextlib.suppress(OSError):
        locked = of.getsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK)
        for bit, option in ((1, socket.SO_SNDBUF), (2, socket.SO_RCVBUF)):
            if locked & bit:  # the kernel returns twice the value that was set
                to.setsockopt(socket.SOL_SOCKET, option, of.getsockopt(socket.SOL_SOCKET, option) // 2)


def send_timeout(of: socket.socket) -> float:
    """The program's timeout for connecting, in seconds; 0: none."""
    seconds, microseconds = _TIMEOUT.unpack(of.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEOUT.size))
    return float(seconds + microseconds / 1e6)


def _copy(of: socket.socket, to: socket.socket, level: int, option: int, size: int) -> None:
    with contextlib.suppress(OSError):
        value = of.getsockopt(level, option, size)
        if value != to.getsockopt(level, option, size):
            to.setsockopt(level, option, value)
