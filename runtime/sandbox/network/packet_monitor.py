"""Reports packets other than TCP that programs in a box send to addresses outside.

These packets never leave the box, because every address is local to the namespace. The packet monitor sees each packet
on the loopback device and reports it. A packet filter in the kernel excludes TCP and traffic within the box.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
from ipaddress import IPv4Address, IPv6Address

from sluice.runtime.sandbox.network.events import Address, Refusal
from sluice.runtime.sandbox.network.names import Names
from sluice.runtime.sandbox.network.refusals import Refusals

MAX_PACKETS_AT_ONCE = 64
PAUSE_SECONDS = 0.05
"""The pause after :data:`MAX_PACKETS_AT_ONCE` packets, so that a job that floods the monitor costs little."""
BUFFER_BYTES = 1 << 20
"""Size of the kernel's buffer. If a job sends faster, packets go unreported, but they still do not leave the box."""
PACKETS_OF_ALL_PROTOCOLS = 3
_HEAD_BYTES = 64
_SO_ATTACH_FILTER = 26
_OUTGOING = 4
_V4, _V6 = 0x0800, 0x86DD
_NAMES = {1: "icmp", 17: "udp", 58: "icmp"}
_UNREACHABLE = {4: 3, 6: 1}
"""The type of the kernel's own ICMP "destination unreachable" messages, by IP version."""
_PORTS = (17, 132, 136)
"""Protocols whose bytes 2 and 3 are the destination port: UDP, SCTP, UDP-Lite."""

_ANCILLARY = 0xFFFFF000
_LOAD, _LOAD_BYTE, _LOAD_HALF, _EQUAL, _RETURN = 0x20, 0x30, 0x28, 0x15, 0x06
FILTER = (
    (_LOAD_HALF, 0, 0, _ANCILLARY + 4),  # 0: the kind of packet; each is seen twice, when sent and when received
    (_EQUAL, 0, 14, _OUTGOING),
    (_LOAD_HALF, 0, 0, _ANCILLARY),  # 2: the protocol
    (_EQUAL, 0, 4, _V4),
    (_LOAD_BYTE, 0, 0, 9),
    (_EQUAL, 10, 0, 6),  # TCP
    (_LOAD_BYTE, 0, 0, 16),
    (_EQUAL, 8, 7, 127),
    (_EQUAL, 0, 6, _V6),  # 8
    (_LOAD_BYTE, 0, 0, 6),
    (_EQUAL, 5, 0, 6),
    (_LOAD, 0, 0, 24),
    (_EQUAL, 0, 2, 0),  # the first half of the address, which is zero in ::1
    (_LOAD, 0, 0, 36),
    (_EQUAL, 1, 0, 1),
    (_RETURN, 0, 0, _HEAD_BYTES),  # 15
    (_RETURN, 0, 0, 0),  # 16
)
"""A program for the kernel's packet filter (socket(7), SO_ATTACH_FILTER)."""


class PacketMonitor:
    """The packet monitor of one network; used in the broker's thread."""

    def __init__(self, packets: socket.socket, names: Names, refusals: Refusals) -> None:
        self._packets = packets
        self._names = names
        self._refusals = refusals
        self._pausing: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to report packets."""
        program = b"".join(struct.pack("=HBBI", *each) for each in FILTER)
        code = ctypes.create_string_buffer(program, len(program))
        descriptor = struct.pack("@HxxxxxxP", len(FILTER), ctypes.addressof(code))
        self._packets.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, descriptor)
        self._packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._packets.bind(("lo", PACKETS_OF_ALL_PROTOCOLS))
        self._resume()

    def close(self) -> None:
        """Report the packets seen so far, then stop."""
        self._read()
        if self._pausing is not None:
            self._pausing.cancel()
        asyncio.get_running_loop().remove_reader(self._packets)

    def _resume(self) -> None:
        self._pausing = None
        asyncio.get_running_loop().add_reader(self._packets, self._seen)

    def _seen(self) -> None:
        if self._read() == MAX_PACKETS_AT_ONCE:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._packets)
            self._pausing = loop.call_later(PAUSE_SECONDS, self._resume)

    def _read(self) -> int:
        for count in range(MAX_PACKETS_AT_ONCE):
            try:
                head = self._packets.recv(_HEAD_BYTES)
            except OSError:
                return count
            refusal = refusal_of(head, self._names)
            if refusal is not None:
                self._refusals.add(refusal)
        return MAX_PACKETS_AT_ONCE


def refusal_of(head: bytes, names: Names) -> Refusal | None:
    """The row for a packet that begins with ``head``; None: the kernel itself sent it, or it cannot be parsed."""
    found = _destination(head)
    if found is None:
        return None
    address, protocol, payload = found
    if _NAMES.get(protocol) == "icmp" and payload[:1] == bytes([_UNREACHABLE[4 if address.version == 4 else 6]]):
        return None
    port = int.from_bytes(payload[2:4], "big") if protocol in _PORTS and len(payload) >= 4 else 0
    name = _NAMES.get(protocol, f"ip-{protocol}")
    return Refusal("", name, str(address), port, names.name_of(address) or "", "only_tcp_leaves")


def _destination(head: bytes) -> tuple[Address, int, bytes] | None:
    with contextlib.suppress(IndexError, ValueError):
        if head[0] >> 4 == 4:
            return IPv4Address(head[16:20]), head[9], head[(head[0] & 0xF) * 4 :]
        if head[0] >> 4 == 6:
            return IPv6Address(head[24:40]), head[6], head[40:]
    return None
