"""The byte counters of ended TCP connections, which the kernel reports once when it destroys a socket (sock_diag(7)).

Polling open sockets misses short connections. The kernel reports every socket of the machine's network, so this module
subscribes only while a job has connections.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct

from sluice.runtime.sandbox.network.sockets.sock_diag import (
    COOKIE_OFFSET,
    HEADER,
    MESSAGE_BYTES,
    NETLINK_SOCK_DIAG,
    tcp_info,
)

SOL_NETLINK, ADD_MEMBERSHIP, DROP_MEMBERSHIP = 270, 1, 2
GROUPS = (1, 2)
"""SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY."""
BUFFER_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 8192
MAX_AT_ONCE = 10_000
"""Maximum number of messages in one read; more than the buffer can hold."""
_INFO = struct.Struct("=QQ")
_ACKNOWLEDGED_OFFSET, _SENT_OFFSET = 120, 200
"""Offsets: ``tcpi_bytes_acked`` and ``tcpi_bytes_received``; ``tcpi_bytes_sent`` and ``tcpi_bytes_retrans``."""


class LastCounters:
    """The final counters of watched sockets, for use in one thread. Stays empty if the kernel does not report them."""

    def __init__(self) -> None:
        self._watched: set[int] = set()
        self._told: dict[int, tuple[int, int]] = {}
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
        self._kernel.setblocking(False)
        self._kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._kernel.bind((0, 0))

    def close(self) -> None:
        """Close the socket to the kernel."""
        self._kernel.close()

    def fileno(self) -> int:
        """A descriptor that is readable when the kernel has reported something."""
        return self._kernel.fileno()

    def watch(self, cookie: int) -> None:
        """Watch for the end of this socket."""
        if not self._watched:
            self._join(ADD_MEMBERSHIP)
        self._watched.add(cookie)

    def forget(self, cookie: int) -> None:
        """Stop watching this socket."""
        self._told.pop(cookie, None)
        if cookie in self._watched:
            self._watched.remove(cookie)
            if not self._watched:
                self._join(DROP_MEMBERSHIP)
                self.read()

    def of(self, cookie: int) -> tuple[int, int] | None:
        """Bytes sent and received over an ended socket; None: the kernel has not reported its end."""
        self.read()
        return self._told.get(cookie)

    def read(self) -> None:
        """Read the kernel's pending reports."""
        for _ in range(MAX_AT_ONCE):
            try:
                message = self._kernel.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # on an overflow, the lost reports count as never sent
                    return
                continue
            length = HEADER.unpack_from(message)[0]
            body = message[HEADER.size : length]
            if len(body) < MESSAGE_BYTES:
                continue
            low, high = struct.unpack_from("=II", body, COOKIE_OFFSET)
            if (cookie := low | high << 32) in self._watched:
                found = final_counters(tcp_info(body[MESSAGE_BYTES:]))
                if found is not None:
                    self._told[cookie] = found

    def _join(self, how: int) -> None:
        for group in GROUPS:
            with contextlib.suppress(OSError):
                self._kernel.setsockopt(SOL_NETLINK, how, group)


def final_counters(info: bytes) -> tuple[int, int] | None:
    """Bytes of data that were acknowledged and received, from a ``struct tcp_info``; None: ``info`` is too short.

    The kernel counts the SYN and the FIN of each direction as one byte. If this side's FIN was acknowledged, the
    connection ended in order, so the peer's FIN was received too.
    """
    if len(info) < _SENT_OFFSET + _INFO.size:
        return None
    acknowledged, received = _INFO.unpack_from(info, _ACKNOWLEDGED_OFFSET)
    sent, again = _INFO.unpack_from(info, _SENT_OFFSET)
    data = max(0, min(acknowledged - 1, sent - again))
    in_order = acknowledged - 1 > data
    return data, max(0, received - 1) if in_order else received
