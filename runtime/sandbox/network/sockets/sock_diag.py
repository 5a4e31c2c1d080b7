"""Queries the kernel for TCP sockets of this network namespace (sock_diag(7)). Requires no privileges."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

NETLINK_SOCK_DIAG, _BY_FAMILY = 4, 20
_REQUEST = 0x1
_ERROR = 2
_INFO = 2
HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBBI")
_IDENTITY = struct.Struct("!HH16s16s")
_REST = struct.Struct("=III")
MESSAGE_BYTES = 72
COOKIE_OFFSET = 44
_INODE_OFFSET = 68
_ATTRIBUTE = struct.Struct("=HH")
_COUNTERS = struct.Struct("=QQ")
_COUNTERS_OFFSET = 120
"""The offset of ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in ``struct tcp_info``."""
_ALL_STATES = 0xFFFFFFFF
_MAX_ANSWER_BYTES = 8192
FIN_WAIT2, TIME_WAIT, CLOSE = 5, 6, 7
_ENDED_BY_PEER = frozenset({8, 9, 11})
"""CLOSE_WAIT, LAST_ACK, CLOSING."""


@dataclass(frozen=True, slots=True)
class Key:
    """The key by which the kernel finds a socket."""

    family: int
    local: tuple[bytes, int]
    remote: tuple[bytes, int]
    cookie: int

    @classmethod
    def of(cls, connected: socket.socket, cookie: int) -> Key:
        """The key of a socket that is connected, or about to be."""
        family = connected.family

        def end(address: tuple[str, int]) -> tuple[bytes, int]:
            return socket.inet_pton(family, address[0].partition("%")[0]).ljust(16, b"\0"), address[1]

        return cls(family, end(connected.getsockname()[:2]), end(connected.getpeername()[:2]), cookie)


@dataclass(frozen=True, slots=True)
class SocketState:
    """The state of a socket."""

    state: int
    held: bool
    """Whether any process has a descriptor of it."""
    counters: tuple[int, int] | None
    """Bytes that the peer has acknowledged, and bytes received from the peer."""

    @property
    def open(self) -> bool:
        """Whether a program can still use it."""
        return self.held and self.state not in (TIME_WAIT, CLOSE)


class SocketTable:
    """Queries the kernel for sockets; for use in one thread."""

    def __init__(self) -> None:
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
        self._kernel.settimeout(1.0)

    def close(self) -> None:
        """Close the socket to the kernel."""
        self._kernel.close()

    def find(self, key: Key) -> SocketState | None:
        """The state of the socket; None: it is gone."""
        query = (
            _QUERY.pack(key.family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ALL_STATES)
            + _IDENTITY.pack(key.local[1], key.remote[1], key.local[0], key.remote[0])
            + _REST.pack(0, key.cookie & 0xFFFFFFFF, key.cookie >> 32)
        )
        self._kernel.send(HEADER.pack(HEADER.size + len(query), _BY_FAMILY, _REQUEST, 1, 0) + query)
        answer = self._kernel.recv(_MAX_ANSWER_BYTES)
        length, kind, _, _, _ = HEADER.unpack_from(answer)
        body = answer[HEADER.size : length]
        if kind == _ERROR or len(body) < MESSAGE_BYTES:
            return None
        inode = int.from_bytes(body[_INODE_OFFSET:MESSAGE_BYTES], "little")
        return SocketState(body[1], inode != 0, _counters(body[MESSAGE_BYTES:], body[1]))


def tcp_info(attributes: bytes) -> bytes:
    """The ``struct tcp_info`` among the attributes of a message; empty: there is none."""
    offset = 0
    while offset + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, offset)
        if length < _ATTRIBUTE.size:
            break
        if kind == _INFO:
            return attributes[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return b""


def _counters(attributes: bytes, state: int) -> tuple[int, int] | None:
    info = tcp_info(attributes)
    if len(info) < _COUNTERS_OFFSET + _COUNTERS.size:
        return None
    acknowledged, received = _COUNTERS.unpack_from(info, _COUNTERS_OFFSET)
    # In each direction, the SYN and the FIN count as one byte each.
    return max(0, acknowledged - (2 if state == FIN_WAIT2 else 1)), max(0, received - (state in _ENDED_BY_PEER))
